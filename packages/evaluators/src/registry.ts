import { type Clock, FloeError, parseAs, systemClock } from '@floe-rl/core';
import type { EvaluatorSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import { answerEvaluator } from './answer.ts';
import { codeTestsEvaluator } from './code-tests.ts';
import { environmentEvaluator } from './environment.ts';
import { type Evaluator, type EvaluatorLookup, usesFreshRuntime } from './evaluator.ts';
import { type HostSource, harborEvaluator } from './harbor.ts';
import { type JudgeEngine, judgeEvaluator } from './judge.ts';
import type { MathChecker } from './math/checker.ts';
import { multiEvaluator } from './multi.ts';
import { scriptEvaluator } from './script.ts';
import { stepsEvaluator } from './steps.ts';
import { sweBenchEvaluator } from './swebench/evaluator.ts';
import { testOnOutputEvaluator } from './test-on-output.ts';

export type EvaluatorRegistry = EvaluatorLookup & {
  names(): string[];
  /**
   * Whether a session with this evaluator uses a fresh runtime. Returns true for a spec that {@link check} refuses, so that too much memory is
   * reserved rather than too little.
   */
  readonly usesFreshRuntime: (spec: EvaluatorSpec) => boolean;
};

/** Services that evaluators use in addition to sandboxes. A process that only checks the configurations of tasks has none of them. */
export type EvaluatorServices = {
  readonly math?: MathChecker;
  readonly judge?: JudgeEngine;
  /** Files of the node's host that evaluators copy into sandboxes. */
  readonly hostSource?: HostSource;
};

/**
 * Creates the registry of all evaluators of floe and the `custom` evaluators of the operator. Time limits of the evaluators are measured by
 * `clock`. Throws `setup_failed` for a custom evaluator whose name another evaluator has.
 */
export function evaluatorRegistry(
  clock: Clock = systemClock,
  services: EvaluatorServices = {},
  custom: readonly Evaluator[] = [],
): EvaluatorRegistry {
  const evaluators = new Map<string, Evaluator>();
  const get = (name: string): Evaluator => {
    const evaluator = evaluators.get(name);
    if (evaluator !== undefined) return evaluator;
    const known = [...evaluators.keys()];
    throw new FloeError('unknown_evaluator', `no evaluator "${name}"; there are ${known.join(', ')}`, { known });
  };
  const check = (spec: EvaluatorSpec): void => get(spec.strategy).checkConfig(spec.config, spec);
  const isFresh = (spec: EvaluatorSpec): boolean => {
    try {
      return usesFreshRuntime(spec, get(spec.strategy));
    } catch (error) {
      if (FloeError.is(error)) return true;
      throw error;
    }
  };
  const builtIn = [
    sessionCompletedEvaluator,
    environmentEvaluator,
    testOnOutputEvaluator(clock),
    scriptEvaluator(clock),
    codeTestsEvaluator(clock),
    sweBenchEvaluator(clock),
    harborEvaluator(clock, services.hostSource ?? noHostSource),
    answerEvaluator(clock, services.math ?? null),
    judgeEvaluator(services.judge ?? null),
    multiEvaluator({ get, check }),
    stepsEvaluator,
  ];
  for (const evaluator of [...builtIn, ...custom]) {
    if (evaluators.has(evaluator.name)) {
      throw new FloeError('setup_failed', `there is an evaluator "${evaluator.name}" already`);
    }
    evaluators.set(evaluator.name, evaluator);
  }
  return { names: () => [...evaluators.keys()], get, check, usesFreshRuntime: isFresh };
}

const noHostSource: HostSource = (path) => {
  throw new FloeError('source_forbidden', `${path} is not below an upload root of this node`, { source: path });
};

const noConfigSchema = z.strictObject({});

/** Evaluator that runs no command. The reward is 1 when the agent's run ended as COMPLETED, else 0. */
const sessionCompletedEvaluator: Evaluator = {
  name: 'session_completed',
  freshRuntimeByDefault: false,
  checkConfig(config) {
    parseAs(noConfigSchema, config, 'evaluator.config', 'evaluator.config');
  },
  async evaluate({ spec, status }) {
    parseAs(noConfigSchema, spec.config, 'evaluator.config', 'evaluator.config');
    return { reward: status === 'COMPLETED' ? 1 : 0, details: { status } };
  },
};
