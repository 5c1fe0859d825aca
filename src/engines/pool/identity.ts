import { isDeepStrictEqual } from 'node:util';
import { type EngineInfo, type EngineSpec, engineSpecSchema } from '../../schema/index.ts';

/** What a server that came back is no longer, in words; null: nothing that matters. */
export function changeOf(before: EngineInfo, after: EngineInfo): string | null {
  if (after.model !== before.model) return `it serves ${after.model}, not ${before.model}`;
  const was = before.capabilities.template.fingerprint;
  const is = after.capabilities.template.fingerprint;
  if (was !== null && is !== null && is !== was) return `its tokenizer or template is ${is}, not ${was}`;
  if (before.capabilities.token_ids && !after.capabilities.token_ids) return 'it tells no token ids any more';
  return null;
}

/** Whether a server that came back does not show any more what its tokenizer and template are; they may be the same. */
export function lostTemplate(before: EngineInfo, after: EngineInfo): boolean {
  return before.capabilities.template.fingerprint !== null && after.capabilities.template.fingerprint === null;
}

/**
 * Whether a server said the same of itself when two connections were made. Then the older one is kept: it has learned since what
 * this server does wrong.
 */
export function sameServer(one: EngineInfo, other: EngineInfo): boolean {
  return isDeepStrictEqual(facts(one), facts(other));
}

function facts(info: EngineInfo): readonly unknown[] {
  return [info.server_version, info.max_model_len, info.logprobs_mode, info.capabilities];
}

/** Why two engines cannot be in one pool; null: they can. */
export function mismatchOf(one: EngineInfo, other: EngineInfo): string | null {
  if (one.capabilities.token_ids !== other.capabilities.token_ids) {
    const [tells, not] = one.capabilities.token_ids ? [one, other] : [other, one];
    return `${tells.engine_id} tells token ids and ${not.engine_id} does not`;
  }
  const [a, b] = [one.capabilities.template.fingerprint, other.capabilities.template.fingerprint];
  if (a === null || b === null || a === b) return null;
  return `${one.engine_id} and ${other.engine_id} differ in tokenizer or template (${a}, ${b})`;
}

/** Whether two specifications of one id say the same. */
export function sameSpec(one: EngineSpec, other: EngineSpec): boolean {
  const keys = Object.keys(engineSpecSchema.shape) as (keyof EngineSpec)[];
  return keys.every((key) => key === 'engine_id' || isDeepStrictEqual(one[key], other[key]));
}
