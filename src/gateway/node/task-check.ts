import { FloeError } from '../../core/errors.ts';
import type { EvaluatorRegistry } from '../../evaluators/registry.ts';
import type { HarnessAdapter } from '../../harnesses/harness.ts';
import type { TaskRequest } from '../../schema/index.ts';
import { builderRegistry } from '../../tokens/builders/registry.ts';

/**
 * Refuses at submission what could only fail later: unknown harness, builder or evaluator, and configurations that
 * they do not know. `customBuilders` are the names of builders that only nodes have: their configurations are checked by the node
 * that runs the session, before anything is started. The returned function throws the plug-in's own typed error.
 */
export function createTaskCheck(
  harnesses: ReadonlyMap<string, HarnessAdapter>,
  evaluators: EvaluatorRegistry,
  customBuilders: readonly string[] = [],
): (task: TaskRequest) => void {
  const builders = builderRegistry();
  return (task) => {
    const adapter = harnesses.get(task.agent.harness);
    if (adapter === undefined) {
      const known = [...harnesses.keys()];
      throw new FloeError(
        'unknown_harness',
        `agent.harness: no ${task.agent.harness}; there are: ${known.join(', ')}`,
        {
          path: 'agent.harness',
          known,
        },
      );
    }
    adapter.checkAgent(task.agent);
    if (!customBuilders.includes(task.builder.strategy)) builders.check(task.builder);
    if (task.evaluator !== null) evaluators.check(task.evaluator);
  };
}
