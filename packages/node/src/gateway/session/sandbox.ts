import { randomBytes } from 'node:crypto';
import { type Clock, canonicalJson, FloeError, Semaphore, sleep, systemClock } from '@floe-rl/core';
import type { PrepareAction, RuntimeBackend, RuntimeSpec } from '@floe-rl/core/schema';
import {
  type KillReason,
  type Runtime,
  type RuntimeProblem,
  type RuntimeProvider,
  type RuntimeSnapshot,
  refuseReuse,
  runPrepare,
  SNAPSHOT_FILES,
  type StartRequest,
} from '@floe-rl/sandbox';
import { PreparedKeys } from './prepared-key.ts';
import type { PreparedSnapshots } from './prepared-snapshots.ts';
import type { ReuseRequest } from './reused-runtimes.ts';

const MS_PER_SECOND = 1_000;

/** Counts of the sandboxes of one back end, such as bubblewrap, that are starting or wait for their start. */
type StartCount = {
  readonly starting: number;
  readonly waiting: number;
  /** Maximum number of sandboxes that may be starting concurrently; `null` when there is no limit. */
  readonly limit: number | null;
};

/** Limits of one kind, by back end. A back end without an entry has no such limit. */
type ByBackend = Partial<Record<RuntimeBackend, number>>;

/**
 * Limits how many sandboxes of each back end may be starting concurrently, and how many may start per second. These limits are separate from the number of INIT workers, which
 * also run prepare actions: a container engine or a shared disk may support fewer concurrent starts than preparations.
 */
export class StartLimits {
  private readonly semaphores = new Map<RuntimeBackend, Semaphore>();
  private readonly starting = new Map<RuntimeBackend, number>();
  private readonly rates = new Map<RuntimeBackend, StartRate>();

  /** `rates` are starts per second on `clock`. */
  constructor(limits: ByBackend, rates: ByBackend = {}, clock: Clock = systemClock) {
    for (const [backend, perSecond] of Object.entries(rates)) {
      this.rates.set(backend as RuntimeBackend, new StartRate(perSecond, clock));
    }
    for (const [backend, limit] of Object.entries(limits)) {
      this.semaphores.set(backend as RuntimeBackend, new Semaphore(limit));
    }
  }

  /**
   * Waits, in the order of the calls, until one more sandbox may start. Resolves with the permit; rejects with the reason of `signal` when
   * `signal` aborts.
   */
  async acquire(backend: RuntimeBackend, signal: AbortSignal): Promise<StartPermit> {
    const release = (await this.semaphores.get(backend)?.acquire(signal)) ?? (() => {});
    try {
      await this.rates.get(backend)?.pass(signal);
      signal.throwIfAborted();
    } catch (error) {
      release();
      throw error;
    }
    this.count(backend, 1);
    let ended = false;
    return () => {
      if (ended) return;
      ended = true;
      this.count(backend, -1);
      release();
    };
  }

  counts(): ReadonlyMap<RuntimeBackend, StartCount> {
    const backends = new Set([...this.semaphores.keys(), ...this.rates.keys(), ...this.starting.keys()]);
    return new Map(
      [...backends].map((backend) => {
        const semaphore = this.semaphores.get(backend);
        const starting = this.starting.get(backend) ?? 0;
        const waiting = (semaphore?.waiting ?? 0) + (this.rates.get(backend)?.waiting ?? 0);
        return [backend, { starting, waiting, limit: semaphore?.size ?? null }];
      }),
    );
  }

  private count(backend: RuntimeBackend, change: number): void {
    this.starting.set(backend, (this.starting.get(backend) ?? 0) + change);
  }
}

/** Spaces the starts of sandboxes evenly: a start follows the previous one after at least one second divided by the rate. */
class StartRate {
  private readonly clock: Clock;
  private readonly intervalMs: number;
  /** Held by the sandbox that starts next. */
  private readonly turn = new Semaphore(1);
  private nextMs = Number.NEGATIVE_INFINITY;

  constructor(perSecond: number, clock: Clock) {
    this.clock = clock;
    this.intervalMs = MS_PER_SECOND / perSecond;
  }

  /** Number of sandboxes that wait for their start. */
  get waiting(): number {
    return this.turn.waiting + this.turn.inUse;
  }

  /** Waits until the next start, in the order of the calls. Rejects with the reason of `signal` when it aborts. */
  async pass(signal: AbortSignal): Promise<void> {
    const end = await this.turn.acquire(signal);
    try {
      const waitMs = this.nextMs - this.clock.monotonicMs();
      if (waitMs > 0) await sleep(this.clock, waitMs, signal);
      this.nextMs = this.clock.monotonicMs() + this.intervalMs;
    } finally {
      end();
    }
  }
}

export type SandboxOptions = {
  readonly providers: ReadonlyMap<RuntimeBackend, RuntimeProvider>;
  readonly defaultBackend: RuntimeBackend;
  /** Whether a task may request to run without isolation (back end `local`), although the node's default back end isolates sessions. */
  readonly allowLocal: boolean;
  readonly uploadRoots: readonly string[];
  readonly startLimits: StartLimits;
  /** Snapshots of prepared sandboxes. By default none are kept. */
  readonly prepared?: PreparedSnapshots;
  /** Functions that record the metrics of each started sandbox and each killed command. By default nothing is recorded. */
  readonly observer?: SandboxObserver;
};

/** Functions that record metrics of sandboxes. They must not throw. */
type SandboxObserver = {
  readonly clock: Clock;
  readonly started: (backend: RuntimeBackend, tookMs: number) => void;
  readonly killed: (backend: RuntimeBackend, reason: KillReason) => void;
};

/** Permission to start one sandbox. Calling this function gives the permission back; calling it twice has no effect. */
export type StartPermit = () => void;

/** Starts the sandboxes of a node. Uses only back ends that work on the host and that the operator allows. */
export class Sandboxes {
  private readonly options: SandboxOptions;
  /** Result of the probe of each back end. A back end is probed once, because an operator who repairs it must restart the node. */
  private readonly probes = new Map<RuntimeBackend, Promise<RuntimeProblem | null>>();
  private readonly preparedKeys = new PreparedKeys();

  constructor(options: SandboxOptions) {
    this.options = options;
  }

  /** Resolves with the limits that this host cannot enforce in full on sandboxes of the default back end. */
  async weaknesses(): Promise<readonly RuntimeProblem[]> {
    const { providers, defaultBackend } = this.options;
    return (await providers.get(defaultBackend)?.describe())?.weaknesses ?? [];
  }

  /** Waits until one more sandbox with the back end of `spec` may start. Rejects with the reason of `signal` when `signal` aborts. */
  awaitPermit(spec: RuntimeSpec, signal: AbortSignal): Promise<StartPermit> {
    return this.options.startLimits.acquire(this.backendOf(spec), signal);
  }

  /** Returns how many sandboxes are starting or wait for their start, by back end. */
  startCounts(): ReadonlyMap<RuntimeBackend, StartCount> {
    return this.options.startLimits.counts();
  }

  /**
   * Starts a sandbox and runs its prepare actions. Where the task allows it, starts the sandbox from the snapshot of another sandbox with the
   * same preparation instead. Gives `permit` back after the start, even if the start failed. Rejects with `runtime_unavailable` or with the
   * error of the provider or a prepare action. When a prepare action fails, the sandbox is stopped before the promise rejects.
   */
  async start(
    request: StartRequest,
    prepare: readonly PrepareAction[],
    permit: StartPermit,
    signal: AbortSignal,
  ): Promise<Runtime> {
    const { prepared } = this.options;
    const key = prepared === undefined ? null : await this.sharedKey(request.spec, prepare);
    const prepareOne = (): Promise<Runtime> => this.startPrepared(request, prepare, permit, signal);
    if (prepared === undefined || key === null) return prepareOne();
    const reuse = (snapshot: RuntimeSnapshot): Promise<Runtime> => this.startRuntime({ ...request, snapshot }, signal);
    return prepared.start(key, { prepare: prepareOne, reuse, onWait: permit }, signal).finally(permit);
  }

  /**
   * Returns the key that is equal for all sandboxes that are interchangeable with the sandbox of this request; `null` when the task wants a
   * new one. Rejects with `runtime_unavailable`, or with `unsupported` when the back end cannot reset its sandboxes as the task demands.
   */
  async reuseRequest({ spec, readOnlyMounts }: StartRequest): Promise<ReuseRequest | null> {
    const { reuse } = spec;
    if (reuse === null) return null;
    const { backend } = await this.providerOf(spec);
    refuseReuse(backend, reuse);
    // An upload that is refused or missing is reported by the preparation.
    const key = await this.preparedKeys
      .of(backend, spec, spec.prepare, this.options.uploadRoots)
      .catch(() => randomBytes(16).toString('hex'));
    return { key: `${key} ${canonicalJson(readOnlyMounts)}`, spec, reuse };
  }

  private async startPrepared(
    request: StartRequest,
    prepare: readonly PrepareAction[],
    permit: StartPermit,
    signal: AbortSignal,
  ): Promise<Runtime> {
    return this.prepare(await this.startRuntime(request, signal).finally(permit), prepare, signal);
  }

  /** Runs prepare actions in a sandbox, and resolves with it. Stops the sandbox and rejects when an action fails. */
  async prepare(runtime: Runtime, actions: readonly PrepareAction[], signal: AbortSignal): Promise<Runtime> {
    try {
      await runPrepare(runtime, actions, { uploadRoots: this.options.uploadRoots }, signal);
      return runtime;
    } catch (error) {
      await runtime.stop();
      throw error;
    }
  }

  /** Returns the key of a preparation that sandboxes may share; `null` when each sandbox is prepared. */
  private async sharedKey(spec: RuntimeSpec, prepare: readonly PrepareAction[]): Promise<string | null> {
    if (!spec.share_prepared || prepare.length === 0) return null;
    const backend = this.backendOf(spec);
    if (SNAPSHOT_FILES[backend] !== 'all') return null;
    // An upload that is refused or missing is reported by the preparation.
    return this.preparedKeys.of(backend, spec, prepare, this.options.uploadRoots).catch(() => null);
  }

  private async startRuntime(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    const provider = await this.providerOf(request.spec);
    const { observer } = this.options;
    if (observer === undefined) return provider.start(request, signal);
    const { backend } = provider;
    const startedMs = observer.clock.monotonicMs();
    const onKill = (reason: KillReason): void => observer.killed(backend, reason);
    const runtime = await provider.start({ ...request, onKill }, signal);
    observer.started(backend, observer.clock.monotonicMs() - startedMs);
    return runtime;
  }

  private backendOf(spec: RuntimeSpec): RuntimeBackend {
    return spec.backend ?? this.options.defaultBackend;
  }

  private async providerOf(spec: RuntimeSpec): Promise<RuntimeProvider> {
    const { providers, defaultBackend, allowLocal } = this.options;
    const backend = this.backendOf(spec);
    const provider = providers.get(backend);
    if (provider === undefined) {
      throw new FloeError('runtime_unavailable', `this node has no ${backend} runtime`, { backend });
    }
    if (backend === 'local' && defaultBackend !== 'local' && !allowLocal) {
      throw new FloeError(
        'runtime_unavailable',
        'this node runs no session without isolation; its operator can allow that with --allow-local',
        { backend },
      );
    }
    const problem = await this.probe(provider);
    if (problem !== null) {
      throw new FloeError(
        'runtime_unavailable',
        `the ${backend} runtime does not work on this node: ${problem.problem}. Remedy: ${problem.remedy}`,
        { backend, ...problem },
      );
    }
    return provider;
  }

  private probe(provider: RuntimeProvider): Promise<RuntimeProblem | null> {
    const known = this.probes.get(provider.backend);
    if (known !== undefined) return known;
    const probe = provider.probe();
    this.probes.set(provider.backend, probe);
    return probe;
  }
}
