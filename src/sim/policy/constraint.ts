import { type ParsedMessage, parseJsonText, ReplyParser } from '../reply-parser.ts';
import { VisibleText } from '../visible-text.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { type JsonSchema, satisfies } from './json-schema.ts';
import { NOISE, type ScriptedReply } from './scripted-reply.ts';

/**
 * A request's constraint on the reply, as plain JSON, so that the ledger can store it. `json`: the content must be JSON that satisfies
 * `schema`; with `or_calls`, a reply of tool calls without content is allowed as well. `call`: the reply must have at least one tool call;
 * when `name` is not `null`, one of the calls must be to that tool.
 */
export type Constraint =
  | { readonly kind: 'json'; readonly schema: JsonSchema; readonly or_calls: boolean }
  | { readonly kind: 'call'; readonly name: string | null };

/** For each leaf (a turn that the rule can write), the message that a client would receive, with and without parsing of tool calls. */
type LeafMessages = { calls?: readonly ParsedMessage[]; plain?: readonly ParsedMessage[] };
const messagesByReply = new WeakMap<ScriptedReply, LeafMessages>();

/**
 * Returns for each leaf of `reply`, that is, for each turn that it can produce, whether `constraint` allows it. `reply` must be compiled
 * without malformed calls. Throws `engine_rejected` for a schema that cannot be checked.
 */
export function allowedLeaves(
  vocabulary: Vocabulary,
  reply: ScriptedReply,
  constraint: Constraint,
): readonly boolean[] {
  if (constraint.kind === 'call') {
    const { name } = constraint;
    return leafMessages(vocabulary, reply, true).map(({ calls }) =>
      calls.some((call) => name === null || call.name === name),
    );
  }
  return leafMessages(vocabulary, reply, constraint.or_calls).map(({ content, calls }) => {
    if (calls.length > 0) return content === null;
    const value = parseJsonText(content ?? '');
    return value !== undefined && satisfies(value, constraint.schema);
  });
}

function leafMessages(vocabulary: Vocabulary, reply: ScriptedReply, parseCalls: boolean): readonly ParsedMessage[] {
  let messages = messagesByReply.get(reply);
  if (messages === undefined) {
    messages = {};
    messagesByReply.set(reply, messages);
  }
  const key = parseCalls ? 'calls' : 'plain';
  messages[key] ??= reply.leaves.map(({ symbols }) => parseTurn(vocabulary, symbols, parseCalls));
  return messages[key];
}

function parseTurn(vocabulary: Vocabulary, symbols: Int32Array, parseCalls: boolean): ParsedMessage {
  const { special } = vocabulary;
  const text = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
  // Noise tokens are left out: they occur only in thinking, to which no constraint applies.
  for (const symbol of symbols) if (symbol !== NOISE) text.push(symbol);
  const parser = new ReplyParser({ special, insideThinking: false, parseCalls, newCallId: String });
  parser.push(text.finish());
  return parser.parsed;
}
