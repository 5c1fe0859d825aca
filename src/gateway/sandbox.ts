import { FloeError } from '../core/errors.ts';
import { runPrepare } from '../runtimes/prepare.ts';
import type { Runtime, RuntimeProvider, StartRequest } from '../runtimes/runtime.ts';
import type { PrepareAction, RuntimeBackend } from '../schema/index.ts';

export type SandboxDeps = {
  readonly providers: ReadonlyMap<RuntimeBackend, RuntimeProvider>;
  readonly defaultBackend: RuntimeBackend;
  readonly uploadRoots: readonly string[];
};

/**
 * A started and prepared runtime. Rejects as the provider and the prepare actions do, with nothing left running:
 * a runtime whose preparation failed is stopped before the promise rejects.
 */
export async function startSandbox(
  request: StartRequest,
  prepare: readonly PrepareAction[],
  deps: SandboxDeps,
  signal: AbortSignal,
): Promise<Runtime> {
  const backend = request.spec.backend ?? deps.defaultBackend;
  const provider = deps.providers.get(backend);
  if (provider === undefined) {
    throw new FloeError('runtime_unavailable', `this node has no ${backend} runtime`, { backend });
  }
  const runtime = await provider.start(request, signal);
  try {
    await runPrepare(runtime, prepare, { uploadRoots: deps.uploadRoots }, signal);
    return runtime;
  } catch (error) {
    await runtime.stop();
    throw error;
  }
}
