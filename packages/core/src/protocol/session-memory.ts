import { type RuntimeBackend, type RuntimeSpec, runtimeSpecSchema } from '../schema/index.ts';
import { evalRuntimeSpec } from './eval-runtime.ts';

const DEFAULT_RUNTIME = runtimeSpecSchema.parse({});

/** Whether the files of a backend's sandboxes are in memory. */
const KEEPS_FILES_IN_MEMORY: Readonly<Record<RuntimeBackend, boolean>> = {
  bubblewrap: true,
  docker: false,
  podman: false,
  apptainer: false,
  local: false,
  none: false,
};

/**
 * Returns how much memory the limits of a session allow its sandboxes to use, in MiB. This is the memory of the processes of one sandbox.
 * Where files are in memory, the files of the agent's sandbox and of the evaluator's fresh runtime, if there is one, are added.
 *
 * The processes are counted for the sandbox with the higher limit, because the evaluator starts after the agent has ended. `isEvaluatedFresh`
 * states whether the task's evaluator uses a fresh runtime; only the evaluator knows.
 */
export function sessionMemoryMb(runtime: RuntimeSpec | null, isEvaluatedFresh: boolean): number {
  const agent = runtime ?? DEFAULT_RUNTIME;
  const sandboxes = isEvaluatedFresh ? [agent, evalRuntimeSpec(agent)] : [agent];
  const processes = Math.max(...sandboxes.map(({ memory_mb }) => memory_mb));
  // A task without a backend runs in the backend of the node, which may be bubblewrap.
  if (agent.backend !== undefined && !KEEPS_FILES_IN_MEMORY[agent.backend]) return processes;
  return sandboxes.reduce((sum, { storage_mb }) => sum + storage_mb, processes);
}
