import { FloeError, fieldError, messageOf, parseAs, raceAbort } from '@floe-rl/core';
import { z } from 'zod';
import type { Evaluator } from './evaluator.ts';

/** The argument of `createEvaluator` in an operator's evaluator module. */
export type EvaluatorKit = {
  /** Creates the error that an evaluator should throw for a wrong configuration field. */
  readonly refusal: (field: string, message: string) => FloeError;
};

/** The exports of a module that an operator registers as an evaluator; see docs/guides/write-an-evaluator.md. */
export type EvaluatorModule = {
  createEvaluator(
    kit: EvaluatorKit,
  ): Pick<Evaluator, 'checkConfig' | 'evaluate'> & Partial<Pick<Evaluator, 'freshRuntimeByDefault'>>;
};

const partsSchema = z.object({
  checkConfig: z.custom<Evaluator['checkConfig']>((value) => typeof value === 'function', 'must be a function'),
  evaluate: z.custom<Evaluator['evaluate']>((value) => typeof value === 'function', 'must be a function'),
  freshRuntimeByDefault: z.boolean().default(true),
});

const KIT: EvaluatorKit = {
  refusal: (field, message) => fieldError(`evaluator.config.${field}`, message),
};

/**
 * Wraps the evaluator of an operator's module under the name that the operator configured. `where` names the module in error messages. Throws
 * `setup_failed` for a module that does not export `createEvaluator` or whose evaluator lacks a function. Errors of floe's own functions, such
 * as a runtime's errors, keep their codes; any other error becomes `evaluator_failed`. When the signal of an evaluation aborts, its result is
 * not awaited.
 */
export function customEvaluator(name: string, where: string, module: Readonly<Record<string, unknown>>): Evaluator {
  const parts = partsOf(where, module.createEvaluator);
  const failed = (error: unknown): unknown => {
    if (FloeError.is(error)) return error;
    const message = messageOf(error);
    return new FloeError('evaluator_failed', `evaluator ${name}: ${message}`, { evaluator: name }, error);
  };
  return {
    name,
    freshRuntimeByDefault: parts.freshRuntimeByDefault,
    checkConfig(config, spec) {
      try {
        parts.checkConfig(config, spec);
      } catch (error) {
        throw failed(error);
      }
    },
    async evaluate(context, signal) {
      // An error that is thrown before the first promise must become a rejection too.
      const evaluation = (async () => parts.evaluate(context, signal))();
      try {
        return await raceAbort(evaluation, signal);
      } catch (error) {
        throw failed(error);
      }
    },
  };
}

/**
 * Returns a placeholder for an evaluator whose module only the nodes have. A server knows its name; nodes check the configuration before they
 * start anything.
 */
export function evaluatorOfNodes(name: string): Evaluator {
  return {
    name,
    freshRuntimeByDefault: true,
    checkConfig: () => {},
    evaluate: () => Promise.reject(new FloeError('evaluator_failed', `this process has no evaluator ${name}`)),
  };
}

function partsOf(where: string, createEvaluator: unknown): z.output<typeof partsSchema> {
  if (typeof createEvaluator !== 'function') {
    throw new FloeError('setup_failed', `${where} does not export a function createEvaluator`);
  }
  try {
    return parseAs(partsSchema, createEvaluator(KIT), 'what createEvaluator returned');
  } catch (error) {
    const message = messageOf(error);
    throw new FloeError('setup_failed', `${where}: ${message}`, {}, error);
  }
}
