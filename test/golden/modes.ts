import type { EngineSpecInput, TaskEngine } from '../../src/schema/index.ts';
import type { SimOptions } from '../../src/sim/index.ts';

/** A way to capture model calls: which API of the engine is used, and in which form it gets prompts. */
export type Mode = {
  readonly name: string;
  readonly sim: SimOptions;
  readonly kind: EngineSpecInput['kind'];
  /** Whether the engine gets prompts as ids. */
  readonly tokens: boolean;
};

export const MODES: readonly Mode[] = [
  { name: 'vllm chat', sim: {}, kind: 'vllm', tokens: false },
  { name: 'vllm tokens', sim: { scaleOut: true }, kind: 'vllm', tokens: true },
  { name: 'sglang chat', sim: { face: 'sglang' }, kind: 'sglang', tokens: false },
  { name: 'sglang input_ids', sim: { face: 'sglang' }, kind: 'sglang', tokens: true },
  // The oldest supported SGLang servers accept no `input_ids` in chat requests. Ids are sent to /generate, and separate endpoints parse
  // the replies.
  { name: 'sglang generate', sim: { face: 'sglang', sglangAge: 'meta_info' }, kind: 'sglang', tokens: true },
];

export function taskEngineOf(mode: Mode, retention: TaskEngine['thinking_retention'] = 'template'): TaskEngine {
  return { pool: 'default', mode: mode.tokens ? 'tokens' : 'chat', thinking_retention: retention };
}
