import { FloeError } from '../core/errors.ts';
import type { EvaluatorRegistry } from '../evaluators/registry.ts';
import type { HarnessAdapter } from '../harnesses/harness.ts';
import type { TaskRequest } from '../schema/index.ts';
import { type BuilderRegistry, builderRegistry } from '../tokens/builders/registry.ts';

/** Builders that tasks may name: those of this process, and names that only nodes know. */
export type KnownBuilders = {
  readonly registry: BuilderRegistry;
  /** Their configurations are checked by the node that runs the session, before anything is started. */
  readonly onNodes: readonly string[];
};

/**
 * Refuses at submission what could only fail later: unknown harness, builder or evaluator, and configurations that
 * they do not know. The returned function throws the plug-in's own typed error.
 */
export function createTaskCheck(
  harnesses: ReadonlyMap<string, HarnessAdapter>,
  evaluators: EvaluatorRegistry,
  builders: KnownBuilders = { registry: builderRegistry(), onNodes: [] },
): (task: TaskRequest) => void {
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
    if (!builders.onNodes.includes(task.builder.strategy)) builders.registry.check(task.builder);
    if (task.evaluator !== null) evaluators.check(task.evaluator);
  };
}
