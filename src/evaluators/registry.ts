import { type Clock, systemClock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { EvaluatorSpec } from '../schema/index.ts';
import type { Evaluator } from './evaluator.ts';
import { sessionCompletedEvaluator } from './session-completed.ts';
import { testOnOutputEvaluator } from './test-on-output.ts';

export type EvaluatorRegistry = {
  names(): string[];
  /** Throws `unknown_evaluator`, naming those there are. */
  get(name: string): Evaluator;
  /** Throws `unknown_evaluator` or `schema_violation`; for submission, before any work is done. */
  check(spec: EvaluatorSpec): void;
};

/** The evaluators there are, with the clock that their time limits run by. */
export function evaluatorRegistry(clock: Clock = systemClock): EvaluatorRegistry {
  const evaluators = new Map(
    [sessionCompletedEvaluator, testOnOutputEvaluator(clock)].map((evaluator) => [evaluator.name, evaluator]),
  );
  const get = (name: string): Evaluator => {
    const evaluator = evaluators.get(name);
    if (evaluator !== undefined) return evaluator;
    const known = [...evaluators.keys()];
    throw new FloeError('unknown_evaluator', `no evaluator "${name}"; there are ${known.join(', ')}`, { known });
  };
  return {
    names: () => [...evaluators.keys()],
    get,
    check: (spec) => get(spec.strategy).checkConfig(spec.config, spec),
  };
}
