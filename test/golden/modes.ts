import type { EngineSpecInput, TaskEngine } from '@floe-rl/core/schema';
import type { SimOptions } from '@floe-rl/sim';

/**
 * A way in which the proxy captures model calls: which API of the engine it uses, and whether it sends prompts as token ids or as messages.
 */
export type Mode = {
  readonly name: string;
  readonly sim: SimOptions;
  readonly kind: EngineSpecInput['kind'];
  /** Whether the proxy sends prompts to the engine as token ids. Otherwise it sends messages, which the engine renders. */
  readonly tokens: boolean;
};

export const MODES: readonly Mode[] = [
  { name: 'vllm chat', sim: {}, kind: 'vllm', tokens: false },
  { name: 'vllm tokens', sim: { scaleOut: true }, kind: 'vllm', tokens: true },
  { name: 'sglang chat', sim: { face: 'sglang' }, kind: 'sglang', tokens: false },
  { name: 'sglang input_ids', sim: { face: 'sglang' }, kind: 'sglang', tokens: true },
  // The oldest supported SGLang servers accept no `input_ids` in chat requests. The proxy therefore sends token ids to /generate, and
  // separate endpoints of the engine parse the replies.
  { name: 'sglang generate', sim: { face: 'sglang', sglangAge: 'meta_info' }, kind: 'sglang', tokens: true },
];

export function taskEngineOf(mode: Mode, retention: TaskEngine['thinking_retention'] = 'template'): TaskEngine {
  return { pool: 'default', mode: mode.tokens ? 'tokens' : 'chat', thinking_retention: retention };
}
