import type { RuntimeSpec } from '../schema/index.ts';

/**
 * Returns the settings of the evaluator's fresh runtime: those of the agent's, except for those that the task replaces. The user is not taken
 * over to another image, which may lack it.
 */
export function evalRuntimeSpec(spec: RuntimeSpec): RuntimeSpec {
  const overrides = Object.entries(spec.eval_overrides).filter(([, value]) => value !== undefined);
  const user = spec.eval_overrides.image === undefined ? spec.user : null;
  return { ...spec, user, ...Object.fromEntries(overrides), eval_overrides: {} };
}
