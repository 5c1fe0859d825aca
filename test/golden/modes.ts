import type { EngineSpecInput, TaskEngine } from '../../src/schema/index.ts';
import type { SimOptions } from '../../src/sim/index.ts';

/** One way to capture model calls: the engine's API and the form of its prompts. */
export type Mode = {
  readonly name: string;
  readonly sim: SimOptions;
  readonly kind: EngineSpecInput['kind'];
  /** Whether prompts are sent as ids. */
  readonly tokens: boolean;
};

export const MODES: readonly Mode[] = [
  { name: 'vllm chat', sim: {}, kind: 'vllm', tokens: false },
  { name: 'vllm tokens', sim: { scaleOut: true }, kind: 'vllm', tokens: true },
  { name: 'sglang chat', sim: { face: 'sglang' }, kind: 'sglang', tokens: false },
  { name: 'sglang input_ids', sim: { face: 'sglang' }, kind: 'sglang', tokens: true },
  // The oldest supported servers have no `input_ids`: ids are sent to /generate, and separate endpoints parse the replies.
  { name: 'sglang generate', sim: { face: 'sglang', sglangAge: 'meta_info' }, kind: 'sglang', tokens: true },
];

export function taskEngineOf(mode: Mode, retention: TaskEngine['thinking_retention'] = 'template'): TaskEngine {
  return { pool: 'default', mode: mode.tokens ? 'tokens' : 'chat', thinking_retention: retention };
}
