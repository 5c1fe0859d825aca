import type { RuntimeSpec } from '../schema/index.ts';

/**
 * Returns the settings of the evaluator's fresh runtime: the settings of the agent's runtime, with the replacements in `eval_overrides`. If
 * the image is replaced, the user is not kept, because the other image may lack it.
 */
export function evalRuntimeSpec(spec: RuntimeSpec): RuntimeSpec {
  const overrides = Object.entries(spec.eval_overrides).filter(([, value]) => value !== undefined);
  const user = spec.eval_overrides.image === undefined ? spec.user : null;
  return { ...spec, user, ...Object.fromEntries(overrides), eval_overrides: {} };
}
