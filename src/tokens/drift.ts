import { isDeepStrictEqual } from 'node:util';
import { FloeError } from '../core/errors.ts';
import { parseJson } from '../core/parse.ts';
import type { AssistantMessage, ChatMessage, DriftClass, ToolCall } from '../schema/index.ts';

/** Whether two id sequences decode to the same text; null: not known. */
export type SameText = (a: Int32Array, b: Int32Array) => boolean | null;

type Turn = { readonly text: string; readonly reasoning: string; readonly calls: readonly ToolCall[] };

/**
 * Why an assistant turn is not in the next prompt as it was sampled. What the harness did to it is read from the messages: `asked` are
 * those of the next request, from the place of the reply on. `proof` tells whether the sampled and the rendered ids are the same text,
 * and is asked only where the harness gave the reply back whole.
 *
 * Only `retokenized` is a proof: the context reads the same. Where a harness gave all back and the texts differ, or nobody could tell,
 * it was the template: `reasoning_dropped` when there was reasoning, which is what templates drop, else `reserialized`.
 */
export function classifyDrift(
  reply: AssistantMessage,
  asked: readonly ChatMessage[],
  proof: () => boolean | null,
): DriftClass {
  const made = turnOf([reply]);
  const given = turnOf(leadingReplies(asked));
  if (given === null || made === null) return 'rewritten';
  const calls = compareCalls(made.calls, given.calls);
  if (made.text.trim() !== given.text.trim() || calls === 'other') return 'rewritten';
  const reasoning = made.reasoning.trim();
  if (reasoning !== given.reasoning.trim()) return given.reasoning.trim() === '' ? 'reasoning_dropped' : 'rewritten';
  if (proof() === true) return 'retokenized';
  const whole = calls === 'same' && made.text === given.text;
  return whole && reasoning !== '' ? 'reasoning_dropped' : 'reserialized';
}

/** How a reply is given back: 2 with its calls' own ids, 1 with the same meaning, 0 not at all. `asked`: as in {@link classifyDrift}. */
export function likenessOf(reply: AssistantMessage, asked: readonly ChatMessage[]): number {
  const given = turnOf(leadingReplies(asked));
  const made = turnOf([reply]);
  if (given === null || made === null) return 0;
  const named = made.calls.length > 0 && made.calls.length === given.calls.length;
  if (named && made.calls.every((call, place) => call.id === given.calls[place]?.id)) return 2;
  const same = made.text.trim() === given.text.trim() && compareCalls(made.calls, given.calls) !== 'other';
  return same ? 1 : 0;
}

/** A dialect may give one reply back as several assistant messages, reasoning apart from text for instance. */
function leadingReplies(messages: readonly ChatMessage[]): AssistantMessage[] {
  const replies: AssistantMessage[] = [];
  for (const message of messages) {
    if (message.role !== 'assistant') break;
    replies.push(message);
  }
  return replies;
}

function turnOf(messages: readonly AssistantMessage[]): Turn | null {
  if (messages.length === 0) return null;
  return {
    text: messages.map((message) => message.content ?? '').join(''),
    reasoning: messages.map((message) => message.reasoning_content ?? '').join(''),
    calls: messages.flatMap((message) => message.tool_calls ?? []),
  };
}

/** `written_anew`: the same meaning in other letters. Ids of calls are names that floe gave, not part of what was sampled. */
function compareCalls(made: readonly ToolCall[], given: readonly ToolCall[]): 'same' | 'written_anew' | 'other' {
  if (made.length !== given.length) return 'other';
  let same = true;
  for (const [place, { function: one }] of made.entries()) {
    const other = (given[place] as ToolCall).function;
    if (one.name !== other.name) return 'other';
    if (one.arguments === other.arguments) continue;
    if (!sameMeaning(one.arguments, other.arguments)) return 'other';
    same = false;
  }
  return same ? 'same' : 'written_anew';
}

/** More digits than a double tells apart: two such numbers may parse to one. */
const LONG_NUMBER = /\d{16}/;

function sameMeaning(a: string, b: string): boolean {
  if (LONG_NUMBER.test(a) || LONG_NUMBER.test(b)) return false;
  const [one, other] = [parsedOf(a), parsedOf(b)];
  return one !== undefined && isDeepStrictEqual(one, other);
}

/** Undefined for what is no JSON, or nested deeper than can be compared safely. */
function parsedOf(text: string): unknown {
  try {
    return parseJson(text);
  } catch (error) {
    if (FloeError.is(error)) return undefined;
    throw error;
  }
}
