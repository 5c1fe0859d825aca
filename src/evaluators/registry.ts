import { z } from 'zod';
import { type Clock, systemClock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import type { EvaluatorSpec } from '../schema/index.ts';
import type { Evaluator } from './evaluator.ts';
import { testOnOutputEvaluator } from './test-on-output.ts';

export type EvaluatorRegistry = {
  names(): string[];
  /** Throws `unknown_evaluator`; the message lists all names. */
  get(name: string): Evaluator;
  /** Throws `unknown_evaluator` or `schema_violation`. Called at submission, before any work. */
  check(spec: EvaluatorSpec): void;
};

/** All evaluators of floe; their time limits run on `clock`. */
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

const noConfigSchema = z.strictObject({});

/** A reward of 1 when the agent's run ended as COMPLETED, else 0. It runs no command. */
const sessionCompletedEvaluator: Evaluator = {
  name: 'session_completed',
  checkConfig(config) {
    parseAs(noConfigSchema, config, 'evaluator.config', 'evaluator.config');
  },
  async evaluate({ spec, status }) {
    parseAs(noConfigSchema, spec.config, 'evaluator.config', 'evaluator.config');
    return { reward: status === 'COMPLETED' ? 1 : 0, details: { status } };
  },
};
