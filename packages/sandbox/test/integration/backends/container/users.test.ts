import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { dockerMissing } from '../../../../../../verify/services/docker-daemon.ts';
import { podmanMissing } from '../../../../../../verify/services/podman-service.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import { ContainerEngine } from '../../../../src/backends/container/engine-api.ts';
import { buildEngineImage } from '../../../../src/backends/container/image-build.ts';
import { type ContainerBench, IMAGE, openWorkbench } from '../../../backends/container-bench.ts';
import { never } from '../../../backends/workbench.ts';

const missing = { docker: await dockerMissing(), podman: podmanMissing() };

const PROGRAMS = ['chmod', 'grep', 'node', 'sleep', 'stat', 'tr'];
/** A user of the test's image. */
const USER = { name: 'postgres', uid: 70 };
const IDS = `${USER.uid} ${USER.uid}\n`;

describe.each(['docker', 'podman'] as const)('a %s sandbox of a user', (backend) => {
  describeIf(missing[backend], 'of a container engine', () => {
    let opened: ContainerBench;
    let runtime: Runtime;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
      runtime = await opened.start(backend, { user: USER.name });
    }, 120_000);
    afterAll(async () => {
      await runtime?.stop();
      await opened?.close();
    });
    const sh = async (command: string, by = runtime) => {
      const { stdout, stderr } = await by.exec({ command }, never);
      return stdout + stderr;
    };

    it('runs commands as the user, with variables of the user and no capabilities', async () => {
      expect(await sh('echo "$(id -u) $(id -g)"')).toBe(IDS);
      expect(await sh('echo "$USER $LOGNAME $HOME"; [ -w "$HOME" ] && echo writable')).toBe(
        'postgres postgres /home/agent\nwritable\n',
      );
      expect(await sh('grep CapEff /proc/self/status')).toBe('CapEff:\t0000000000000000\n');
      expect(await sh('touch /etc/new')).toContain('Permission denied');
    });

    it('has directories and files of the user', async () => {
      await runtime.writeFiles([{ path: 'made/file', content: 'x', mode: 0o600 }], never);
      const source = join(opened.bench.dir, 'source');
      mkdirSync(join(source, 'inner'), { recursive: true });
      writeFileSync(join(source, 'inner/file'), 'y');
      symlinkSync('inner', join(source, 'link'));
      await runtime.uploadDir(source, 'uploaded', never);
      const { workdir, home, artifacts, logs } = runtime.paths;
      const made = ['made', 'made/file', 'uploaded', 'uploaded/inner', 'uploaded/inner/file', 'uploaded/link'];
      const paths = [workdir, home, artifacts, logs, ...made];
      expect(await sh(`stat -c %u ${paths.join(' ')}`)).toBe(`${USER.uid}\n`.repeat(paths.length));
      expect(await sh('cat made/file uploaded/link/file')).toBe('xy');
    });

    it('leaves a workdir of the image to its owner', async () => {
      const other = await opened.start(backend, { user: USER.name, workdir: '/testbed' });
      expect(await sh('stat -c %u . file', other)).toBe('0\n0\n');
      await other.stop();
    });

    it('runs the work of floe as root', async () => {
      const root = runtime.asRoot();
      expect(await sh('id -u', root)).toBe('0\n');
      await root.writeFiles([{ path: '/tests/hidden', content: 'secret', mode: 0o600 }], never);
      expect(await sh('cat /tests/hidden', root)).toBe('secret');
      expect(await sh('cat /tests/hidden')).toContain('Permission denied');
      expect(root.asRoot()).toBe(root);
    });

    it('has tools of the user, which cannot read or change files of root', async () => {
      await runtime.asRoot().writeFiles([{ path: '/tests/secret', content: 'secret', mode: 0o600 }], never);
      const tools = await runtime.openTools(never);
      const shell = tools.shell();
      const { stdout } = await shell.run('echo "$(id -u) $(id -g)"', { timeoutMs: 60_000 }, never);
      expect(stdout).toBe(IDS);
      await tools.writeFile('by-tool', 'text', never);
      expect(await sh('stat -c %u by-tool')).toBe(`${USER.uid}\n`);
      await expect(tools.readFile('/tests/secret', {}, never)).rejects.toThrow('permission denied');
      await expect(tools.writeFile('/etc/new', 'x', never)).rejects.toThrow('permission denied');
      await tools.close();
      const root = await runtime.asRoot().openTools(never);
      expect((await root.readFile('/tests/secret', {}, never)).text).toBe('secret');
      await root.close();
    });

    it('cannot end the box server, which ends the processes that a command of the user leaves', async () => {
      expect(await sh('kill -KILL $PPID')).toContain('not permitted');
      expect(await sh('sleep 4711 >/dev/null 2>&1 & echo begun')).toBe('begun\n');
      const left = await sh('cat /proc/[0-9]*/cmdline | tr "\\0" " "', runtime.asRoot());
      expect(left).toContain('/.floe/');
      expect(left).not.toContain('sleep 4711');
    });

    it('is restored with the owners of the files in its workdir', async () => {
      await sh('echo mine >owned');
      const snapshot = await runtime.snapshot(never);
      await sh('rm owned');
      await runtime.restore(snapshot, never);
      expect(await sh('stat -c %u owned; cat owned')).toBe(`${USER.uid}\nmine\n`);
      await snapshot.release();
    });

    it('accepts a number that the image does not name, and refuses a name that it lacks', async () => {
      const numbered = await opened.start(backend, { user: 1234 });
      expect(await sh('echo "$(id -u) $(id -g) $USER"', numbered)).toBe('1234 0 agent\n');
      await numbered.stop();
      await expect(opened.start(backend, { user: 'ghost' })).rejects.toMatchObject({
        code: 'schema_violation',
        message: 'runtime.user: the image has no user ghost',
        details: { path: 'runtime.user' },
      });
    });

    describe('of an image that names the user', () => {
      let image: string;
      beforeAll(async () => {
        const context = join(opened.bench.dir, 'context');
        mkdirSync(join(context, 'closed/inner'), { recursive: true, mode: 0o700 });
        writeFileSync(join(context, 'closed/inner/file'), '');
        writeFileSync(
          join(context, 'Dockerfile'),
          `FROM ${IMAGE}\nENV MODE=image\nCOPY closed /closed\nUSER ${USER.name}\n`,
        );
        const engine = new ContainerEngine(opened.engineSocket ?? '');
        const build = { context, dockerfile: 'Dockerfile', name: 'floe-user', limitSeconds: 60 };
        image = await buildEngineImage(engine, build, never).finally(() => engine.close());
      }, 120_000);

      it('runs commands as this user, unless the task names another one', async () => {
        const own = await opened.start(backend, { image });
        expect(await sh('echo "$(id -u) $(id -g)"', own)).toBe(IDS);
        expect(await sh('echo "$MODE $USER"', own)).toBe('image postgres\n');
        await own.stop();
        const root = await opened.start(backend, { image, user: 'root' });
        expect(await sh('id -u', root)).toBe('0\n');
        await root.stop();
      });

      it('runs a program that is mounted in a directory which the image closes to the user', async () => {
        const hostPath = join(opened.bench.dir, 'mounted');
        mkdirSync(hostPath);
        writeFileSync(join(hostPath, 'program'), '#!/bin/sh\necho it runs\n', { mode: 0o755 });
        const readOnlyMounts = [{ hostPath, sandboxPath: '/closed/inner/harness' }];
        const own = await opened.start(backend, { image }, { readOnlyMounts });
        expect(await sh('/closed/inner/harness/program', own)).toBe('it runs\n');
        expect(await sh('ls /closed/inner', own)).toContain('Permission denied');
        await own.stop();
      });
    });

    it('is one of root when the task or the image names root or no user', async () => {
      for (const user of [null, 'root', 0]) {
        const own = await opened.start(backend, { user });
        expect(await sh('id -u', own)).toBe('0\n');
        expect(own.asRoot()).toBe(own);
        await own.stop();
      }
    });
  });
});
