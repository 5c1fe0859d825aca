import { mkdirSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import type { RuntimeBackend, RuntimeSpec } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import type { ExecRequest, Runtime } from '@floe-rl/sandbox';
import { never, processesMentioning, type Workbench } from '../../../sandbox/test/backends/workbench.ts';
import { PrewarmedRuntimes } from '../../src/gateway/session/prewarmed-runtimes.ts';
import { proxySocketsIn } from '../../src/gateway/session/proxy-sockets.ts';
import type { ReusableRuntime } from '../../src/gateway/session/reusable-runtime.ts';
import { ReusedRuntimes, type ReuseEvent } from '../../src/gateway/session/reused-runtimes.ts';
import { Sandboxes, StartLimits } from '../../src/gateway/session/sandbox.ts';

/** A session in a sandbox that other sessions use before or after it. */
type Session = { readonly reusable: ReusableRuntime; readonly runtime: Runtime; readonly egress: Server | null };

/** Makes a pool with the sandboxes of one back end, and functions that begin and end sessions. */
export function pool(bench: Workbench, backend: RuntimeBackend) {
  const events: ReuseEvent[] = [];
  const reused = new ReusedRuntimes({
    clock: systemClock,
    log: silentLogger,
    maxCount: 4,
    maxMb: 100_000,
    idleMs: 600_000,
    sockets: proxySocketsIn(join(bench.dir, 's')),
    openEgress: async (spec, socketPath) => {
      if (spec.network === 'none') return null;
      const server = await serve(socketPath, 'reset');
      return { close: () => closed(server) };
    },
    onEvent: (event) => events.push(event),
  });
  const sandboxes = new Sandboxes({
    providers: new Map([[backend, bench.provider(backend)]]),
    defaultBackend: backend,
    allowLocal: true,
    uploadRoots: [],
    startLimits: new StartLimits({}),
  });
  const begin = async (spec: RuntimeSpec): Promise<Session> => {
    const request = { name: '', spec, proxy: null, readOnlyMounts: [] };
    const shared = await sandboxes.reuseRequest(request);
    if (shared === null) throw new Error('the task does not reuse sandboxes');
    const reusable = await reused.take(shared, () => {}, never);
    const { socketPath, egressPath } = reusable.place;
    const proxy = { socketPath, tcpOrigin: 'http://127.0.0.1:1' };
    const egressSocket = spec.network === 'none' ? null : egressPath;
    const egress = egressSocket === null ? null : await serve(egressSocket, `egress ${reusable.uses + 1}`);
    const runtime = await reusable.open(
      async (own) => {
        const permit = await sandboxes.awaitPermit(spec, never);
        return sandboxes.start({ ...request, proxy, egressSocket, ...own }, spec.prepare, permit, never);
      },
      {},
      never,
    );
    reused.recordUse(reusable);
    return { reusable, runtime, egress };
  };
  const end = async ({ reusable, runtime, egress }: Session): Promise<void> => {
    await runtime.stop();
    if (egress !== null) await closed(egress);
    reused.giveBack(reusable);
  };
  return { reused, begin, end, events };
}

/** Keeps one sandbox of a back end ready, and lets a session get it. */
export async function prewarm(bench: Workbench, backend: RuntimeBackend, spec: RuntimeSpec) {
  const sockets = join(bench.dir, 'w');
  mkdirSync(sockets);
  const sandboxes = new Sandboxes({
    providers: new Map([[backend, bench.provider(backend)]]),
    defaultBackend: backend,
    allowLocal: false,
    uploadRoots: [],
    startLimits: new StartLimits({}),
  });
  let onStart = (): void => {};
  const started = new Promise<void>((resolve) => {
    onStart = resolve;
  });
  const prewarmed = new PrewarmedRuntimes({
    ...{ clock: systemClock, log: silentLogger, count: 1, maxMb: 100_000, idleMs: 600_000 },
    sockets: proxySocketsIn(sockets),
    sandboxes: {
      awaitPermit: (of, signal) => sandboxes.awaitPermit(of, signal),
      start: (...args) => sandboxes.start(...args).finally(() => setImmediate(onStart)),
    },
    openEgress: async () => null,
  });
  const proxy = { socketPath: 'own', tcpOrigin: 'http://127.0.0.1:1' };
  const request = { name: 'own', spec, proxy, readOnlyMounts: [] };
  prewarmed.replenish(request);
  await started;
  const warm = await prewarmed.take(request, never);
  if (warm === null) throw new Error('no sandbox is ready');
  return { prewarmed, warm };
}

export async function output(runtime: Runtime, command: string, more: Partial<ExecRequest> = {}): Promise<string> {
  const { stdout, stderr } = await runtime.exec({ command, ...more }, never);
  return stdout + stderr;
}

/** Listens at a Unix socket and answers each request with the text. */
export async function serve(path: string, text: string): Promise<Server> {
  const server = createServer((_, response) => response.end(text));
  await new Promise<void>((resolve) => server.listen(path, resolve));
  return server;
}

export function closed(server: Server): Promise<void> {
  return new Promise((resolve) => server.close(() => resolve()));
}

/** Returns the processes in whose sandboxes commands with the text run. */
export async function servicesWith(text: string): Promise<string[]> {
  return (await processesMentioning(text)).filter((line) => line.includes(' bwrap '));
}

export const ask = (runtime: Runtime, origin: string): Promise<string> => {
  const script = `fetch('${origin}').then(async (r) => console.log(await r.text()), (e) => console.log('failed', e.cause?.code))`;
  return output(runtime, `node -e "${script}"`, { withProxy: origin === runtime.proxyOrigin });
};
