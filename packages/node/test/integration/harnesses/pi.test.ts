import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { agentSpecSchema, type RuntimeBackend } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf, itIf } from '../../../../../test/skip.ts';
import { bubblewrapMissing, never, Workbench } from '../../../../sandbox/test/backends/workbench.ts';
import { harnessInstallDir, harnessStatus, installHarness } from '../../../src/harnesses/install/install.ts';
import { findHarness } from '../../../src/harnesses/registry.ts';

const pi = findHarness('pi');
const ownCache = process.env.FLOE_TEST_HARNESS_DIR === undefined;
/**
 * Directory of the harness installation. It is kept between test runs when FLOE_TEST_HARNESS_DIR is set, because an installation takes 10 s
 * and 350 MB.
 */
const cacheDir = process.env.FLOE_TEST_HARNESS_DIR ?? mkdtempSync(join(tmpdir(), 'floe-harness-'));
const log = (): void => {};

let piMissing: string | null = null;
// Installs pi twice concurrently, because two gateways on one machine may do so.
const installed = await Promise.all([
  installHarness('pi', { cacheDir, log }),
  installHarness('pi', { cacheDir, log }),
]).catch((error: Error) => {
  piMissing = `pi cannot be installed: floe harness install pi (${error.message})`;
  return null;
});
const bubblewrap = await bubblewrapMissing();

afterAll(() => {
  if (ownCache) rmSync(cacheDir, { recursive: true, force: true });
});

it('the error for a harness that is not installed contains the command that installs it', async () => {
  const empty = mkdtempSync(join(tmpdir(), 'floe-none-'));
  expect(await harnessStatus('pi', empty)).toEqual({ installed: false, path: null });
  await expect(harnessInstallDir(pi, empty)).rejects.toMatchObject({
    code: 'harness_missing',
    details: { command: 'floe harness install pi' },
  });
  expect(await harnessInstallDir(findHarness('shell'), empty)).toBeNull();
  expect(await installHarness('shell', { cacheDir: empty, log })).toBeNull();
  await expect(installHarness('nope', { cacheDir: empty, log })).rejects.toMatchObject({ code: 'unknown_harness' });
  rmSync(empty, { recursive: true });
});

it('the lock file names no host and has a digest for every package', () => {
  const lock = JSON.parse(readFileSync('packages/node/harness-locks/pi/package-lock.json', 'utf8'));
  const packages = Object.entries<{ resolved?: string; integrity?: string }>(lock.packages).filter(
    ([path]) => path !== '',
  );
  expect(packages.length).toBeGreaterThan(100);
  for (const [path, entry] of packages) {
    expect(entry.resolved, path).toBeUndefined();
    expect(entry.integrity, path).toMatch(/^sha512-/);
  }
});

type Turn = { readonly text?: string; readonly tool?: string };
type Seen = {
  readonly path: string;
  readonly key: string | undefined;
  readonly body: { messages: { role: string }[] };
};

/**
 * Returns the request handler of a model server of the OpenAI chat dialect. It answers the calls with the messages of the script in order,
 * and adds each request to `seen`.
 */
function scriptedModel(script: readonly Turn[], seen: Seen[]) {
  return (request: IncomingMessage, response: ServerResponse): void => {
    let text = '';
    request.on('data', (chunk) => {
      text += chunk;
    });
    request.on('end', () => {
      const turn = script[seen.length];
      seen.push({ path: request.url ?? '', key: request.headers.authorization, body: JSON.parse(text) });
      if (turn === undefined) {
        response.writeHead(400, { 'content-type': 'application/json' }).end('{"error":{"message":"script is over"}}');
        return;
      }
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const send = (delta: object, finish_reason: string | null = null): void => {
        const choices = [{ index: 0, delta, finish_reason }];
        response.write(
          `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'policy', choices })}\n\n`,
        );
      };
      send({ role: 'assistant', content: turn.text ?? '' });
      if (turn.tool !== undefined) {
        const call = { name: 'bash', arguments: JSON.stringify({ command: turn.tool }) };
        send({ tool_calls: [{ index: 0, id: `call_${seen.length}`, type: 'function', function: call }] });
      }
      send({}, turn.tool === undefined ? 'stop' : 'tool_calls');
      response.end('data: [DONE]\n\n');
    });
  };
}

describe.each<RuntimeBackend>(['bubblewrap', 'local'])('pi in the %s runtime', (backend) => {
  describeIf(piMissing ?? (backend === 'bubblewrap' ? bubblewrap : null), 'unchanged', () => {
    let bench: Workbench;
    beforeAll(async () => {
      bench = await Workbench.open();
    });
    afterAll(() => bench.close());

    async function run(script: readonly Turn[]) {
      const seen: Seen[] = [];
      const hostPath = installed?.[0] ?? '';
      const socketPath = join(bench.dir, 'p.sock');
      const servers = [createServer(scriptedModel(script, seen)), createServer(scriptedModel(script, seen))] as const;
      await new Promise<void>((resolve) => servers[0].listen(socketPath, resolve));
      await new Promise<void>((resolve) => servers[1].listen(0, '127.0.0.1', resolve));
      const tcpOrigin = `http://127.0.0.1:${(servers[1].address() as AddressInfo).port}`;
      const readOnlyMounts = [{ hostPath, sandboxPath: '/opt/harness' }];
      const runtime = await bench.start(backend, {}, { proxy: { socketPath, tcpOrigin }, readOnlyMounts });
      const launch = pi.launch({
        instruction: '- write "done" to out.txt',
        agent: agentSpecSchema.parse({ harness: 'pi' }),
        skills: [],
        baseUrl: `${runtime.proxyOrigin}/s/the-key`,
        apiKey: 'the-key',
        contextWindow: 32_768,
        paths: runtime.paths,
        toolServer: { command: runtime.mcpCommand, env: {} },
        installDir: backend === 'local' ? hostPath : '/opt/harness',
      });
      await runtime.writeFiles(launch.files, never);
      const { command, env, stdin } = launch;
      const result = await runtime.exec({ command, env, stdin, withProxy: true }, never);
      const written = (await runtime.readFile('out.txt', 100, never))?.toString();
      const logs = await runtime.exec({ command: ['ls', `${runtime.paths.logs}/pi`] }, never);
      await runtime.stop();
      await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
      return { result, seen, written, logs: logs.stdout, verdict: pi.judge({ ...result, turns: seen.length }) };
    }

    it('calls the model, runs its tools in the sandbox and ends successfully', async () => {
      const { result, seen, written, logs, verdict } = await run([{ tool: 'echo done > out.txt' }, { text: 'Done.' }]);
      expect(result.stderr).toBe('');
      expect(result.exitCode).toBe(0);
      expect(verdict).toEqual({ ok: true });
      expect(written).toBe('done\n');
      expect(logs).toMatch(/\.jsonl/);
      expect(seen.map(({ path, key }) => [path, key])).toEqual(
        Array(2).fill(['/s/the-key/v1/chat/completions', 'Bearer the-key']),
      );
      expect(JSON.stringify(seen[0]?.body.messages)).toContain('- write \\"done\\" to out.txt');
      expect(seen[1]?.body.messages.at(-1)?.role).toBe('tool');
    });

    it('fails when the model request is refused, even with exit code 0', async () => {
      const { result, verdict } = await run([]);
      expect(result.exitCode).toBe(0);
      expect(verdict).toMatchObject({ ok: false, message: expect.stringContaining('script is over') });
    });
  });
});

itIf(piMissing, 'two concurrent installations result in one complete installation and no other files', () => {
  const [first, second] = installed ?? [];
  expect(first).toBe(second);
  expect(readdirSync(join(cacheDir, 'pi'))).toHaveLength(1);
  expect(existsSync(join(first ?? '', 'node'))).toBe(true);
});
