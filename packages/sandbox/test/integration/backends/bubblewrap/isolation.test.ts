import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import {
  bubblewrapMissing,
  never,
  processesMentioning,
  processesThatMount,
  uniqueSeconds,
  Workbench,
} from '../../../backends/workbench.ts';

const problem = await bubblewrapMissing();

describeIf(problem, 'a bubblewrap sandbox', () => {
  let bench: Workbench;
  let runtime: Runtime;
  let control: Server;
  let controlPort: number;
  let proxy: Server;
  beforeAll(async () => {
    bench = await Workbench.open();
    control = createServer((_request, response) => response.end('control'));
    await new Promise<void>((resolve) => control.listen(0, '127.0.0.1', resolve));
    controlPort = (control.address() as AddressInfo).port;
    proxy = createServer((_request, response) => response.end('proxy'));
    const socketPath = join(bench.dir, 'own.sock');
    await new Promise<void>((resolve) => proxy.listen(socketPath, resolve));
    writeFileSync(join(bench.dir, 'secret'), 'host secret');
    runtime = await bench.start('bubblewrap', { storage_mb: 8 }, { proxy: { socketPath, tcpOrigin: 'unused' } });
  });
  afterAll(async () => {
    await runtime.stop();
    await Promise.all([control, proxy].map((each) => new Promise((resolve) => each.close(resolve))));
    await bench.close();
  });
  const sh = (command: string) => runtime.exec({ command }, never);
  const fetchScript = (url: string): string[] => [
    'node',
    '-e',
    `fetch(${JSON.stringify(url)}).then((r) => r.text()).then(console.log, (e) => console.log("refused", e.cause?.code))`,
  ];

  it('has no network except its own loopback', async () => {
    expect((await sh('tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d " "')).stdout).toBe('lo\n');
    expect((await sh('wc -l < /proc/net/route')).stdout.trim()).toBe('1');
  });

  it.each([false, true])("reaches nothing on the host's loopback (with proxy: %s)", async (withProxy) => {
    const command = fetchScript(`http://127.0.0.1:${controlPort}/`);
    expect((await runtime.exec({ command, withProxy }, never)).stdout).toBe('refused ECONNREFUSED\n');
  });

  it('reaches its proxy only in a command that requests it', async () => {
    const command = fetchScript(runtime.proxyOrigin);
    expect((await runtime.exec({ command, withProxy: true }, never)).stdout).toBe('proxy\n');
    expect((await runtime.exec({ command }, never)).stdout).toBe('refused ECONNREFUSED\n');
  });

  it('cannot connect to an abstract socket of the host', async () => {
    const abstract = createServer(() => {});
    const name = `\0floe-test-${process.pid}`;
    await new Promise<void>((resolve) => abstract.listen(name, resolve));
    const script = `require("net").connect(${JSON.stringify(name)}).on("error", (e) => console.log(e.code)).on("connect", () => { console.log("in"); process.exit(); })`;
    expect((await runtime.exec({ command: ['node', '-e', script] }, never)).stdout).toBe('ECONNREFUSED\n');
    await new Promise((resolve) => abstract.close(resolve));
  });

  it.each(['/root', '/etc/shadow', '/etc/ssl/private', '/sys', '/var/run/docker.sock', '/boot', '/mnt/in', '/srv'])(
    'does not show %s',
    async (path) => {
      expect((await sh(`ls ${path} 2>&1 >/dev/null`)).stderr + (await sh(`test -e ${path} && echo there`)).stdout).toBe(
        '',
      );
    },
  );

  it("does not show the node's state directory, nor this checkout", async () => {
    for (const path of [bench.dir, bench.stateDir, process.cwd()]) {
      expect((await sh(`ls -a '${path}' 2>/dev/null`)).stdout).toBe('');
    }
  });

  it('sees only its own processes', async () => {
    const pids = (await sh('cd /proc && echo [0-9]*')).stdout.trim().split(' ');
    expect(pids.length).toBeLessThanOrEqual(3);
  });

  it('neither sees nor signals the processes of another command of the session', async () => {
    const seconds = uniqueSeconds();
    const controller = new AbortController();
    const running = runtime.exec({ command: `echo up > up; sleep ${seconds}` }, controller.signal);
    const other = await sh(`until [ -e up ]; do sleep 0.01; done; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1`);
    expect(other.stdout).not.toContain(`sleep ${seconds}`);
    expect(await processesMentioning(seconds)).not.toEqual([]);
    controller.abort(new Error('done'));
    await expect(running).rejects.toThrow('done');
  });

  it('has no capability, cannot gain one and cannot create namespaces', async () => {
    const { stdout } = await sh('grep -E "^(Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs)" /proc/self/status | cut -f2');
    expect(stdout).toBe(`${'0000000000000000\n'.repeat(4)}1\n`.replace(/\n1\n$/, '\n1\n'));
    expect((await sh('unshare --user true')).exitCode).not.toBe(0);
    expect((await sh('mount -t tmpfs x /tmp')).exitCode).not.toBe(0);
  });

  it('does not run as the root of the host', async () => {
    await sh('true');
    const seconds = uniqueSeconds();
    const controller = new AbortController();
    const running = runtime.exec({ command: `sleep ${seconds}` }, controller.signal);
    let owners: string[] = [];
    while (owners.length === 0) {
      const lines = await processesMentioning(`sleep ${seconds}`);
      owners = lines.flatMap((line) => {
        const status = readFileSync(`/proc/${line.split(' ')[0]}/status`, 'utf8');
        // Only a process of the sandbox has two or more process ids, because its pid namespace is nested in the host's.
        return /^NSpid:\t\d+\t\d+/m.test(status) ? [/^Uid:\t(\d+)/m.exec(status)?.[1] ?? ''] : [];
      });
    }
    expect(owners).not.toContain('0');
    controller.abort(new Error('done'));
    await expect(running).rejects.toThrow('done');
  });

  it('can write only to its own directories', async () => {
    const places = ['/', '/usr', '/etc', '/dev', '/bin', '/.floe', '/home', '/var', '/proc/sys/kernel'];
    const { stdout } = await sh(places.map((dir) => `touch ${dir}/x 2>/dev/null && echo ${dir}`).join('; '));
    expect(stdout).toBe('');
    const own = ['/work', '/tmp', '/home/agent', '/artifacts', '/logs', '/dev/shm', '/var/tmp', '/run'];
    const result = await sh(own.map((dir) => `touch ${dir}/x && echo ${dir}`).join('; '));
    expect(result.stdout.trim().split('\n')).toEqual(own);
  });

  it('can fill only its own storage, with bytes or with files', async () => {
    const full = await sh('head -c 20000000 /dev/zero > /work/fill; wc -c < /work/fill; rm /work/fill');
    expect(full.stderr).toContain('No space left');
    expect(Number(full.stdout)).toBeLessThanOrEqual(8 * 1024 * 1024);
    const many = await sh('cd /tmp && i=0; while true > f$i; do i=$((i+1)); done 2>&1; echo $i; rm -f f*');
    expect(many.stdout).toContain('No space left');
    expect((await sh('echo fine > /work/after && cat /work/after')).stdout).toBe('fine\n');
  });

  it('inherits no file descriptor of the host', async () => {
    const { stdout } = await sh('for fd in /proc/self/fd/*; do readlink $fd; done');
    expect(stdout).not.toContain(bench.dir);
    expect(stdout).not.toMatch(/status|args/);
  });

  it('shows its environment in no command line', async () => {
    const secret = `key-${uniqueSeconds()}`;
    const env = { SECRET: secret };
    const controller = new AbortController();
    const running = runtime.exec({ command: 'echo up > env-up; sleep 60', env, withProxy: true }, controller.signal);
    await sh('until [ -e /work/env-up ]; do sleep 0.01; done');
    expect(await processesMentioning(secret)).toEqual([]);
    controller.abort(new Error('done'));
    await expect(running).rejects.toThrow('done');
  });

  it('follows no link out of the sandbox in a transfer', async () => {
    const secret = join(bench.dir, 'secret');
    await sh(`ln -s ${secret} leak; ln -s ${bench.dir} dir; ln -s /etc/passwd passwd; ln -s / root`);
    expect(await runtime.readFile('leak', 100, never)).toBeNull();
    expect(await runtime.readFile('dir/secret', 100, never)).toBeNull();
    expect((await runtime.readFile('passwd', 1000, never))?.toString()).toContain('agent:x:1000');
    await runtime.writeFiles([{ path: 'leak', content: 'overwritten' }], never);
    await runtime.writeFiles([{ path: 'dir/planted', content: 'planted' }], never).catch(() => {});
    await runtime.writeFiles([{ path: '../../../../../work/up-and-down', content: 'x' }], never);
    expect(readFileSync(secret, 'utf8')).toBe('host secret');
    expect(existsSync(join(bench.dir, 'planted'))).toBe(false);
    expect((await sh('cat leak up-and-down')).stdout).toBe('overwrittenx');
  });

  it('uploads links as links and skips pipes and sockets', async () => {
    const source = join(bench.dir, 'source');
    mkdirSync(source);
    symlinkSync(join(bench.dir, 'secret'), join(source, 'link'));
    await bench.spawner
      .spawn({ argv: ['mkfifo', join(source, 'fifo')], env: { PATH: '/usr/bin:/bin' }, maxOutputBytes: 100 })
      .then((child) => child.done);
    await runtime.uploadDir(source, 'uploaded', never);
    expect((await sh('ls uploaded; cat uploaded/link 2>/dev/null')).stdout).toBe('link\n');
  });

  it('reports an upload that exceeds the storage', async () => {
    const source = join(bench.dir, 'large');
    mkdirSync(source);
    writeFileSync(join(source, 'file'), Buffer.alloc(12 * 1024 * 1024));
    const upload = runtime.uploadDir(source, 'too-large', never);
    await expect(upload).rejects.toMatchObject({
      code: 'runtime_failed',
      message: expect.stringContaining('the storage of a session here is 8 MiB'),
    });
    await sh('rm -rf too-large');
  });

  it('uses the host network only where the node allows it', async () => {
    await expect(bench.start('bubblewrap', { network: 'host' })).rejects.toMatchObject({ code: 'unsupported' });
    const open = await Workbench.open({ allowHostNetwork: true });
    const sharing = await open.start('bubblewrap', { network: 'host' });
    const command = fetchScript(`http://127.0.0.1:${controlPort}/`);
    expect((await sharing.exec({ command }, never)).stdout).toBe('control\n');
    await sharing.stop();
    await open.close();
  });

  it.each(['relative', '/work/../etc', '/usr/local', '/', '/proc/1'])('refuses %s as a workdir', async (workdir) => {
    await expect(bench.start('bubblewrap', { workdir })).rejects.toMatchObject({ code: 'schema_violation' });
  });

  it('has a read-only mount at the requested path', async () => {
    const hostPath = join(bench.dir, 'tools');
    mkdirSync(hostPath);
    writeFileSync(join(hostPath, 'tool'), 'content');
    const mounted = await bench.start('bubblewrap', {}, { readOnlyMounts: [{ hostPath, sandboxPath: '/opt/tools' }] });
    const result = await mounted.exec({ command: 'cat /opt/tools/tool; echo x > /opt/tools/tool' }, never);
    expect(result.stdout).toBe('content');
    expect(result.stderr).toContain('Read-only file system');
    await mounted.stop();
  });

  it('leaves no process, mount, directory or file after it is stopped', async () => {
    const mountsBefore = hostMounts(bench.dir);
    const others = await bench.sessionDirs();
    const session = await bench.start('bubblewrap');
    const [name = ''] = (await bench.sessionDirs()).filter((dir) => !others.includes(dir));
    const own = join(bench.stateDir, name);
    expect(await processesThatMount(own)).not.toEqual([]);
    await session.exec({ command: '(setsid sleep 1000 &); echo x > /work/x' }, never);
    await session.stop();
    expect(await bench.sessionDirs()).toEqual(others);
    expect(hostMounts(bench.dir)).toEqual(mountsBefore);
    expect(await processesThatMount(own)).toEqual([]);
  });
});

/**
 * Returns the mounts of the host without the mounts of other tests that run at the same time: disks and container engines below the temporary
 * directory. `own` is the directory of this test.
 */
function hostMounts(own: string): string[] {
  const lines = readFileSync('/proc/self/mountinfo', 'utf8').split('\n');
  return lines.filter((line) => !line.includes(` ${tmpdir()}/`) || line.includes(own));
}
