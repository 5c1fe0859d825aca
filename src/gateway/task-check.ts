import { FloeError } from '../core/errors.ts';
import type { Evaluator } from '../evaluators/evaluator.ts';
import type { HarnessAdapter } from '../harnesses/harness.ts';
import type { TaskRequest } from '../schema/index.ts';
import { checkBuilder } from '../tokens/build-trajectory.ts';

export type TaskCheck = (task: TaskRequest) => void;

/**
 * Refuses at submission what could only fail later: unknown harness, builder or evaluator, and configurations that
 * they do not know. Throws the plug-in's own typed error.
 */
export function createTaskCheck(
  harnesses: ReadonlyMap<string, HarnessAdapter>,
  evaluators: ReadonlyMap<string, Evaluator>,
): TaskCheck {
  return (task) => {
    const adapter = harnesses.get(task.agent.harness);
    if (adapter === undefined)
      throw unknown('unknown_harness', 'agent.harness', task.agent.harness, [...harnesses.keys()]);
    adapter.checkAgent(task.agent);
    checkBuilder(task.builder);
    if (task.evaluator !== null) {
      const evaluator = evaluators.get(task.evaluator.strategy);
      if (evaluator === undefined) {
        throw unknown('unknown_evaluator', 'evaluator.strategy', task.evaluator.strategy, [...evaluators.keys()]);
      }
      evaluator.checkConfig(task.evaluator.config);
    }
  };
}

function unknown(
  code: 'unknown_harness' | 'unknown_evaluator',
  path: string,
  name: string,
  known: string[],
): FloeError {
  return new FloeError(code, `${path}: no ${name}; there are: ${known.join(', ')}`, { path, known });
}
