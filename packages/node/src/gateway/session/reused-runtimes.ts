import { randomBytes } from 'node:crypto';
import { asFloeError, type Clock, FloeError, raceAbort } from '@floe-rl/core';
import type { RuntimeReuse, RuntimeSpec } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import type { ProxySockets } from './proxy-sockets.ts';
import { ReusableRuntime } from './reusable-runtime.ts';
import { endInTime } from './sandbox-stops.ts';

/**
 * What happens to a sandbox that several sessions share:
 * - `started`: a session started it.
 * - `reused`: a session got a sandbox that others had used.
 * - `reset_failed`: it is ended because its reset failed.
 * - `unhealthy`: it is ended because its health check failed.
 * - `discarded`: it is ended because it is not needed any more.
 */
export type ReuseEvent = 'started' | 'reused' | 'reset_failed' | 'unhealthy' | 'discarded';

export type ReusedOptions = {
  readonly clock: Clock;
  readonly log: Logger;
  /** Maximum number of sandboxes that are kept while no session uses them; 0 for none. */
  readonly maxCount: number;
  /** Maximum memory in MiB that these sandboxes may use together. */
  readonly maxMb: number;
  /** Time in milliseconds after which a kept sandbox that no session used is ended. */
  readonly idleMs: number;
  readonly sockets: ProxySockets;
  /**
   * Opens the egress proxy of the commands of a reset, for the networks that have one; `null` for other networks. Its socket's directory
   * exists.
   */
  readonly openEgress: (
    spec: RuntimeSpec,
    socketPath: string,
  ) => Promise<{ readonly close: () => Promise<void> } | null>;
  /** Counts what happens. Must not throw. */
  readonly onEvent?: ((event: ReuseEvent) => void) | undefined;
};

/** The settings that sessions must have in common to share sandboxes, and how the sandboxes are reset. */
export type ReuseRequest = { readonly key: string; readonly spec: RuntimeSpec; readonly reuse: RuntimeReuse };

/** A sandbox that no session uses. */
type Kept = {
  /** Aborted to stop the reset. */
  readonly ended: AbortController;
  /** Settles when the sandbox has been reset; it is then idle or ended. */
  readonly reset: Promise<void>;
  isReady: boolean;
  /** Whether a session waits for the reset. */
  isAwaited: boolean;
  cancelEnd: () => void;
};

/** The sandboxes of a node that several sessions use, one after the other. */
export class ReusedRuntimes {
  private readonly options: ReusedOptions;
  private readonly requests = new Map<ReusableRuntime, ReuseRequest>();
  /** The sandboxes that no session uses; the least recently used sandbox is first. */
  private readonly kept = new Map<ReusableRuntime, Kept>();
  private readonly ending = new Set<Promise<void>>();
  private isDraining = false;

  constructor(options: ReusedOptions) {
    this.options = options;
  }

  /** Names of all sandboxes, used or not. */
  get sandboxes(): string[] {
    return [...this.requests.keys()].flatMap(({ name }) => (name === null ? [] : [name]));
  }

  /**
   * Returns a sandbox for a session, which must give it back with {@link giveBack}. It has been used and reset, or is still to be started.
   * Waits for a running reset, after a call of `onWait`. Rejects with the reason of `signal`.
   */
  async take(request: ReuseRequest, onWait: () => void, signal: AbortSignal): Promise<ReusableRuntime> {
    const ready = this.takeReady(request.key);
    if (ready !== null) return ready;
    for (const [runtime, kept] of this.kept) {
      if (this.requests.get(runtime)?.key !== request.key || kept.isAwaited) continue;
      kept.isAwaited = true;
      onWait();
      try {
        await raceAbort(kept.reset, signal);
      } finally {
        kept.isAwaited = false;
      }
      const reset = this.takeReady(request.key);
      if (reset !== null) return reset;
      break;
    }
    return this.create(request);
  }

  /** Counts the start of a session in a sandbox of {@link take}. */
  recordUse({ uses }: ReusableRuntime): void {
    this.options.onEvent?.(uses > 1 ? 'reused' : 'started');
  }

  /** Takes a sandbox back. It is reset for another session or ended; the caller does not wait for this. */
  giveBack(runtime: ReusableRuntime): void {
    const { maxCount, maxMb, log } = this.options;
    const { memoryMb } = runtime;
    if (maxCount > 0 && memoryMb > maxMb) {
      const larger =
        'a sandbox with runtime.reuse is not kept, because it may use more memory than reused_runtimes.max_mb';
      log.warn({ sandbox: runtime.name, memory_mb: memoryMb, max_mb: maxMb }, larger);
    }
    const fits = maxCount > 0 && memoryMb <= maxMb && !this.isDraining;
    if (!runtime.isReusable || !fits) {
      this.discard(runtime, runtime.name === null ? null : 'discarded');
      return;
    }
    const ended = new AbortController();
    const reset = this.reset(runtime, ended.signal);
    const kept: Kept = { ended, reset, isReady: false, isAwaited: false, cancelEnd: () => {} };
    this.kept.set(runtime, kept);
    for (const [oldest] of this.kept) {
      const usedMb = [...this.kept.keys()].reduce((sum, { memoryMb }) => sum + memoryMb, 0);
      if (this.kept.size <= maxCount && usedMb <= maxMb) break;
      this.discard(oldest, 'discarded');
    }
  }

  /** Ends the sandboxes that no session uses, and keeps none from now on. */
  async drain(): Promise<void> {
    this.isDraining = true;
    for (const runtime of [...this.kept.keys()]) this.discard(runtime, 'discarded');
    while (this.ending.size > 0) await Promise.all(this.ending);
  }

  /** Ends all sandboxes. */
  async close(): Promise<void> {
    await this.drain();
    for (const runtime of [...this.requests.keys()]) this.discard(runtime, 'discarded');
    while (this.ending.size > 0) await Promise.all(this.ending);
  }

  private takeReady(key: string): ReusableRuntime | null {
    // The most recently used sandbox is taken, so that sandboxes that are not needed reach their idle limit.
    for (const [runtime, kept] of [...this.kept].reverse()) {
      if (!kept.isReady || this.requests.get(runtime)?.key !== key) continue;
      kept.cancelEnd();
      this.kept.delete(runtime);
      return runtime;
    }
    return null;
  }

  private async create(request: ReuseRequest): Promise<ReusableRuntime> {
    const { sockets, clock, log, onEvent } = this.options;
    const { spec, reuse } = request;
    // The path of a Unix socket is short.
    const short = randomBytes(5).toString('hex');
    const place = { socketPath: sockets.pathOf(`u${short}`), egressPath: sockets.pathOf(`u${short}-e`) };
    const runtime = new ReusableRuntime({
      ...{ reuse, place, clock },
      memoryMb: spec.memory_mb + spec.storage_mb,
      newName: () => `reused-${randomBytes(9).toString('hex')}`,
      onUnhealthy: (error) => {
        log.warn({ error: error.message }, 'a sandbox for several sessions is not healthy; another one is started');
        onEvent?.('unhealthy');
      },
    });
    this.requests.set(runtime, request);
    try {
      await sockets.createDirectory(place.socketPath);
      await sockets.createDirectory(place.egressPath);
    } catch (error) {
      this.discard(runtime, null);
      throw error;
    }
    return runtime;
  }

  private async reset(runtime: ReusableRuntime, signal: AbortSignal): Promise<void> {
    try {
      await runtime.endSession();
      await this.withEgress(runtime, () => runtime.reset(signal));
    } catch (thrown) {
      const error = asFloeError(thrown);
      if (signal.aborted) return;
      const { message: reason } = error;
      this.options.log.warn({ sandbox: runtime.name, error: reason }, 'a sandbox was not reset, and is ended');
      this.discard(runtime, error.details.phase === 'health' ? 'unhealthy' : 'reset_failed');
      return;
    }
    const kept = this.kept.get(runtime);
    if (kept === undefined) return;
    kept.isReady = true;
    kept.cancelEnd = this.options.clock.schedule(this.options.idleMs, () => this.discard(runtime, 'discarded'));
  }

  private async withEgress(runtime: ReusableRuntime, work: () => Promise<void>): Promise<void> {
    const spec = this.requests.get(runtime)?.spec;
    const egress = spec === undefined ? null : await this.options.openEgress(spec, runtime.place.egressPath);
    try {
      await work();
    } finally {
      await egress?.close();
    }
  }

  /** Ends a sandbox, which no session may get any more. */
  private discard(runtime: ReusableRuntime, event: ReuseEvent | null): void {
    if (!this.requests.has(runtime)) return;
    const kept = this.kept.get(runtime);
    kept?.cancelEnd();
    kept?.ended.abort(new FloeError('cancelled', 'the sandbox is not needed any more'));
    this.kept.delete(runtime);
    if (event !== null) this.options.onEvent?.(event);
    const ended = this.end(runtime).finally(() => this.ending.delete(ended));
    this.ending.add(ended);
  }

  private async end(runtime: ReusableRuntime): Promise<void> {
    const { sockets, log, clock } = this.options;
    const { socketPath, egressPath } = runtime.place;
    const { name } = runtime;
    await endInTime(
      clock,
      runtime.endSession().then(() => runtime.stop()),
      () => log.error({ sandbox: name }, 'a sandbox for several sessions has not ended in time'),
    );
    this.requests.delete(runtime);
    try {
      await Promise.all([sockets.removeDirectory(socketPath), sockets.removeDirectory(egressPath)]);
    } catch (error) {
      log.warn({ error: asFloeError(error).message }, 'the directory of a sandbox is not removed');
    }
  }
}
