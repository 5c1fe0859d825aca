import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { sleep, systemClock } from '@floe-rl/core';
import { ContainerEngine, type Owner } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { missingBackends, openWorkbench } from '../../../../../sandbox/test/backends/container-bench.ts';
import {
  never,
  processesThatMount,
  uniqueSeconds,
  untilNone,
  untilSome,
  Workbench,
} from '../../../../../sandbox/test/backends/workbench.ts';
import { openStateDir } from '../../../../src/gateway/recovery/state-dir.ts';

const missing = await missingBackends();

/**
 * Program of a minimal gateway that keeps two sandboxes. A session has used the first, which has a service; the second was started in advance.
 * The program prints a line when both are kept.
 */
const GATEWAY = `
const [packages, dir, backend, image, engineSocket, seconds] = process.argv.slice(1);
const load = (path) => import(packages + '/' + path + '.js');
const { systemClock: clock } = await load('core/dist/clock');
const { silentLogger: log } = await load('observe/dist/log');
const { createSpawner } = await load('sandbox/dist/spawn/client');
const { createRuntimeProviders } = await load('sandbox/dist/backends/providers');
const { runtimeSpecSchema } = await load('core/dist/schema/index');
const { Sandboxes, StartLimits } = await load('node/dist/gateway/session/sandbox');
const { ReusedRuntimes } = await load('node/dist/gateway/session/reused-runtimes');
const { PrewarmedRuntimes } = await load('node/dist/gateway/session/prewarmed-runtimes');
const { proxySocketsIn } = await load('node/dist/gateway/session/proxy-sockets');
const { openStateDir } = await load('node/dist/gateway/recovery/state-dir');

const { signal } = new AbortController();
const spawner = await createSpawner();
const state = await openStateDir(dir, clock);
const owner = { id: state.ownerId, instance: 'dead' };
const providers = createRuntimeProviders({ spawner, clock, stateDir: state.sessions, owner, dockerSocket: engineSocket });
const startLimits = new StartLimits({});
const sandboxes = new Sandboxes({ providers, defaultBackend: backend, allowLocal: false, uploadRoots: [], startLimits });
const sockets = proxySocketsIn(state.sockets);
const openEgress = async () => null;
const limits = { maxMb: 100_000, idleMs: 600_000 };
const reused = new ReusedRuntimes({ clock, log, sockets, openEgress, maxCount: 4, ...limits });
let onWarm = () => {};
const warmed = new Promise((resolve) => { onWarm = resolve; });
const prewarmed = new PrewarmedRuntimes({
  clock, log, sockets, openEgress, count: 1, ...limits,
  sandboxes: {
    awaitPermit: (spec, aborted) => sandboxes.awaitPermit(spec, aborted),
    start: async (...args) => { const runtime = await sandboxes.start(...args); onWarm(); return runtime; },
  },
});

const restore = backend === 'bubblewrap' ? 'all' : 'workdir';
const reuse = { restore, services: ['exec sleep ' + seconds] };
const requestOf = (more) => ({
  name: 'own',
  spec: runtimeSpecSchema.parse({ image: image === '' ? null : image, ...more }),
  proxy: { socketPath: dir + '/own', tcpOrigin: 'http://127.0.0.1:1' },
  readOnlyMounts: [],
});
const request = requestOf({ reuse });
const shared = await sandboxes.reuseRequest(request);
const take = () => reused.take(shared, () => {}, signal);
const first = await take();
const proxy = { ...request.proxy, socketPath: first.place.socketPath };
const start = async (own) =>
  sandboxes.start({ ...request, proxy, ...own }, [], await sandboxes.awaitPermit(request.spec, signal), signal);
await (await first.open(start, {}, signal)).stop();
reused.giveBack(first);
// Waits for the end of the reset.
reused.giveBack(await take());
prewarmed.replenish(requestOf({}));
await warmed;
console.log('kept');
`;

describe.each(['bubblewrap', 'docker'] as const)('%s', (backend) => {
  describeIf(missing[backend], 'a gateway that is killed while it keeps sandboxes', () => {
    it('leaves no process or mount, and only files and stopped containers that the next gateway removes', async ({
      signal,
      onTestFinished,
    }) => {
      const opened = await openWorkbench(backend, ['sleep']);
      onTestFinished(() => opened.close());
      const dir = join(opened.bench.dir, 'node');
      const seconds = uniqueSeconds();
      const { image, engineSocket } = opened;
      const args = [GATEWAY, resolve('packages'), dir, backend, image ?? '', engineSocket ?? '', seconds];
      const stdio = ['ignore', 'pipe', 'inherit'] as const;
      const child = spawn(process.execPath, ['--input-type=module', '-e', ...args], { stdio: [...stdio] });
      onTestFinished(() => void child.kill('SIGKILL'));
      await once(createInterface(child.stdout as Readable), 'line');
      await untilSome(`sleep\0${seconds}`, signal);
      expect(await processesThatMount(basename(opened.bench.dir))).not.toEqual([]);
      child.kill('SIGKILL');
      await once(child, 'close');
      await untilNone(seconds, signal);
      while ((await processesThatMount(basename(opened.bench.dir))).length > 0) await sleep(systemClock, 5, signal);

      const state = await openStateDir(dir, systemClock);
      expect(state.reaped.survivors).toEqual([]);
      expect([await readdir(state.sessions), await readdir(state.sockets)]).toEqual([[], []]);
      const owner = { id: state.ownerId, instance: 'next' };
      const dockerSocket = engineSocket ?? undefined;
      const next = await Workbench.open({ stateDir: state.sessions, owner, dockerSocket });
      const runtime = await next.start(backend, { image });
      expect(await containersOf(engineSocket, owner)).toEqual(engineSocket === null ? [] : ['next']);
      await runtime.stop();
      await next.close();
      await state.release();
    }, 120_000);
  });
});

/** Returns which gateway processes started the containers of a state directory, running or not. */
async function containersOf(engineSocket: string | null, { id }: Owner): Promise<(string | undefined)[]> {
  if (engineSocket === null) return [];
  const engine = new ContainerEngine(engineSocket);
  const owned = await engine.labelled(`floe.owner=${id}`, never);
  await engine.close();
  return owned.map(({ labels }) => labels['floe.instance']);
}
