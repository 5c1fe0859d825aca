import { FloeError } from '../core/errors.ts';
import { runPrepare } from '../runtimes/prepare.ts';
import type { Runtime, RuntimeProblem, RuntimeProvider, StartRequest } from '../runtimes/runtime.ts';
import type { PrepareAction, RuntimeBackend, RuntimeSpec } from '../schema/index.ts';

export type SandboxOptions = {
  readonly providers: ReadonlyMap<RuntimeBackend, RuntimeProvider>;
  readonly defaultBackend: RuntimeBackend;
  /** Whether a task may ask for no isolation although the node's default gives it. */
  readonly allowLocal: boolean;
  readonly uploadRoots: readonly string[];
};

/** Starts the sandboxes of a node, with the back ends that it has, that work, and that its operator allows. */
export class Sandboxes {
  private readonly options: SandboxOptions;
  /** A back end is probed once; what does not work needs an operator, who restarts the node. */
  private readonly probes = new Map<RuntimeBackend, Promise<RuntimeProblem | null>>();

  constructor(options: SandboxOptions) {
    this.options = options;
  }

  /**
   * A started and prepared runtime. Rejects with `runtime_unavailable`, or as the provider and the prepare actions do,
   * with nothing left running: a runtime whose preparation failed is stopped before the promise rejects.
   */
  async start(request: StartRequest, prepare: readonly PrepareAction[], signal: AbortSignal): Promise<Runtime> {
    const provider = await this.providerOf(request.spec);
    const runtime = await provider.start(request, signal);
    try {
      await runPrepare(runtime, prepare, { uploadRoots: this.options.uploadRoots }, signal);
      return runtime;
    } catch (error) {
      await runtime.stop();
      throw error;
    }
  }

  private async providerOf(spec: RuntimeSpec): Promise<RuntimeProvider> {
    const { providers, defaultBackend, allowLocal } = this.options;
    const backend = spec.backend ?? defaultBackend;
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
