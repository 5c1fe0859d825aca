/**
 * Matches a policy version that names an optimizer step: a number, alone or after letters only (`v12`) or a separator (`qwen3-step-12`).
 * The digits at the end of a hash are no step.
 */
const STEP = /(?:^[a-z]*|[^0-9a-z])([0-9]+)$/i;
/** The largest step: trainers, Arrow and the store have steps as int32. */
const MAX_STEP = 2 ** 31 - 1;

/**
 * Returns the optimizer step that a policy version names, such as 12 for `step-12`; `null` when it names no step or a step above int32's
 * maximum.
 */
export function policyStep(version: string): number | null {
  const step = Number(version.match(STEP)?.[1] ?? Number.NaN);
  return step <= MAX_STEP ? step : null;
}
