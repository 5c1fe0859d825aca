import { chmodSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { runtimeBackendSchema, runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import { type ContainerBench, missingBackends, openWorkbench } from '../../backends/container-bench.ts';
import { never, processesMentioning, uniqueSeconds, type Workbench } from '../../backends/workbench.ts';

const missing = await missingBackends();
/** Programs that the commands of the tests use, in addition to the programs of every image. */
const PROGRAMS = [
  ...[
    'bash',
    'chmod',
    'env',
    'find',
    'ln',
    'mkfifo',
    'mv',
    'node',
    'printf',
    'readlink',
    'rm',
    'seq',
    'setsid',
    'sleep',
    'sort',
  ],
  ...['stat', 'tr', 'xargs', 'yes'],
];

describe.each(runtimeBackendSchema.options)('the %s runtime', (backend) => {
  describeIf(missing[backend], 'as every back end', () => {
    let opened: ContainerBench;
    let bench: Workbench;
    let start: Workbench['start'];
    let runtime: Runtime;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
      ({ bench, start } = opened);
      runtime = await start(backend, { env: { FROM_SPEC: 'spec' }, max_output_mb: 0.001 });
    }, 120_000);
    afterAll(async () => {
      await runtime?.stop();
      await opened?.close();
    });
    const sh = (command: string) => runtime.exec({ command }, never);

    it('reports no problem on this host', async () => {
      expect(await bench.provider(backend).probe()).toBeNull();
    });

    it('returns exit code, output and errors of a command', async () => {
      const result = await sh('echo out; echo err >&2; exit 7');
      expect(result).toMatchObject({ exitCode: 7, signal: null, stdout: 'out\n', stderr: 'err\n', killedBy: null });
      expect(result.droppedBytes).toBe(0);
    });

    it('runs a list without a shell', async () => {
      const result = await runtime.exec({ command: ['printf', '%s|', '$HOME', 'a b'] }, never);
      expect(result.stdout).toBe('$HOME|a b|');
    });

    it('reports a command that does not exist with exit code 127', async () => {
      const result = await runtime.exec({ command: ['no-such-program'] }, never);
      expect(result.exitCode).toBe(127);
      expect(result.stderr).toContain('no-such-program');
    });

    it('reports the signal that ended a command', async () => {
      expect(await sh('kill -TERM $$')).toMatchObject({ exitCode: null, signal: 'SIGTERM', killedBy: null });
    });

    it('feeds stdin and closes it', async () => {
      const stdin = 'first\nsecond\n'.repeat(20);
      const result = await runtime.exec({ command: 'wc -l', stdin }, never);
      expect(result.stdout.trim()).toBe('40');
    });

    it('starts a command in the workdir or in the requested directory', async () => {
      expect((await sh('pwd')).stdout.trim()).toBe(runtime.paths.workdir);
      await sh('mkdir -p sub');
      const below = await runtime.exec({ command: 'pwd', cwd: 'sub' }, never);
      expect(below.stdout.trim()).toBe(`${runtime.paths.workdir}/sub`);
    });

    it('rejects a working directory that does not exist', async () => {
      const running = runtime.exec({ command: 'true', cwd: '/no/such/dir' }, never);
      await expect(running).rejects.toMatchObject({ code: 'workdir_missing', details: { path: '/no/such/dir' } });
    });

    it("builds the environment from the spec and the request, without the gateway's variables", async () => {
      process.env.FLOE_TEST_SECRET = 'must not leak';
      const result = await runtime.exec({ command: 'env', env: { FROM_EXEC: 'line1\nline2' } }, never);
      delete process.env.FLOE_TEST_SECRET;
      expect(result.stdout).toContain('FROM_SPEC=spec\n');
      expect(result.stdout).toContain('FROM_EXEC=line1\nline2\n');
      expect(result.stdout).toContain(`HOME=${runtime.paths.home}\n`);
      expect(result.stdout).not.toContain('must not leak');
    });

    it.each([
      ['a NUL in a value', { A: 'x\0--bind\0/\0/host' }],
      ['an equals sign in a name', { 'A=B': 'x' }],
    ])('refuses %s', async (_what, env) => {
      await expect(runtime.exec({ command: 'true', env }, never)).rejects.toMatchObject({ code: 'schema_violation' });
    });

    it('keeps the first and the last half of a long output and counts the rest', async () => {
      const result = await sh('echo begin; yes middle | head -c 100000; echo end');
      expect(result.stdout).toMatch(/^begin\n/);
      expect(result.stdout).toMatch(/end\n$/);
      expect(result.stdout.length + result.droppedBytes).toBe(100_000 + 'begin\nend\n'.length);
      expect(result.stdout.length).toBe(Math.floor(0.001 * 1024 * 1024));
    });

    it('leaves no background process after its command', async () => {
      const [plain, detached] = [uniqueSeconds(), uniqueSeconds()];
      await sh(`sleep ${plain} >/dev/null 2>&1 & setsid sleep ${detached} </dev/null >/dev/null 2>&1 & echo started`);
      expect(await processesMentioning(plain)).toEqual([]);
      expect(await processesMentioning(detached)).toEqual([]);
    });

    it('does not report the output of a service as activity', async () => {
      let count = 0;
      const watched = await start(backend, {}, { onActivity: () => count++ });
      await watched.exec({ command: 'echo out', isService: true }, never);
      // One call for the start of each command and one for its end.
      expect(count).toBe(2);
      await watched.exec({ command: 'echo out' }, never);
      expect(count).toBe(5);
      await watched.stop();
    });

    it('kills every process when the signal aborts and rejects with its reason', async () => {
      const seconds = uniqueSeconds();
      const controller = new AbortController();
      const reason = new Error('enough');
      const running = runtime.exec({ command: `setsid sleep ${seconds} & trap '' TERM INT; wait` }, controller.signal);
      controller.abort(reason);
      await expect(running).rejects.toBe(reason);
      expect(await processesMentioning(seconds)).toEqual([]);
    });

    it('rejects without running the command when the signal has already aborted', async () => {
      const reason = new Error('too late');
      await expect(runtime.exec({ command: 'true' }, AbortSignal.abort(reason))).rejects.toBe(reason);
    });

    it('writes files with parents, modes, long and non-ASCII names, and reads them back', async () => {
      const long = `deep/${'n'.repeat(120)}/file`;
      const content = Buffer.from([0, 255, 10, 13, 0]);
      const files = [
        { path: long, content },
        { path: `${runtime.paths.home}/tool`, content: '#!/bin/sh\necho ran\n', mode: 0o755 },
        { path: 'empty', content: '' },
        { path: 'ä/漢字', content: 'non-ASCII' },
      ];
      await runtime.writeFiles(files, never);
      expect(await runtime.readFile(long, 100, never)).toEqual(content);
      expect(await runtime.readFile('empty', 0, never)).toEqual(Buffer.alloc(0));
      expect((await runtime.readFile('ä/漢字', 100, never))?.toString()).toBe('non-ASCII');
      const result = await runtime.exec({ command: [`${runtime.paths.home}/tool`] }, never);
      expect(result.stdout).toBe('ran\n');
    });

    it('replaces an existing file, even a read-only one', async () => {
      await sh('echo old > twice; chmod 400 twice');
      await runtime.writeFiles([{ path: 'twice', content: 'new' }], never);
      expect((await runtime.readFile('twice', 10, never))?.toString()).toBe('new');
    });

    it('rejects with an error code where a folder or a file is in the way of a file', async () => {
      await sh('mkdir -p way/full; touch way/full/x blocker');
      for (const path of ['way/full', 'blocker/below', 'blocker/far/below']) {
        await expect(runtime.writeFiles([{ path, content: 'new' }], never)).rejects.toMatchObject({
          code: 'runtime_failed',
        });
      }
      expect((await sh('echo works')).stdout).toBe('works\n');
    });

    it('returns null where there is no regular file and never waits for a FIFO', async () => {
      await sh('mkfifo pipe; mkdir -p folder');
      for (const path of ['absent', 'pipe', 'folder', '/dev/zero']) {
        expect(await runtime.readFile(path, 10, never)).toBeNull();
      }
    });

    it('rejects a file that is larger than allowed', async () => {
      await sh('head -c 11 /dev/zero > eleven');
      expect(await runtime.readFile('eleven', 11, never)).toHaveLength(11);
      await expect(runtime.readFile('eleven', 10, never)).rejects.toMatchObject({ code: 'runtime_failed' });
    });

    it('uploads a directory with its links as links', async () => {
      const source = join(bench.dir, 'upload');
      mkdirSync(join(source, 'sub dir'), { recursive: true });
      writeFileSync(join(source, 'sub dir', '-odd name\n'), 'content');
      writeFileSync(join(source, 'run'), '#!/bin/sh\necho uploaded\n');
      chmodSync(join(source, 'run'), 0o755);
      symlinkSync('/etc/hostname', join(source, 'link'));
      chmodSync(bench.dir, 0o755);
      await runtime.uploadDir(source, 'up', never);
      expect((await runtime.readFile('up/sub dir/-odd name\n', 100, never))?.toString()).toBe('content');
      expect((await sh('readlink up/link; up/run')).stdout).toBe('/etc/hostname\nuploaded\n');
    });

    it('rejects when a directory cannot be uploaded', async () => {
      const upload = runtime.uploadDir(join(bench.dir, 'absent'), 'x', never);
      await expect(upload).rejects.toMatchObject({ code: 'runtime_failed' });
    });

    it('leaves no process or directory after it is stopped, also when stopped twice', async () => {
      const other = await start(backend);
      const seconds = uniqueSeconds();
      const running = other.exec({ command: `sleep ${seconds}` }, never);
      const rejected = expect(running).rejects.toMatchObject({ code: 'runtime_failed' });
      await Promise.all([other.stop(), other.stop()]);
      await rejected;
      expect(await processesMentioning(seconds)).toEqual([]);
      expect(await bench.sessionDirs()).toHaveLength(1);
      await expect(other.exec({ command: 'true' }, never)).rejects.toMatchObject({ code: 'runtime_failed' });
    });

    it('leaves no directory when its start is aborted', async () => {
      const reason = new Error('changed my mind');
      const controller = new AbortController();
      const request = {
        name: 'aborted',
        spec: runtimeSpecSchema.parse({ image: opened.image }),
        proxy: null,
        readOnlyMounts: [],
      };
      const starting = bench.provider(backend).start(request, controller.signal);
      controller.abort(reason);
      await expect(starting).rejects.toBe(reason);
      expect(await bench.sessionDirs()).toHaveLength(1);
    });

    it('ends a fork bomb and no other command', async () => {
      const bomb = await start(backend, { max_processes: 40 });
      const result = await bomb.exec({ command: ['bash', '-c', 'while :; do sleep 30 & done 2>/dev/null'] }, never);
      expect(result.killedBy).toBe('processes');
      expect((await bomb.exec({ command: 'echo still here' }, never)).stdout).toBe('still here\n');
      expect((await sh('echo me too')).stdout).toBe('me too\n');
      await bomb.stop();
    });

    it('counts processes that have outlived their parents towards the limit', async () => {
      // The local back end finds these processes only at the end of their command.
      if (backend === 'local') return;
      const bomb = await start(backend, { max_processes: 40 });
      const orphans = 'for i in $(seq 60); do (setsid sleep 30 &); done 2>/dev/null; sleep 30';
      expect((await bomb.exec({ command: ['bash', '-c', orphans] }, never)).killedBy).toBe('processes');
      expect((await bomb.exec({ command: 'echo still here' }, never)).stdout).toBe('still here\n');
      await bomb.stop();
    });

    it('ends a command that takes too much memory and no other command', async () => {
      const hungry = await start(backend, { memory_mb: 64 });
      const eat = 'a=$(head -c 1000000 /dev/zero | tr "\\0" x); while :; do a=$a$a; done';
      const result = await hungry.exec({ command: `${eat}` }, never);
      expect(result).toMatchObject({ killedBy: 'memory', exitCode: null });
      expect((await hungry.exec({ command: 'echo still here' }, never)).stdout).toBe('still here\n');
      await hungry.stop();
    });

    it('limits the size of a file', async () => {
      const small = await start(backend, { max_file_mb: 1 });
      const result = await small.exec({ command: 'head -c 3000000 /dev/zero > big; wc -c < big' }, never);
      expect(result.stdout.trim()).toBe(String(1024 * 1024));
      await small.stop();
    });

    it('keeps memory bounded under a flood of output', async () => {
      const result = await sh('head -c 400000000 /dev/zero');
      expect(result.stdout.length + result.droppedBytes).toBe(400_000_000);
      if (process.platform !== 'linux') return;
      const status = readFileSync(`/proc/${bench.spawner.helperPid}/status`, 'utf8');
      expect(Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1])).toBeLessThan(200_000);
    });

    describe('with snapshots', () => {
      const read = async (from: Runtime): Promise<string> =>
        (await from.exec({ command: 'find . -type f | sort | xargs cat' }, never)).stdout;

      if (backend === 'local') {
        it('rejects with the code of a feature that it lacks', async () => {
          await expect(runtime.snapshot(never)).rejects.toMatchObject({ code: 'unsupported' });
          const { capabilities } = await bench.provider(backend).describe();
          expect(capabilities.snapshots).toEqual({ method: 'none', files: null });
        });
        return;
      }

      it('restores changed, removed and added files and directories of the workdir, more than once', async () => {
        const own = await start(backend);
        await own.exec(
          { command: 'mkdir -p d/e; echo one >a; echo two >d/b; chmod 750 d; ln -s a l; echo x >d/e/c' },
          never,
        );
        const snapshot = await own.snapshot(never);
        expect(snapshot.bytes).toBeGreaterThan(0);
        for (let round = 0; round < 3; round += 1) {
          expect(await read(own)).toBe('one\ntwo\nx\n');
          const shown = await own.exec({ command: 'stat -c %a d; readlink l; ls -A d/e' }, never);
          expect(shown.stdout).toBe('750\na\nc\n');
          await own.exec({ command: 'echo changed >a; rm -r d; mkdir d; echo new >d/new; ln -sf /etc l' }, never);
          await own.writeFiles([{ path: 'written', content: 'by the host' }], never);
          expect(await read(own)).toBe('changed\nnew\nby the host');
          await own.restore(snapshot, never);
          expect(await own.readFile('a', 100, never)).toEqual(Buffer.from('one\n'));
          expect(await own.readFile('written', 100, never)).toBeNull();
        }
        await snapshot.release();
        expect(await read(own)).toBe('one\ntwo\nx\n');
        await expect(own.restore(snapshot, never)).rejects.toMatchObject({ code: 'runtime_failed' });
        await own.stop();
      });

      it('restores another sandbox, which then changes neither the snapshot nor the first one', async () => {
        const [one, two] = [await start(backend), await start(backend)];
        await one.exec({ command: 'echo one >a' }, never);
        await two.exec({ command: 'echo two >a; echo rest >b' }, never);
        const snapshot = await one.snapshot(never);
        await one.exec({ command: 'echo later >a' }, never);
        await two.restore(snapshot, never);
        expect(await read(two)).toBe('one\n');
        await one.stop();
        await two.exec({ command: 'echo changed >a; mkdir d; mv a d; chmod 000 d' }, never);
        await two.restore(snapshot, never);
        expect(await read(two)).toBe('one\n');
        await two.writeFiles([{ path: 'tool', content: '#!/bin/sh\necho ran\n', mode: 0o755 }], never);
        expect((await two.exec({ command: './tool' }, never)).stdout).toBe('ran\n');
        await snapshot.release();
        await two.stop();
        expect(await bench.sessionDirs()).toHaveLength(1);
      });

      it('takes a snapshot of restored files', async () => {
        const own = await start(backend);
        await own.exec({ command: 'mkdir d; echo 1 >d/a; echo 1 >keep' }, never);
        const first = await own.snapshot(never);
        await own.exec({ command: 'rm -r d; mkdir d; echo 2 >d/b' }, never);
        const second = await own.snapshot(never);
        await own.exec({ command: 'echo 3 >d/c; rm keep' }, never);
        await own.restore(second, never);
        expect((await own.exec({ command: 'ls d; cat keep d/b' }, never)).stdout).toBe('b\n1\n2\n');
        await first.release();
        await own.restore(second, never);
        expect((await own.exec({ command: 'ls d; cat keep d/b' }, never)).stdout).toBe('b\n1\n2\n');
        await second.release();
        await own.stop();
      });

      it('takes no snapshot while a command runs, and ends commands and tools when it restores', async () => {
        const own = await start(backend);
        await own.exec({ command: 'echo one >a; mkfifo up' }, never);
        const snapshot = await own.snapshot(never);
        const seconds = uniqueSeconds();
        const running = own.exec({ command: `echo two >a; (sleep ${seconds}; echo late >a) & echo >up; wait` }, never);
        const rejected = expect(running).rejects.toMatchObject({ code: 'runtime_failed' });
        await own.exec({ command: 'cat up' }, never);
        await expect(own.snapshot(never)).rejects.toMatchObject({ code: 'runtime_failed', details: { busy: true } });
        await own.restore(snapshot, never);
        await rejected;
        expect(await processesMentioning(seconds)).toEqual([]);
        expect(await read(own)).toBe('one\n');
        const tools = await own.openTools(never);
        const shell = tools.shell();
        await shell.run('echo three >a', { timeoutMs: 60_000 }, never);
        await expect(own.snapshot(never)).rejects.toMatchObject({ details: { busy: true } });
        await own.restore(snapshot, never);
        await expect(shell.run('echo four >a', { timeoutMs: 60_000 }, never)).rejects.toBeDefined();
        expect(await read(own)).toBe('one\n');
        await snapshot.release();
        await own.stop();
      });
    });

    describe('with a proxy', () => {
      let server: Server;
      let tcp: Server;
      const socketPath = (): string => join(bench.dir, 'proxy', 's');
      const answer: Parameters<typeof createServer>[1] = (request, response) => {
        let body = '';
        request.on('data', (chunk) => {
          body += chunk;
        });
        request.on('end', () => response.end(`${request.url} ${body.length}`));
      };
      beforeAll(async () => {
        tcp = createServer(answer);
        await new Promise<void>((resolve) => tcp.listen(0, '127.0.0.1', resolve));
        server = createServer(answer);
      });
      afterAll(async () => {
        await Promise.all([server, tcp].map((each) => new Promise((resolve) => each.close(resolve))));
      });

      it('reaches the proxy at its origin and passes on exit code, stdin and environment', async () => {
        const tcpOrigin = `http://127.0.0.1:${(tcp.address() as AddressInfo).port}`;
        mkdirSync(join(bench.dir, 'proxy'));
        const proxied = await start(backend, {}, { proxy: { socketPath: socketPath(), tcpOrigin } });
        // The proxy's socket is created after the sandbox has been started, as in a gateway.
        await new Promise<void>((resolve) => server.listen(socketPath(), resolve));
        const script =
          'const [url] = process.argv.slice(1); let b = ""; process.stdin.on("data", (d) => (b += d)); ' +
          'process.stdin.on("end", async () => { const r = await fetch(url, { method: "POST", body: b }); ' +
          'console.log(await r.text(), process.env.NODE_OPTIONS); process.exit(3); });';
        const command = ['node', '-e', script, `${proxied.proxyOrigin}/s/key/v1`];
        const env = { NODE_OPTIONS: '--max-old-space-size=99' };
        const result = await proxied.exec({ command, stdin: 'x'.repeat(100_000), withProxy: true, env }, never);
        expect(result).toMatchObject({ exitCode: 3, stdout: '/s/key/v1 100000 --max-old-space-size=99\n' });
        const killed = await proxied.exec({ command: 'kill -KILL $$', withProxy: true }, never);
        expect(killed).toMatchObject({ exitCode: null, signal: 'SIGKILL', killedBy: null });
        await proxied.stop();
      });

      if (backend === 'local') return;

      it('reaches the egress proxy from every command, by variables that programs read, and nothing else', async () => {
        const egressSocket = join(bench.dir, 'egress', 's');
        mkdirSync(join(bench.dir, 'egress'));
        const egress = createServer(answer);
        await new Promise<void>((resolve) => egress.listen(egressSocket, resolve));
        const network = { network: 'allowlist', allowed_hosts: ['site.test'] } as const;
        const runtime = await start(backend, network, { egressSocket });
        const script =
          'const url = new URL(process.env.HTTPS_PROXY); const http = require("node:http"); ' +
          'const sent = http.request({ host: url.hostname, port: url.port, path: "http://site.test/a", method: "POST" }, ' +
          '(r) => r.on("data", (d) => console.log(String(d)))); sent.end("hello");';
        const { stdout, stderr } = await runtime.exec({ command: ['node', '-e', script] }, never);
        expect([stdout, stderr]).toEqual(['http://site.test/a 5\n', '']);
        const { stdout: interfaces } = await runtime.exec({ command: 'cat /proc/net/dev' }, never);
        expect([...interfaces.matchAll(/^ *(\S+):/gm)].map(([, name]) => name)).toEqual(['lo']);
        await runtime.stop();
        await new Promise((resolve) => egress.close(resolve));
      });
    });
  });
});
