import { type EvaluatorSpec, evaluatorSpecSchema, runtimeSpecSchema, type TaskRequest } from '../schema/index.ts';
import { evalRuntimeSpec } from './eval-runtime.ts';

const DEFAULT_RUNTIME = runtimeSpecSchema.parse({});

/** Built-in evaluators that do not evaluate in a fresh runtime by default. */
const GRADE_IN_PLACE: readonly string[] = ['session_completed', 'environment', 'answer', 'judge', 'steps'];

/**
 * Returns how much memory the limits of a session allow its sandboxes to use, in MiB: the processes of one sandbox, and, where they are in
 * memory, the files of the agent's sandbox and of a fresh runtime for the evaluator, of which there is one at a time. The processes are counted
 * for the sandbox with the higher limit, because the evaluator starts after the agent has ended. A custom evaluator counts as one that uses a
 * fresh runtime unless the task states otherwise.
 */
export function sessionMemoryMb({ runtime, evaluator }: Pick<TaskRequest, 'runtime' | 'evaluator'>): number {
  const agent = runtime ?? DEFAULT_RUNTIME;
  const isFresh = evaluator !== null && usesFreshRuntime(evaluator);
  const sandboxes = isFresh ? [agent, evalRuntimeSpec(agent)] : [agent];
  const processes = Math.max(...sandboxes.map(({ memory_mb }) => memory_mb));
  // A task without a backend runs in that of the node, which may be bubblewrap.
  if (agent.backend !== undefined && agent.backend !== 'bubblewrap') return processes;
  return sandboxes.reduce((sum, { storage_mb }) => sum + storage_mb, processes);
}

function usesFreshRuntime({ strategy, config, refresh_runtime }: EvaluatorSpec): boolean {
  if (refresh_runtime !== null) return refresh_runtime;
  if (strategy === 'multi' && Array.isArray(config.evaluators)) return config.evaluators.some(memberIsFresh);
  if (strategy === 'harbor') return Array.isArray(config.artifacts) && config.artifacts.length > 0;
  return !GRADE_IN_PLACE.includes(strategy);
}

/** Whether a member of the evaluator `multi` uses a fresh runtime. One that cannot be read counts, because it is refused later. */
function memberIsFresh(member: { readonly evaluator?: unknown } | null): boolean {
  const { success, data } = evaluatorSpecSchema.safeParse(member?.evaluator);
  return !success || usesFreshRuntime(data);
}
