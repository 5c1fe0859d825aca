import { type ParsedMessage, ReplyParser } from './chat-reply.ts';
import { type JsonSchema, satisfies } from './json-schema.ts';
import { NOISE, type Reply } from './reply.ts';
import { VisibleText } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';

/**
 * What a request demands of a reply's form; plain JSON, so that the ledger can hold it.
 * - `json`: the content is JSON that satisfies `schema`. With `or_calls`, a reply of tool calls alone will do as well.
 * - `call`: at least one tool call; with `name`, one to that tool.
 */
export type Constraint =
  | { readonly kind: 'json'; readonly schema: JsonSchema; readonly or_calls: boolean }
  | { readonly kind: 'call'; readonly name: string | null };

/** What a client would read of each leaf, by reply; the second one without a look for tool calls. */
type LeafMessages = { calls?: readonly ParsedMessage[]; plain?: readonly ParsedMessage[] };
const messagesOf = new WeakMap<Reply, LeafMessages>();

/**
 * Says for each leaf whether `constraint` allows it to be written. A leaf is judged by its whole turn. `reply` must be
 * compiled without malformed calls. Throws `engine_rejected` for a schema that cannot be checked.
 */
export function allowedLeaves(vocabulary: Vocabulary, reply: Reply, constraint: Constraint): readonly boolean[] {
  if (constraint.kind === 'call') {
    const { name } = constraint;
    return leafMessages(vocabulary, reply, true).map(({ calls }) =>
      calls.some((call) => name === null || call.name === name),
    );
  }
  return leafMessages(vocabulary, reply, constraint.or_calls).map(({ content, calls }) => {
    if (calls.length > 0) return content === null;
    const value = jsonOf(content ?? '');
    return value !== undefined && satisfies(value, constraint.schema);
  });
}

function leafMessages(vocabulary: Vocabulary, reply: Reply, parseCalls: boolean): readonly ParsedMessage[] {
  let known = messagesOf.get(reply);
  if (known === undefined) {
    known = {};
    messagesOf.set(reply, known);
  }
  const key = parseCalls ? 'calls' : 'plain';
  known[key] ??= reply.leaves.map(({ symbols }) => readTurn(vocabulary, symbols, parseCalls));
  return known[key];
}

function readTurn(vocabulary: Vocabulary, symbols: Int32Array, parseCalls: boolean): ParsedMessage {
  const { special } = vocabulary;
  const text = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
  // Noise stands in thinking only, which nobody judges.
  for (const symbol of symbols) if (symbol !== NOISE) text.push(symbol);
  const parser = new ReplyParser({ special, insideThinking: false, parseCalls, newCallId: String });
  parser.push(text.finish());
  return parser.parsed;
}

/** Undefined for text that is no JSON. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
