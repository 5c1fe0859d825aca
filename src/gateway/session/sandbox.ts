import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { runPrepare } from '../../runtimes/prepare.ts';
import type { KillReason, Runtime, RuntimeProblem, RuntimeProvider, StartRequest } from '../../runtimes/runtime.ts';
import type { PrepareAction, RuntimeBackend, RuntimeSpec } from '../../schema/index.ts';
import type { StartCount, StartLimits } from '../node/start-limits.ts';

export type SandboxOptions = {
  readonly providers: ReadonlyMap<RuntimeBackend, RuntimeProvider>;
  readonly defaultBackend: RuntimeBackend;
  /** Whether a task may ask for no isolation although the node's default gives it. */
  readonly allowLocal: boolean;
  readonly uploadRoots: readonly string[];
  readonly startLimits: StartLimits;
  /** Hears of sandboxes that have started, and of commands that were ended before their time; default: nobody. */
  readonly observer?: SandboxObserver;
};

/** Must not throw. */
export type SandboxObserver = {
  readonly clock: Clock;
  readonly started: (backend: RuntimeBackend, tookMs: number) => void;
  readonly killed: (backend: RuntimeBackend, reason: KillReason) => void;
};

/** One sandbox may start. Ends with the start; to be called where nothing is started after all. Safe to call twice. */
export type StartTurn = () => void;

/** Starts the sandboxes of a node, with the back ends that it has, that work, and that its operator allows. */
export class Sandboxes {
  private readonly options: SandboxOptions;
  /** A back end is probed once; what does not work needs an operator, who restarts the node. */
  private readonly probes = new Map<RuntimeBackend, Promise<RuntimeProblem | null>>();

  constructor(options: SandboxOptions) {
    this.options = options;
  }

  /** Waits until one more sandbox of the spec's back end may start. Rejects with the signal's reason. */
  turn(spec: RuntimeSpec, signal: AbortSignal): Promise<StartTurn> {
    return this.options.startLimits.acquire(this.backendOf(spec), signal);
  }

  /** Starts under way and waiting, by back end. */
  starts(): ReadonlyMap<RuntimeBackend, StartCount> {
    return this.options.startLimits.counts();
  }

  /**
   * A started and prepared runtime; `turn` ends when it is started. Rejects with `runtime_unavailable`, or as the provider and the prepare actions do,
   * with nothing left running: a runtime whose preparation failed is stopped before the promise rejects.
   */
  async start(
    request: StartRequest,
    prepare: readonly PrepareAction[],
    turn: StartTurn,
    signal: AbortSignal,
  ): Promise<Runtime> {
    const runtime = await this.started(request, signal).finally(turn);
    try {
      await runPrepare(runtime, prepare, { uploadRoots: this.options.uploadRoots }, signal);
      return runtime;
    } catch (error) {
      await runtime.stop();
      throw error;
    }
  }

  private async started(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
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
        'this node runs nothing without isolation; its operator can allow it with --allow-local',
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
