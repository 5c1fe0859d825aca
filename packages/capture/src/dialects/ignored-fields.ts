import { isRecord } from '@floe-rl/core';
import type { Conversation } from './conversation.ts';

/**
 * Fields that floe neither uses nor forwards, and whose loss changes neither the prompt, nor the sampling, nor the reply. Each field name
 * maps to the reason why the loss is harmless.
 */
export type HarmlessFields = Readonly<Record<string, string>>;

/**
 * The fields of a JSON object that floe may receive without noting in the completion that it ignores them. `used` is an object with a key for
 * each field that floe uses or refuses; a zod schema's `shape` is such an object.
 */
type KnownFields = { readonly used: object; readonly harmless: HarmlessFields };

/**
 * Fields for which `false` or 0 may change the reply. The value of each is the only value that needs no note, because it requests floe's own
 * behaviour; `null` when every value of the field needs a note. For every other field, an empty value, `false` and 0 need no note.
 */
const NEUTRAL: Readonly<Record<string, unknown>> = {
  best_of: 1,
  enable_thinking: null,
  include_reasoning: true,
  length_penalty: 1,
  max_tool_calls: null,
  repetition_penalty: 1,
  seed: null,
  separate_reasoning: true,
  skip_special_tokens: true,
  spaces_between_special_tokens: true,
  stream_reasoning: true,
  thinking_token_budget: null,
};

/**
 * Adds a note to the conversation for each field of a request, or of an object inside it, that floe neither uses nor lists as harmless.
 * Fields that a provider adds to its API later are noted in this way too. `prefix` is the path of the object, with a dot at its end.
 */
export function noteIgnoredFields(
  conversation: Conversation,
  object: unknown,
  { used, harmless }: KnownFields,
  prefix = '',
): void {
  if (!isRecord(object)) return;
  for (const [name, value] of Object.entries(object)) {
    if (Object.hasOwn(used, name) || Object.hasOwn(harmless, name) || hasNoEffect(name, value)) continue;
    conversation.note(`${prefix}${name} ignored`);
  }
}

function hasNoEffect(name: string, value: unknown): boolean {
  if (value === null) return true;
  if (Object.hasOwn(NEUTRAL, name)) return NEUTRAL[name] === value;
  if (value === false || value === 0 || value === '') return true;
  if (Array.isArray(value)) return value.length === 0;
  return isRecord(value) && Object.keys(value).length === 0;
}
