import { FloeError, parseAs } from '@floe-rl/core';
import { type EvaluatorSpec, evaluatorSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { z } from 'zod';
import {
  type Evaluation,
  type EvaluationContext,
  type Evaluator,
  type EvaluatorLookup,
  usesFreshRuntime,
} from './evaluator.ts';

/** Maximum number of members. Their components must fit into the components of one reward. */
const MAX_MEMBERS = 32;
const PATH = 'evaluator.config';

const memberSchema = z.strictObject({
  name: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,64}$/, 'must be 1 to 64 of letters, digits, "_", "-"')
    .describe('name of the component'),
  weight: z.number().default(1).describe('factor of the reward in the sum; 0 for a score that is only recorded'),
  evaluator: evaluatorSpecSchema,
});

const configSchema = z.strictObject({
  evaluators: z
    .array(memberSchema)
    .min(1)
    .max(MAX_MEMBERS)
    .refine((members) => new Set(members.map(({ name }) => name)).size === members.length, 'must have different names'),
});

type Member = z.output<typeof memberSchema>;
type MemberResult = { readonly member: Member; readonly evaluation: Evaluation };

/**
 * Creates the evaluator `multi`, whose reward is the weighted sum of other evaluators' rewards. `registry` returns these evaluators by their
 * names. They run one after the other. Each evaluator that uses a fresh runtime gets its own, because agent code that one evaluator runs there
 * could affect the next evaluator.
 */
export function multiEvaluator(registry: EvaluatorLookup): Evaluator {
  const isFresh = (spec: EvaluatorSpec): boolean => usesFreshRuntime(spec, registry.get(spec.strategy));
  return {
    name: 'multi',
    freshRuntimeByDefault: false,
    wantsFreshRuntime: (config) => parseConfig(config).some(({ evaluator }) => isFresh(evaluator)),
    checkConfig(config, spec) {
      for (const [index, member] of parseConfig(config).entries()) {
        within(index, () => registry.check(specOf(member, spec)));
      }
    },
    async evaluate(context, signal) {
      const results: MemberResult[] = [];
      const nextFreshRuntime = freshRuntimesOf(context, signal);
      for (const member of parseConfig(context.spec.config)) {
        const spec = specOf(member, context.spec);
        const freshRuntime = isFresh(spec) ? await nextFreshRuntime() : null;
        const evaluate = registry.get(spec.strategy).evaluate({ ...context, spec, freshRuntime }, signal);
        results.push({ member, evaluation: await evaluate.catch((thrown) => recordedFailure(member, thrown)) });
      }
      return combined(results);
    },
  };
}

function parseConfig(config: Readonly<Record<string, unknown>>): readonly Member[] {
  return parseAs(configSchema, config, PATH, PATH).evaluators;
}

/**
 * Returns the spec for the evaluation of a member. It gets the variables of `outer`, and no fresh runtime when `outer` forbids a fresh
 * runtime.
 */
function specOf({ evaluator }: Member, outer: EvaluatorSpec | undefined): EvaluatorSpec {
  const refresh_runtime = outer?.refresh_runtime === false ? false : evaluator.refresh_runtime;
  return { ...evaluator, refresh_runtime, env: { ...outer?.env, ...evaluator.env } };
}

/** Calls `check` for the member at `index`. The paths of invalid fields in an error then lead to the member. */
function within(index: number, check: () => void): void {
  try {
    check();
  } catch (thrown) {
    if (!FloeError.is(thrown)) throw thrown;
    const at = `${PATH}.evaluators.${index}.evaluator`;
    const inMember = (path: unknown): string => String(path).replace(/^evaluator\b/, at);
    const { issues } = thrown.details;
    const details = {
      ...thrown.details,
      ...(Array.isArray(issues) ? { issues: issues.map((one) => ({ ...one, path: inMember(one.path) })) } : {}),
    };
    throw new FloeError(thrown.code, `${at}: ${thrown.message}`, details, thrown);
  }
}

/**
 * Returns a function for the fresh runtimes of the members. The first call returns the fresh runtime of the context, and each later call
 * returns a new runtime in its place.
 */
function freshRuntimesOf(
  { freshRuntime, renewFreshRuntime }: EvaluationContext,
  signal: AbortSignal,
): () => Promise<Runtime | null> {
  let isUsed = false;
  return async () => {
    if (!isUsed) {
      isUsed = true;
      return freshRuntime;
    }
    if (renewFreshRuntime === undefined)
      throw new FloeError('internal', 'a second fresh runtime cannot be started here');
    return renewFreshRuntime(signal);
  };
}

/**
 * Returns the result of a member that could not compute its reward and has weight 0. Any other error is rethrown: the sum is then unknown,
 * or the evaluation as a whole has failed.
 */
function recordedFailure({ weight }: Member, thrown: unknown): Evaluation {
  if (weight !== 0 || !FloeError.is(thrown) || thrown.code !== 'evaluator_failed') throw thrown;
  return { reward: null, details: { error: thrown.message } };
}

function combined(results: readonly MemberResult[]): Evaluation {
  const components: Record<string, number | null> = {};
  const details: Record<string, unknown> = {};
  let reward: number | null = 0;
  for (const { member, evaluation } of results) {
    components[member.name] = evaluation.reward;
    for (const [name, value] of Object.entries(evaluation.components ?? {}))
      components[`${member.name}.${name}`] = value;
    details[member.name] = evaluation.details;
    if (member.weight === 0 || reward === null) continue;
    reward = evaluation.reward === null ? null : reward + member.weight * evaluation.reward;
  }
  const weighted = results.filter(({ member }) => member.weight !== 0);
  return { reward, components, details, traceRewards: traceSums(weighted), stepRewards: stepSums(weighted) };
}

/** Sums the members' rewards of each trace that has a reward from at least one member. Other members contribute their reward of the session. */
function traceSums(results: readonly MemberResult[]): Record<string, number> {
  const ids = new Set(results.flatMap(({ evaluation }) => Object.keys(evaluation.traceRewards ?? {})));
  const sumOf = (id: string): number =>
    results.reduce((sum, { member, evaluation }) => {
      return sum + member.weight * (evaluation.traceRewards?.[id] ?? evaluation.reward ?? 0);
    }, 0);
  return Object.fromEntries([...ids].map((id) => [id, sumOf(id)]));
}

/** Sums the rewards of each reply that has a reward. */
function stepSums(results: readonly MemberResult[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const { member, evaluation } of results) {
    for (const [id, reward] of Object.entries(evaluation.stepRewards ?? {})) {
      sums[id] = (sums[id] ?? 0) + member.weight * reward;
    }
  }
  return sums;
}
