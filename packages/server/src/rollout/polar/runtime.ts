import { type PrepareAction, runtimeBackendSchema } from '@floe-rl/core/schema';
import { present, type RequestNotes, refuseUnless, requireValid } from './notes.ts';
import { type PolarPrepare, type PolarRuntime, polarPrepareSchema, polarRuntimeSchema } from './schema.ts';

/** The keys of a runtime that floe and Polar share, with the same meaning. */
const SHARED = ['image', 'env', 'workdir', 'cpus', 'memory_mb', 'storage_mb'] as const;

/**
 * Returns the fields of a floe runtime for a Polar runtime; the caller validates them. Throws `unsupported` for a key with an effect that
 * floe lacks.
 */
export function runtimeOf(runtime: PolarRuntime, notes: RequestNotes): Record<string, unknown> {
  notes.warnUnknown('runtime', runtime, polarRuntimeSchema.shape);
  refuseUnless(runtime.gpus === 0, 'runtime.gpus', 'floe gives sandboxes no GPU; omit the key or set 0');
  refuseUnless(runtime.import_path == null, 'runtime.import_path', 'floe loads no runtime class');
  refuseUnless(
    Object.keys(runtime.kwargs).length === 0,
    'runtime.kwargs',
    'floe passes no options to a container engine',
  );
  refuseUnless(runtime.internet_volumes.length === 0, 'runtime.internet_volumes', 'floe mounts no additional folders');
  refuseUnless(
    runtime.direct_exec_init_command == null,
    'runtime.direct_exec_init_command',
    'floe has no such command; use an `exec` action in runtime.prepare',
  );
  const shared = Object.fromEntries(SHARED.map((key) => [key, runtime[key]]));
  return present({
    ...shared,
    backend: backendOf(runtime.backend),
    network: networkOf(runtime, notes),
    prepare: runtime.prepare.map((action, index) => prepareOf(action, `runtime.prepare.${index}`, notes)),
    eval_prepare: runtime.eval_prepare?.map((action, index) =>
      prepareOf(action, `runtime.eval_prepare.${index}`, notes),
    ),
  });
}

function backendOf(backend: string): string {
  const known = runtimeBackendSchema.options;
  const problem = `this floe has no sandboxes of kind ${backend}, only ${known.join(' and ')}: set backend and image accordingly`;
  refuseUnless(
    known.some((name) => name === backend),
    'runtime.backend',
    problem,
  );
  return backend;
}

function networkOf({ network, allow_internet }: PolarRuntime, notes: RequestNotes): 'none' | 'host' {
  if (!allow_internet || network === 'none') return 'none';
  if (network === 'host') return 'host';
  refuseUnless(network == null, 'runtime.network', `floe has the networks none and host, not ${network}`);
  notes.warn(
    'runtime.network',
    'is not set, so the sandbox has no network; Polar would use host. Set it to host or none',
  );
  return 'none';
}

/** Returns the floe action for a Polar prepare action, without the keys that are null. Throws `schema_violation` for a missing key. */
function prepareOf(action: PolarPrepare, path: string, notes: RequestNotes): Partial<PrepareAction> {
  notes.warnUnknown(path, action, polarPrepareSchema.shape);
  const { type, source, target, command, cwd, env, max_attempts, retry_backoff_seconds } = action;
  if (type === 'exec') {
    requireValid(Boolean(command), `${path}.command`, 'is required');
    return present({ type, command, cwd, env, max_attempts, retry_backoff_seconds }) as Partial<PrepareAction>;
  }
  requireValid(Boolean(source), `${path}.source`, 'is required');
  requireValid(Boolean(target), `${path}.target`, 'is required');
  refuseUnless(max_attempts === 1, `${path}.max_attempts`, 'only exec actions are repeated');
  return present({ type, source, target }) as Partial<PrepareAction>;
}
