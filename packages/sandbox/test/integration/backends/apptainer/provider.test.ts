import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf, itIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import {
  apptainerProgram,
  type ContainerBench,
  missingBackends,
  openWorkbench,
} from '../../../backends/container-bench.ts';
import { never, Workbench } from '../../../backends/workbench.ts';

const missing = (await missingBackends()).apptainer;
const isRoot = process.getuid?.() === 0;

describeIf(missing, 'an Apptainer sandbox', () => {
  let opened: ContainerBench;
  let runtime: Runtime;
  beforeAll(async () => {
    opened = await openWorkbench('apptainer', ['grep', 'sleep', 'unshare', 'env']);
    runtime = await opened.start('apptainer');
  }, 120_000);
  afterAll(async () => {
    await runtime?.stop();
    await opened?.close();
  });
  const sh = (command: string) => runtime.exec({ command }, never);

  it('has no network except its own loopback', async () => {
    expect((await sh('grep -c : /proc/net/dev; grep lo: /proc/net/dev')).stdout).toMatch(/^1\n *lo:/);
  });

  it('runs as root that cannot gain privileges and has only the capabilities to manage files and users', async () => {
    const { stdout } = await sh('id -u; grep -E "^(CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status');
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID and SYS_PTRACE.
    expect(stdout).toBe('0\nCapEff:\t00000000000800fb\nCapBnd:\t00000000000800fb\nNoNewPrivs:\t1\nSeccomp:\t2\n');
  });

  it('cannot raise the limit that the kernel sets on its processes', async () => {
    const limit = 'grep "^Max processes" /proc/self/limits';
    const { stdout } = await sh(`${limit}; ulimit -p 5000 2>&1 || ulimit -u 5000; ${limit}`);
    const lines = stdout.split('\n').map((line) => line.trim());
    const [first, last] = [lines.at(0), lines.at(-2)];
    expect(first).toMatch(/^Max processes +616 +616 /);
    expect(last).toBe(first);
  });

  it('can create no namespace with unshare', async () => {
    const { stderr, exitCode } = await sh('unshare --user true');
    expect(stderr).toContain('Operation not permitted');
    expect(exitCode).toBe(1);
  });

  it('sees only its own processes and none of the files of the host', async () => {
    expect(Number((await sh('ls -d /proc/[0-9]* | wc -l')).stdout)).toBeLessThan(10);
    expect((await sh('ls /sys; ls /root /home/agent/..')).stdout).not.toContain('cgroup');
    expect((await sh(`cat ${opened.bench.dir}/state/*/.share/seccomp.json`)).exitCode).toBe(1);
  });

  it('writes over the files of its image without changing the image', async () => {
    await sh('echo changed >/testbed/file; rm /etc/passwd; echo new >/testbed/new');
    expect((await sh('cat /testbed/file /testbed/new')).stdout).toBe('changed\nnew\n');
    expect(readFileSync(join(opened.image ?? '', 'testbed/file'), 'utf8')).toBe('from the image');
    expect(readdirSync(join(opened.image ?? '', 'testbed'))).toEqual(['file']);
  });

  it('cannot change the programs of floe that are mounted in it', async () => {
    const { stderr } = await sh(
      'for file in /.floe/node /.floe/programs/new /.floe/sockets/new; do echo x >$file; done',
    );
    expect(stderr.match(/Read-only file system/g)).toHaveLength(3);
  });

  it('reports a command whose agent has killed the box server as killed', async () => {
    const broken = await opened.start('apptainer');
    expect(await broken.exec({ command: 'kill -KILL $PPID; sleep 60' }, never)).toMatchObject({
      exitCode: null,
      signal: 'SIGKILL',
    });
    await expect(broken.exec({ command: 'true' }, never)).rejects.toMatchObject({ code: 'runtime_failed' });
    expect((await sh('echo unaffected')).stdout).toBe('unaffected\n');
    await broken.stop();
  });

  it.each([
    ['schema_violation', 'no image', undefined],
    ['runtime_failed', 'a file that does not exist', '/no/such/image.sif'],
    ['unsupported', 'an image of a registry on a node without an image store', 'python:3.12'],
  ])('is refused with %s for %s', async (code, _what, image) => {
    await expect(opened.bench.start('apptainer', { image })).rejects.toMatchObject({ code });
  });

  it('is refused the network of the host unless the node allows it', async () => {
    await expect(opened.start('apptainer', { network: 'host' })).rejects.toMatchObject({ code: 'unsupported' });
  });

  it('quotes the output of Apptainer for an image that cannot be started', async () => {
    const image = join(opened.bench.dir, 'broken.sif');
    writeFileSync(image, 'not an image');
    await expect(opened.start('apptainer', { image })).rejects.toMatchObject({
      code: 'runtime_failed',
      message: expect.stringContaining('Apptainer ended with code 255'),
    });
  });

  describe('of a SIF file', () => {
    const dir = mkdtempSync(join(tmpdir(), 'floe-sif-'));
    afterAll(() => rmSync(dir, { recursive: true, force: true }));

    it('runs commands with the environment of the image and can write over its files', async () => {
      const [root, sif] = [join(dir, 'root'), join(dir, 'image.sif')];
      mkdirSync(join(root, '.singularity.d/env'), { recursive: true });
      makeImage(root, ['env']);
      writeFileSync(join(root, '.singularity.d/env/90-environment.sh'), 'export FROM_IMAGE="in the image"\n');
      execFileSync(apptainerProgram() ?? '', ['--silent', 'build', sif, root], {
        env: { HOME: dir, PATH: '/usr/bin:/bin' },
      });
      const started = await opened.bench.start('apptainer', { image: sif });
      const { stdout } = await started.exec({ command: 'echo new >/testbed/file; cat /testbed/file; env' }, never);
      expect(stdout).toMatch(/^new\n/);
      expect(stdout).toContain('FROM_IMAGE=in the image\n');
      expect(stdout).toContain('HOME=/home/agent\n');
      expect(stdout).not.toContain('APPTAINER');
      await started.stop();
    }, 120_000);
  });
});

itIf(isRoot ? null : 'this user is not root', 'Apptainer sandboxes are refused to root', async () => {
  const bench = await Workbench.open();
  const start = bench.start('apptainer', { image: '/' });
  await expect(start).rejects.toMatchObject({ code: 'runtime_unavailable' });
  expect(await bench.provider('apptainer').probe()).toMatchObject({ remedy: expect.stringContaining('another user') });
  await bench.close();
});
