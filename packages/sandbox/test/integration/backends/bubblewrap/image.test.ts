import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, realpathSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import { bubblewrapMissing, never, Workbench } from '../../../backends/workbench.ts';

const problem = await bubblewrapMissing();

describeIf(problem, 'a sandbox with an image', () => {
  let bench: Workbench;
  let image: string;
  beforeAll(async () => {
    bench = await Workbench.open();
    image = join(bench.dir, 'image');
    makeImage(image);
  });
  afterAll(() => bench.close());

  it("runs the image's programs on its files and does not change the image", async () => {
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    const command = 'cat file; id; echo changed > file; rm /usr/bin/wc; touch /new; ls /usr/bin';
    const { stdout, stderr } = await runtime.exec({ command }, never);
    expect(stderr).toBe('');
    expect(stdout).toContain('from the image');
    expect(stdout).toContain('uid=1000(agent)');
    expect(stdout).not.toContain('node');
    expect((await runtime.exec({ command: 'cat file; ls /new /usr/bin/wc' }, never)).stdout).toBe('changed\n/new\n');
    expect((await runtime.readFile('file', 100, never))?.toString()).toBe('changed\n');
    await runtime.writeFiles([{ path: 'written', content: 'x' }], never);
    await runtime.stop();
    expect(readFileSync(join(image, 'testbed/file'), 'utf8')).toBe('from the image');
    expect(existsSync(join(image, 'usr/bin/wc'))).toBe(true);
    expect(existsSync(join(image, 'new'))).toBe(false);
    expect(existsSync(join(image, 'testbed/written'))).toBe(false);
  });

  it("cannot change the kernel's settings, although the sandbox of an image of root has the user id of root", async () => {
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    const settings = ['kernel/core_pattern', 'kernel/modprobe', 'vm/overcommit_memory', 'net/ipv4/ip_forward'];
    // The files are opened without truncation, because the kernel lets no user truncate them.
    const open = (path: string) => `(exec 3<>${path}) 2>/dev/null && echo opened ${path}`;
    const command = [...settings.map((name) => open(`/proc/sys/${name}`)), open('/proc/sysrq-trigger'), 'true'];
    const { stdout, exitCode } = await runtime.exec({ command: command.join('; ') }, never);
    await runtime.stop();
    expect({ stdout, exitCode }).toEqual({ stdout: '', exitCode: 0 });
  });

  it("cannot read what describes the host's memory and timers", async () => {
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    const files = ['kpagecount', 'kpageflags', 'timer_list', 'slabinfo', 'vmallocinfo', 'keys'];
    const read = files.map((name) => `[ ! -e /proc/${name} ] || head -c 100 /proc/${name} 2>/dev/null`);
    const { stdout } = await runtime.exec({ command: read.join('; ') }, never);
    await runtime.stop();
    expect(stdout).toBe('');
  });

  it('ends every command with exit code 127 after the agent has removed the shell', async () => {
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    await runtime.exec({ command: 'rm /usr/bin/sh' }, never);
    const ended = await runtime.exec({ command: 'true' }, never);
    expect(ended).toMatchObject({ exitCode: 127, killedBy: null });
    expect(ended.stderr).toContain('/bin/sh');
    expect(await runtime.readFile('file', 100, never).catch((error) => error.code)).toBe('runtime_failed');
    await runtime.stop();
  });

  it('reaches its proxy although the image has no Node', async () => {
    const { createServer } = await import('node:net');
    const socketPath = join(bench.dir, 'proxy.sock');
    const server = createServer((socket) => socket.end('hello from the proxy'));
    await new Promise<void>((resolve) => server.listen(socketPath, resolve));
    cpSync(realpathSync('/bin/bash'), join(image, 'usr/bin/bash'));
    for (const match of execFileSync('ldd', ['/bin/bash'])
      .toString()
      .matchAll(/(\/\S+) \(0x/g)) {
      const library = match[1] ?? '';
      mkdirSync(join(image, dirname(library)), { recursive: true });
      cpSync(realpathSync(library), join(image, library));
    }
    const proxy = { socketPath, tcpOrigin: 'unused' };
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' }, { proxy });
    const { port } = new URL(runtime.proxyOrigin);
    const command = ['bash', '-c', `exec 3<>/dev/tcp/127.0.0.1/${port}; cat <&3`];
    const result = await runtime.exec({ command, withProxy: true }, never);
    expect(result).toMatchObject({ exitCode: 0, stdout: 'hello from the proxy' });
    await runtime.stop();
    await new Promise((resolve) => server.close(resolve));
  });

  it('rejects an image that does not exist and one with a file at the path of the workdir', async () => {
    const absent = bench.start('bubblewrap', { image: join(bench.dir, 'absent'), workdir: '/' });
    await expect(absent).rejects.toMatchObject({ code: 'schema_violation' });
    const missing = bench.start('bubblewrap', { image: join(bench.dir, 'absent'), workdir: '/testbed' });
    await expect(missing).rejects.toMatchObject({
      code: 'runtime_failed',
      details: { image: join(bench.dir, 'absent') },
    });
    await expect(bench.start('bubblewrap', { image: 'ubuntu:24.04' })).rejects.toMatchObject({ code: 'unsupported' });
    await expect(bench.start('bubblewrap', { image, workdir: '/testbed/file' })).rejects.toMatchObject({
      code: 'runtime_failed',
      message: expect.stringContaining('/testbed/file'),
    });
    expect(await bench.sessionDirs()).toEqual([]);
  });

  it('is rejected by the local runtime', async () => {
    await expect(bench.start('local', { image })).rejects.toMatchObject({ code: 'unsupported' });
  });
});
