import { isDeepStrictEqual } from 'node:util';
import { FloeError } from '@floe-rl/core';
import {
  type EngineInfo,
  type EngineMode,
  type EngineSpec,
  engineSpecSchema,
  type TemplateFacts,
} from '@floe-rl/core/schema';
import type { PoolMode } from './engine-pools.ts';

/**
 * Describes how a reconnected server (`after`) differs from the server that was registered (`before`); `null` when no difference matters.
 */
export function changeOf(before: EngineInfo, after: EngineInfo): string | null {
  if (after.model !== before.model) return `it serves ${after.model}, not ${before.model}`;
  const joined = before.capabilities.template.fingerprint;
  const current = after.capabilities.template.fingerprint;
  if (joined !== null && current !== null && current !== joined) {
    return `its tokenizer or template is ${current}, not ${joined}`;
  }
  if (before.capabilities.token_ids && !after.capabilities.token_ids) return 'it no longer reports token ids';
  return null;
}

/**
 * Whether a reconnected server no longer reports a fingerprint of its tokenizer and template, so that it cannot be compared with the server
 * that was registered.
 */
export function hasLostTemplate(before: EngineInfo, after: EngineInfo): boolean {
  return before.capabilities.template.fingerprint !== null && after.capabilities.template.fingerprint === null;
}

/**
 * Whether a server reported the same properties on two connections. If so the older connection is kept, because its adapter may have
 * detected, from replies, features that the server does not support.
 */
export function isSameServer(one: EngineInfo, other: EngineInfo): boolean {
  return isDeepStrictEqual(reportedBy(one), reportedBy(other));
}

function reportedBy(info: EngineInfo): readonly unknown[] {
  return [info.server_version, info.max_model_len, info.logprobs_mode, info.capabilities];
}

/** Describes why two engines cannot be in the same pool; `null` when they can. */
export function mismatchOf(one: EngineInfo, other: EngineInfo): string | null {
  if (one.capabilities.token_ids !== other.capabilities.token_ids) {
    const [reports, omits] = one.capabilities.token_ids ? [one, other] : [other, one];
    return `${reports.engine_id} reports token ids and ${omits.engine_id} does not`;
  }
  const [a, b] = [one.capabilities.template.fingerprint, other.capabilities.template.fingerprint];
  if (a === null || b === null || a === b) return null;
  return `${one.engine_id} and ${other.engine_id} differ in tokenizer or template (${a}, ${b})`;
}

/** Whether two engine specifications are equal, apart from their engine ids. */
export function isSameSpec(one: EngineSpec, other: EngineSpec): boolean {
  const keys = Object.keys(engineSpecSchema.shape) as (keyof EngineSpec)[];
  return keys.every((key) => key === 'engine_id' || isDeepStrictEqual(one[key], other[key]));
}

/**
 * Determines the capture mode (`tokens`, `chat` or `text`) of a session in this pool, as `EnginePools.modeOf` describes it. `engines` are
 * the pool's engines.
 */
export function captureModeOf(pool: string, engines: readonly EngineInfo[], requested: EngineMode): PoolMode {
  const [first, ...others] = engines;
  if (first === undefined) throw new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
  const template = others.reduce(
    (facts, { capabilities }) => commonFacts(facts, capabilities.template),
    first.capabilities.template,
  );
  if (requested !== 'chat') {
    const obstacle = engines.map(obstacleToTokens).find((reason) => reason !== null) ?? null;
    if (obstacle === null) return { mode: 'tokens', template };
    if (requested === 'tokens') {
      throw new FloeError('unsupported', `pool ${pool} cannot be used in tokens mode: ${obstacle}`);
    }
  }
  return { mode: engines.every(({ capabilities }) => capabilities.token_ids) ? 'chat' : 'text', template };
}

/** Describes why an engine does not support the capture mode `tokens`; `null` when it supports it. */
function obstacleToTokens({ engine_id, kind, capabilities }: EngineInfo): string | null {
  const { token_ids, token_input, notes } = capabilities;
  if (token_ids && token_input !== 'none') return null;
  const reason = token_ids ? 'accepts no prompt of token ids' : 'reports no token ids';
  return `engine ${engine_id} (${kind}) ${[reason, ...notes].join('; ')}`;
}

/**
 * Combines the properties of two chat templates: keeps each property that is the same for both, and marks all other properties as unknown.
 */
function commonFacts(one: TemplateFacts, other: TemplateFacts): TemplateFacts {
  const isSameClose =
    one.close_ids.length === other.close_ids.length && one.close_ids.every((id, i) => id === other.close_ids[i]);
  return {
    close_ids: isSameClose ? one.close_ids : [],
    call_end: isDeepStrictEqual(one.call_end, other.call_end) ? one.call_end : { ids: [], each: null },
    tail_render: one.tail_render && other.tail_render,
    thinking: {
      tool_results: one.thinking.tool_results === other.thinking.tool_results ? one.thinking.tool_results : 'unknown',
      user_message: one.thinking.user_message === other.thinking.user_message ? one.thinking.user_message : 'unknown',
    },
    fingerprint: one.fingerprint === other.fingerprint ? one.fingerprint : null,
  };
}
