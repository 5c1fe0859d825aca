import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { dockerMissing } from '../../../../../../verify/services/docker-daemon.ts';
import { podmanMissing } from '../../../../../../verify/services/podman-service.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import { type ContainerBench, openWorkbench } from '../../../backends/container-bench.ts';
import { never } from '../../../backends/workbench.ts';

const missing = { docker: await dockerMissing(), podman: podmanMissing() };

const PROGRAMS = ['chmod', 'cp', 'git', 'id', 'ln', 'mv', 'node', 'stat', 'tar'];
const FOREIGN = 'is a link of a user to a file that another user owns';
/** Variables of the task with paths that the user can write to. */
const ENV = {
  PATH: '/home/agent/bin:/work/bin:relative:/usr/local/bin:/usr/bin:/bin',
  LD_PRELOAD: '/work/preloaded.so',
  ENV: '/work/shell.rc',
  BASH_ENV: '/work/shell.rc',
  HOME: '/home/agent',
};

describe.each(['docker', 'podman'] as const)('the work of root in a %s sandbox of a user', (backend) => {
  describeIf(missing[backend], 'of a container engine', () => {
    let opened: ContainerBench;
    let user: Runtime;
    let root: Runtime;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
      user = await opened.start(backend, { user: 'postgres' });
      root = user.asRoot();
      await root.writeFiles([{ path: '/tests/secret', content: 'secret', mode: 0o600 }], never);
      await root.writeFiles([{ path: '/opt/public', content: 'public', mode: 0o644 }], never);
      await sh('ln -s /etc foreign; ln -s /tests/secret peek; ln -s /opt/public shown; mkdir own; ln -s own mine');
    }, 120_000);
    afterAll(async () => {
      await user?.stop();
      await opened?.close();
    });
    const sh = async (command: string, by = user) => {
      const { stdout, stderr } = await by.exec({ command }, never);
      return stdout + stderr;
    };

    it('writes no file through a link to a directory of root', async () => {
      const file = { path: 'foreign/planted', content: 'x' };
      await expect(root.writeFiles([file], never)).rejects.toThrow(FOREIGN);
      await expect(user.writeFiles([file], never)).rejects.toThrow(FOREIGN);
      await expect(root.writeFiles([{ ...file, path: 'foreign/new/planted' }], never)).rejects.toThrow(FOREIGN);
      const source = join(opened.bench.dir, 'source');
      mkdirSync(join(source, 'planted'), { recursive: true });
      writeFileSync(join(source, 'planted/file'), 'x');
      await expect(root.uploadDir(source, 'foreign', never)).rejects.toThrow(FOREIGN);
      await expect(user.uploadDir(source, 'foreign', never)).rejects.toThrow(FOREIGN);
      expect(await sh('ls /etc/planted /etc/new 2>/dev/null', root)).toBe('');
    });

    it('replaces a link in the place of a file', async () => {
      await sh('ln -s /tests/secret test.sh');
      await root.writeFiles([{ path: 'test.sh', content: 'the tests' }], never);
      expect(await sh('cat test.sh /tests/secret', root)).toBe('the testssecret');
    });

    it('follows a link of the user to a directory of the user', async () => {
      await root.writeFiles([{ path: 'mine/file', content: 'x' }], never);
      expect(await sh('cat own/file; cd mine && pwd', root)).toBe('x/work/mine\n');
      expect((await root.readFile('mine/file', 10, never))?.toString()).toBe('x');
    });

    it('follows no link of the user that leads on through a directory of root', async () => {
      await root.exec({ command: 'ln -s /work/turn /opt/by-root' }, never);
      await sh('ln -s /etc turn');
      await expect(root.writeFiles([{ path: '/opt/by-root/planted', content: 'x' }], never)).rejects.toThrow(FOREIGN);
    });

    it('reads for the user only what the user may read, and for root no file of others through a link', async () => {
      await expect(user.readFile('peek', 100, never)).rejects.toThrow('permission denied');
      await expect(user.readFile('/tests/secret', 100, never)).rejects.toThrow('permission denied');
      await expect(root.readFile('peek', 100, never)).rejects.toThrow(FOREIGN);
      expect((await user.readFile('shown', 100, never))?.toString()).toBe('public');
      expect((await root.readFile('/tests/secret', 100, never))?.toString()).toBe('secret');
      await root.exec({ command: 'mkdir -m 700 /opt/closed && echo x >/opt/closed/file' }, never);
      await expect(user.readFile('/opt/closed/file', 100, never)).rejects.toThrow('permission denied');
    });

    it('runs no command in a directory of root that a link of the user leads to', async () => {
      await expect(root.exec({ command: 'pwd', cwd: 'foreign' }, never)).rejects.toMatchObject({
        code: 'workdir_missing',
      });
    });

    it('uses neither the home directory nor the settings of the user', async () => {
      const settings = ['.profile', '.bashrc', '.gitconfig'];
      await sh(`cd ~ && for name in ${settings.join(' ')}; do echo 'touch /work/settings-ran' >$name; done`);
      await sh('printf "[user]\\nname = planted\\n" >~/.gitconfig');
      expect(await sh('echo "$HOME $USER $LOGNAME"', root)).toBe('/root root root\n');
      expect(await sh('git config user.name; sh -l -c true', root)).toBe('');
      expect(await sh('git config user.name')).toBe('planted\n');
      expect(await sh('ls settings-ran 2>/dev/null')).toBe('');
    });

    it('runs no program of a git repository of the user', async () => {
      await sh(`git init -q repo && cd repo && git config user.name a && git config user.email a@b
        printf '#!/bin/sh\\nid -u >>/work/git-ran\\n' >.git/program && chmod +x .git/program
        cp .git/program .git/hooks/post-checkout; cp .git/program .git/hooks/pre-commit
        git config core.fsmonitor /work/repo/.git/program`);
      expect(
        await sh('cd repo; git status; git commit -q --allow-empty -m x; git checkout -q -b other', root),
      ).toContain('dubious ownership');
      expect(await sh('cat git-ran 2>/dev/null')).toBe('');
      await sh('cd repo; git commit -q --allow-empty -m x');
      expect(await sh('cat git-ran')).toContain('70\n');
    });

    it('finds programs and libraries only where the user cannot put them', async () => {
      const own = await opened.start(backend, { user: 'postgres', env: ENV });
      const asRoot = own.asRoot();
      await sh(
        'mkdir -p ~/bin bin; for at in ~/bin bin; do printf "#!/bin/sh\\necho planted" >$at/id; chmod +x $at/id; done',
        own,
      );
      await sh('echo "touch /work/rc-ran" >shell.rc', own);
      expect(await sh('id -u', own)).toContain('planted');
      expect(await sh('id -u; echo "$PATH|$LD_PRELOAD|$BASH_ENV|$ENV|$HOME"', asRoot)).toBe(
        '0\n/usr/local/bin:/usr/bin:/bin||||/root\n',
      );
      expect(await sh('sh -i -c true </dev/null; ls rc-ran 2>/dev/null', asRoot)).not.toContain('rc-ran\n');
      const tools = await asRoot.openTools(never);
      const { stdout } = await tools.shell().run('id -u; echo "$HOME"', { timeoutMs: 60_000 }, never);
      expect(stdout).toBe('0\n/root\n');
      await tools.close();
      await own.stop();
    });

    it('saves and restores no workdir that the user has replaced by a link to a directory of root', async () => {
      const own = await opened.start(backend, { user: 'postgres', workdir: '/home/agent/project/etc' });
      await sh('echo mine >file', own);
      const snapshot = await own.snapshot(never);
      const before = await sh('ls /etc', own.asRoot());
      await own.exec({ command: 'mv project old && ln -s / project', cwd: '/home/agent' }, never);
      await expect(own.snapshot(never)).rejects.toThrow(FOREIGN);
      await expect(own.restore(snapshot, never)).rejects.toThrow(FOREIGN);
      expect((await own.asRoot().exec({ command: 'ls /etc', cwd: '/' }, never)).stdout).toBe(before);
      await own.exec(
        { command: 'rm project && mv old project && rm -rf project/etc && ln -s /etc project/etc', cwd: '/home/agent' },
        never,
      );
      await own.restore(snapshot, never);
      expect(await sh('cat file; ls', own)).toBe('mine\nfile\n');
      await snapshot.release();
      await own.stop();
    });

    it('gives the user no right that a program with the set-user-id bit has', async () => {
      await root.exec({ command: 'cp "$(command -v id)" /opt/id && chmod u+s /opt/id' }, never);
      expect(await sh('/opt/id -u')).toBe('70\n');
    });
  });
});
