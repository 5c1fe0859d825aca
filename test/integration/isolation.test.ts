import { readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { describeIf } from '../skip.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

/**
 * Returns a shell command that tries to break out of the sandbox as a hostile agent may do. Each line of its output is `probe <name>
 * <result>`.
 */
function probes(target: { serverPort: number; proxyPort: number; hostPort: number; stateDir: string }): string {
  const script = `
const net = require('node:net');
const fs = require('node:fs');
const tcp = (host, port) => new Promise((done) => {
  const socket = net.connect({ host, port, timeout: 2000 });
  socket.on('connect', () => { socket.destroy(); done('OPEN'); });
  socket.on('timeout', () => { socket.destroy(); done('timeout'); });
  socket.on('error', (error) => done(error.code));
});
const read = (path) => { try { fs.readdirSync(path); return 'READ'; } catch (error) { if (error.code === 'ENOTDIR') { try { fs.readFileSync(path); return 'READ'; } catch (inner) { return inner.code; } } return error.code; } };
const write = (path) => { try { fs.writeFileSync(path, 'x'); return 'WRITTEN'; } catch (error) { return error.code; } };
(async () => {
  const own = new URL(process.env.OPENAI_BASE_URL);
  const report = (name, result) => console.log('probe', name, result);
  report('own-proxy', await tcp(own.hostname, Number(own.port)));
  report('control-api', await tcp('127.0.0.1', ${target.serverPort}));
  report('tcp-proxy', await tcp('127.0.0.1', ${target.proxyPort}));
  report('host-service', await tcp('127.0.0.1', ${target.hostPort}));
  report('metadata', await tcp('169.254.169.254', 80));
  report('internet', await tcp('1.1.1.1', 443));
  report('interfaces', Object.keys(require('node:os').networkInterfaces()).join('+'));
  report('state-dir', read(${JSON.stringify(target.stateDir)}));
  report('root-home', read('/root'));
  report('shadow', read('/etc/shadow'));
  report('sys', read('/sys/class/net'));
  report('home-of-host', read('/home/' + 'nobody'));
  report('write-usr', write('/usr/bin/floe-escape'));
  report('write-etc', write('/etc/floe-escape'));
  report('processes', fs.readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name)).length < 12 ? 'few' : 'MANY');
  const strange = await fetch(own.origin + '/s/' + 'A'.repeat(43) + '/v1/models').then((reply) => reply.status, (error) => error.message);
  report('other-key', strange);
  const mine = await fetch(process.env.OPENAI_BASE_URL + '/models', { headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY } }).then((reply) => reply.status, (error) => error.message);
  report('own-key', mine);
  await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' }, body: JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'hi' }] }) });
})();`;
  return `cat > probe.cjs <<'PROBE'\n${script}\nPROBE\nnode probe.cjs`;
}

function suite(): void {
  let stack: TestStack;
  const hostService = createServer((_, reply) => reply.end('host'));
  let found: Map<string, string>;
  let result: SessionResult;

  beforeAll(async () => {
    await new Promise<void>((resolve) => hostService.listen(0, '127.0.0.1', resolve));
    stack = await startTestStack({ node: { default_backend: 'bubblewrap' } });
    const [first] = await stack.run({
      instruction: 'Escape.',
      max_attempts: 1,
      agent: {
        harness: 'shell',
        custom_shell: probes({
          serverPort: Number(new URL(stack.serverUrl).port),
          proxyPort: Number(new URL(stack.node.proxyOrigin).port),
          hostPort: (hostService.address() as AddressInfo).port,
          stateDir: stack.dir,
        }),
      },
    });
    result = first as SessionResult;
    const lines = (result.agent?.stdout_tail ?? '').split('\n').filter((line) => line.startsWith('probe '));
    found = new Map(lines.map((line) => [line.split(' ')[1] as string, line.split(' ').slice(2).join(' ')]));
  });
  afterAll(async () => {
    await stack.close();
    hostService.close();
  });

  it('runs every probe', () => {
    expect({ outcome: result.outcome, error: result.error, stderr: result.agent?.stderr_tail }).toMatchObject({
      outcome: 'completed',
    });
    expect(found.size).toBe(17);
  });

  it('reaches its own proxy, and only with its own key', () => {
    expect(found.get('own-proxy')).toBe('OPEN');
    expect(found.get('own-key')).toBe('200');
    expect(Number(found.get('other-key'))).toBeGreaterThanOrEqual(400);
  });

  it.each(['control-api', 'tcp-proxy', 'host-service', 'metadata', 'internet'])('has no route to %s', (probe) => {
    expect(found.get(probe)).toMatch(/^(ECONNREFUSED|ENETUNREACH|EHOSTUNREACH|timeout)$/);
  });

  it.each(['state-dir', 'root-home', 'shadow', 'sys', 'home-of-host'])('cannot read %s of the host', (probe) => {
    expect(found.get(probe)).toMatch(/^(ENOENT|EACCES)$/);
  });

  it.each(['write-usr', 'write-etc'])('cannot %s', (probe) => {
    expect(found.get(probe)).toMatch(/^(EROFS|EACCES|EPERM)$/);
  });

  it('sees only its own processes and the loopback interface', () => {
    expect(found.get('processes')).toBe('few');
    expect(found.get('interfaces')).toBe('lo');
  });

  it('has a system call filter, and so has the fresh runtime in which its work is tested', async () => {
    const test = "grep -q '^Seccomp:.2$' /proc/self/status && echo PASSED filter";
    const commit = 'git -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m start';
    const [tested] = await stack.run({
      instruction: 'Work.',
      max_attempts: 1,
      runtime: { prepare: [{ type: 'exec', command: `git init -q && ${commit}` }] },
      agent: { harness: 'shell', custom_shell: `${oneCall('hi')}; grep Seccomp: /proc/self/status` },
      evaluator: {
        strategy: 'test_on_output',
        refresh_runtime: true,
        config: { test_command: test, expected_output_json: { filter: 'PASSED' } },
      },
    });
    expect(tested?.agent?.stdout_tail).toContain('Seccomp:\t2');
    expect(tested).toMatchObject({ outcome: 'completed', reward: 1 });
  });

  it('leaves no directory or socket', () => {
    const left = ['sessions', 'sockets'].flatMap((part) => readdirSync(join(stack.dir, 'gateway', part)));
    expect(left.filter((name) => name.includes(result.session_id.slice(-12)))).toEqual([]);
  });
}

describeIf(await bubblewrapMissing(), 'inside the bubblewrap sandbox', suite);
