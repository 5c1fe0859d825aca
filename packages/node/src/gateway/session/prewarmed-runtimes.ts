import { randomBytes } from 'node:crypto';
import { asFloeError, type Clock, canonicalJson, FloeError } from '@floe-rl/core';
import type { RuntimeSpec } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import type { Runtime, StartRequest } from '@floe-rl/sandbox';
import type { ProxySockets } from './proxy-sockets.ts';
import type { SandboxPlace, SessionCallbacks } from './reusable-runtime.ts';
import type { ReusedOptions } from './reused-runtimes.ts';
import type { Sandboxes } from './sandbox.ts';
import { endInTime } from './sandbox-stops.ts';

type PrewarmedOptions = Pick<ReusedOptions, 'openEgress'> & {
  readonly clock: Clock;
  readonly log: Logger;
  readonly sockets: ProxySockets;
  readonly sandboxes: Pick<Sandboxes, 'awaitPermit' | 'start'>;
  /** Number of sandboxes that are kept ready for the settings of each recent session; 0 for none. */
  readonly count: number;
  /** Maximum memory in MiB that all sandboxes may use that are kept ready. */
  readonly maxMb: number;
  /** Time in milliseconds after which sandboxes are ended when no session with their settings has started. */
  readonly idleMs: number;
  /** Counts sessions by whether a sandbox was ready for them. Must not throw. */
  readonly onTake?: ((how: 'ready' | 'missing') => void) | undefined;
};

/** A started sandbox without prepared files, for one session. */
export type WarmSandbox = {
  readonly place: SandboxPlace;
  readonly runtime: Runtime;
  /** Names the session to which the sandbox reports. */
  readonly give: (session: SessionCallbacks) => void;
};

type Entry = {
  readonly key: string;
  readonly name: string;
  readonly place: SandboxPlace;
  readonly memoryMb: number;
  readonly spec: RuntimeSpec;
  session: SessionCallbacks;
  /** The sandbox; `null` while it starts. */
  runtime: Runtime | null;
  /** Whether a session has got the sandbox. */
  isGiven: boolean;
  cancelEnd: () => void;
};

/** Keeps sandboxes ready that have the settings of recent sessions, so that further sessions need not wait for a start. */
export class PrewarmedRuntimes {
  private readonly options: PrewarmedOptions;
  /** All sandboxes, in the order of the requests for them. */
  private readonly entries = new Set<Entry>();
  private readonly working = new Set<Promise<void>>();
  private readonly draining = new AbortController();

  constructor(options: PrewarmedOptions) {
    this.options = options;
  }

  /** Names of all sandboxes that are kept ready, start, or are used by a session. */
  get sandboxes(): string[] {
    return [...this.entries].map(({ name }) => name);
  }

  /**
   * Returns a sandbox for a session with this request, which must give it back with {@link release}; `null` when none is ready. Rejects with
   * the reason of `signal`.
   */
  async take(request: StartRequest, signal: AbortSignal): Promise<WarmSandbox | null> {
    if (!canUse(request) || this.options.count === 0) return null;
    const warm = await this.takeReady(keyOf(request), signal);
    this.options.onTake?.(warm === null ? 'missing' : 'ready');
    return warm;
  }

  /** Discards a sandbox that a session used and has stopped. */
  release({ runtime }: WarmSandbox): void {
    for (const entry of this.entries) if (entry.runtime === runtime) this.discard(entry);
  }

  /** Starts sandboxes for further sessions like the one of this request, which has got its own. Does not wait for the starts. */
  replenish(request: StartRequest): void {
    const { count, maxMb } = this.options;
    const { spec } = request;
    if (this.draining.signal.aborted || !canUse(request)) return;
    const key = keyOf(request);
    const memoryMb = spec.memory_mb + spec.storage_mb;
    const waiting = (): Entry[] => [...this.entries].filter(({ isGiven }) => !isGiven);
    if (memoryMb > maxMb) return;
    const ready = waiting().filter((entry) => entry.key === key);
    for (const entry of ready) this.endLater(entry);
    for (let missing = count - ready.length; missing > 0; missing--) {
      for (const other of waiting()) {
        const usedMb = waiting().reduce((sum, each) => sum + each.memoryMb, memoryMb);
        if (usedMb <= maxMb) break;
        // Sandboxes of other settings are ended to make room, unless they are still starting.
        if (other.key !== key && other.runtime !== null) this.discard(other);
      }
      if (waiting().reduce((sum, each) => sum + each.memoryMb, memoryMb) > maxMb) return;
      this.track(this.start(request, key, memoryMb));
    }
  }

  /** Ends the sandboxes that no session uses, and starts no others from now on. */
  async drain(): Promise<void> {
    this.draining.abort(new FloeError('not_ready', 'the node keeps no sandboxes ready any more'));
    for (const entry of this.entries) if (!entry.isGiven && entry.runtime !== null) this.discard(entry);
    while (this.working.size > 0) await Promise.all(this.working);
  }

  /** Ends all sandboxes. */
  async close(): Promise<void> {
    await this.drain();
    for (const entry of this.entries) this.discard(entry);
    while (this.working.size > 0) await Promise.all(this.working);
  }

  private async takeReady(key: string, signal: AbortSignal): Promise<WarmSandbox | null> {
    for (const entry of this.entries) {
      const { runtime, place } = entry;
      if (runtime === null || entry.isGiven || entry.key !== key) continue;
      entry.isGiven = true;
      entry.cancelEnd();
      runtime.onProxiesReplaced?.();
      if (await this.works(entry, runtime, signal)) {
        const give = (session: SessionCallbacks): void => {
          entry.session = session;
        };
        return { place, runtime, give };
      }
      this.discard(entry);
    }
    return null;
  }

  private async start(request: StartRequest, key: string, memoryMb: number): Promise<void> {
    const { sandboxes, sockets, log, openEgress } = this.options;
    const { signal } = this.draining;
    const id = randomBytes(9).toString('hex');
    const short = id.slice(0, 10);
    const place = { socketPath: sockets.pathOf(`w${short}`), egressPath: sockets.pathOf(`w${short}-e`) };
    const name = `warm-${id}`;
    const entry: Entry = {
      ...{
        key,
        name,
        place,
        memoryMb,
        spec: request.spec,
        session: {},
        runtime: null,
        isGiven: false,
        cancelEnd: () => {},
      },
    };
    this.entries.add(entry);
    let egress: Awaited<ReturnType<typeof openEgress>> = null;
    try {
      await Promise.all([sockets.createDirectory(place.socketPath), sockets.createDirectory(place.egressPath)]);
      egress = await openEgress(request.spec, place.egressPath);
      const permit = await sandboxes.awaitPermit(request.spec, signal);
      const own: StartRequest = {
        ...request,
        name,
        proxy: request.proxy === null ? null : { ...request.proxy, socketPath: place.socketPath },
        egressSocket: egress === null ? null : place.egressPath,
        onActivity: () => entry.session.onActivity?.(),
        onKill: (reason) => entry.session.onKill?.(reason),
      };
      const runtime = await sandboxes.start(own, [], permit, signal);
      await egress?.close();
      entry.runtime = runtime;
      if (signal.aborted) this.discard(entry);
      else this.endLater(entry);
    } catch (error) {
      await egress?.close();
      if (!signal.aborted) log.warn({ error: asFloeError(error).message }, 'a sandbox cannot be started in advance');
      this.discard(entry);
    }
  }

  private async works(entry: Entry, runtime: Runtime, signal: AbortSignal): Promise<boolean> {
    // The egress proxy of the session is opened later, and the commands of some back ends need its socket.
    const egress = await this.options.openEgress(entry.spec, entry.place.egressPath);
    try {
      return (await runtime.exec({ command: 'true', cwd: '/' }, signal)).exitCode === 0;
    } catch {
      if (signal.aborted) this.discard(entry);
      signal.throwIfAborted();
      return false;
    } finally {
      await egress?.close();
      runtime.onProxiesReplaced?.();
    }
  }

  private endLater(entry: Entry): void {
    entry.cancelEnd();
    entry.cancelEnd = this.options.clock.schedule(this.options.idleMs, () => this.discard(entry));
  }

  private discard(entry: Entry): void {
    entry.isGiven = true;
    entry.cancelEnd();
    this.track(this.end(entry));
  }

  private async end(entry: Entry): Promise<void> {
    const { sockets, log, clock } = this.options;
    await endInTime(clock, Promise.resolve(entry.runtime?.stop()), () =>
      log.error({ sandbox: entry.name }, 'a sandbox that was started in advance has not ended in time'),
    );
    this.entries.delete(entry);
    const { socketPath, egressPath } = entry.place;
    try {
      await Promise.all([sockets.removeDirectory(socketPath), sockets.removeDirectory(egressPath)]);
    } catch (error) {
      log.warn({ error: asFloeError(error).message }, 'the directory of a sandbox is not removed');
    }
  }

  private track(work: Promise<void>): void {
    const tracked = work.finally(() => this.working.delete(tracked));
    this.working.add(tracked);
  }
}

/** Returns a text that is equal for two requests only if a sandbox that was started for one of them can be used for the other. */
function keyOf({ spec, readOnlyMounts }: StartRequest): string {
  const unprepared = {
    ...spec,
    prepare: [],
    eval_prepare: null,
    eval_overrides: null,
    share_prepared: false,
    reuse: null,
  };
  return canonicalJson({ spec: unprepared, readOnlyMounts });
}

/** Whether a session starts from an empty sandbox, and not from one with prepared files. */
function canUse({ spec }: StartRequest): boolean {
  return spec.reuse === null && !(spec.share_prepared && spec.prepare.length > 0);
}
