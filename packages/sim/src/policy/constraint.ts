import { type ParsedMessage, parseJsonText, ReplyParser } from '../reply-parser.ts';
import { VisibleText } from '../visible-text.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { type JsonSchema, satisfies } from './json-schema.ts';
import { NOISE, type ScriptedReply } from './scripted-reply.ts';

/**
 * A request's constraint on the reply, as plain JSON, so that the ledger can store it. `json`: the content must be JSON that satisfies
 * `schema`. Instead of content, the reply may consist of tool calls, but only of tools in `or_calls`. `call`: the reply must have at least one
 * tool call, and only calls of tools in `names`.
 */
export type Constraint =
  | { readonly kind: 'json'; readonly schema: JsonSchema; readonly or_calls: readonly string[] }
  | { readonly kind: 'call'; readonly names: readonly string[] };

/**
 * The messages that a client would receive, one for each scripted turn of a reply. `calls` are the messages when tool calls are parsed, and
 * `plain` when they are not.
 */
type TurnMessages = { calls?: readonly ParsedMessage[]; plain?: readonly ParsedMessage[] };
const messagesByReply = new WeakMap<ScriptedReply, TurnMessages>();

/**
 * Returns for each scripted turn of `reply` whether `constraint` allows it. `reply` must be compiled without malformed calls. `from` is the
 * position in the turn at which the constraint begins: as in real engines, tokens before it are not checked. Throws `engine_rejected` for a
 * schema that cannot be checked.
 */
export function allowedTurns(
  vocabulary: Vocabulary,
  reply: ScriptedReply,
  constraint: Constraint,
  from: number,
): readonly boolean[] {
  const messages = (parseCalls: boolean): readonly ParsedMessage[] =>
    from === 0
      ? turnMessages(vocabulary, reply, parseCalls)
      : reply.turns.map(({ symbols }) => parseTurn(vocabulary, symbols.subarray(from), parseCalls));
  if (constraint.kind === 'call') {
    const { names } = constraint;
    return messages(true).map(({ calls }) => calls.length > 0 && calls.every((call) => names.includes(call.name)));
  }
  const { or_calls: names } = constraint;
  return messages(names.length > 0).map(({ content, calls }) => {
    if (calls.length > 0) return content === null && calls.every((call) => names.includes(call.name));
    const value = parseJsonText(content ?? '');
    return value !== undefined && satisfies(value, constraint.schema);
  });
}

/**
 * Returns the position in a reply at which a constraint begins. A turn that the prompt left open may have text already; the constraint
 * begins after it. No constraint applies to thinking, so a turn that has only thinking is constrained from its start.
 */
export function constrainedFrom(vocabulary: Vocabulary, openTurn: readonly number[]): number {
  const { special } = vocabulary;
  const thinkEnd = openTurn.lastIndexOf(special.thinkClose);
  const isThinking = thinkEnd < 0 && openTurn.includes(special.thinkOpen);
  const text = vocabulary.decode(openTurn.slice(thinkEnd + 1));
  return isThinking || text.trim() === '' ? 0 : openTurn.length;
}

function turnMessages(vocabulary: Vocabulary, reply: ScriptedReply, parseCalls: boolean): readonly ParsedMessage[] {
  let messages = messagesByReply.get(reply);
  if (messages === undefined) {
    messages = {};
    messagesByReply.set(reply, messages);
  }
  const key = parseCalls ? 'calls' : 'plain';
  messages[key] ??= reply.turns.map(({ symbols }) => parseTurn(vocabulary, symbols, parseCalls));
  return messages[key];
}

function parseTurn(vocabulary: Vocabulary, symbols: Int32Array, parseCalls: boolean): ParsedMessage {
  const { special } = vocabulary;
  const text = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
  // Noise tokens (randomly drawn thinking tokens) are left out, because no constraint applies to thinking.
  for (const symbol of symbols) if (symbol !== NOISE) text.push(symbol);
  const parser = new ReplyParser({ special, insideThinking: false, parseCalls, newCallId: String });
  parser.push(text.finish());
  return parser.parsed;
}
