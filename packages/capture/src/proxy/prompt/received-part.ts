import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, TemplateFacts } from '@floe-rl/core/schema';
import { INCOMPLETE_END } from '../../engines/chat/stop-strings.ts';
import type { CallContext } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { IndexedTurn, MatchedTurn } from './prefix-index.ts';

/** A recorded turn that a prompt may continue, and the response ids that its harness received. */
type ReceivedTurn = { readonly matched: MatchedTurn; readonly received: Int32Array };

/** A recorded reply, and the values that are needed to decode its ids. */
type ReceivedRequest = {
  readonly names: CallContext;
  readonly template: TemplateFacts;
  readonly completion: Completion;
};

/** Returns the text of the first `count` ids of a reply. */
type Decoder = (count: number) => Promise<string>;

/** The last characters of tool calls in formats without a closing delimiter: brackets of JSON, XML or Python, and code fences. */
const CALL_ENDING = /[\]})>`]$/;

/**
 * Determines the part of a recorded reply that its harness received. An engine samples more than it returns in two cases. Either the reply
 * ended at a stop string, which is not part of the message. Or the reply has tool calls and the engine's parser dropped what follows them:
 * text, or further calls where the request allows one. The prompt of a later turn must contain only the received part.
 */
export class ReceivedParts {
  private readonly engines: EnginePools;
  private readonly counts = new WeakMap<Completion, { readonly count: number | null }>();

  constructor(engines: EnginePools) {
    this.engines = engines;
  }

  /**
   * Returns the last recorded turn of the history that a prompt can continue; `null` when there is none. `last` is the last recorded turn of
   * the history. A turn whose harness received a text that ends inside a token cannot be continued. The prompt then continues an earlier turn,
   * and the engine renders the later ones. Rejects as `EnginePools.detokenize` does.
   */
  async lastWhole(
    last: MatchedTurn,
    names: CallContext,
    template: TemplateFacts,
    signal: AbortSignal,
  ): Promise<ReceivedTurn | null> {
    for (let matched: MatchedTurn | null = last; matched !== null; matched = matched.previous) {
      const { completion } = matched.turn;
      // Without valid ids the turn is not spliced, so nothing needs to be decoded.
      if (!hasCurrentIds(matched.turn, template)) return { matched, received: completion.responseIds };
      const count = await this.count({ names, template, completion }, signal);
      if (count !== null) return { matched, received: completion.responseIds.subarray(0, count) };
    }
    return null;
  }

  /**
   * Returns the number of leading response ids that the harness received, including the end-of-turn id of a reply that was received whole.
   * White space at the end of a text is ignored. `null` when the received text ends inside a token, or its end cannot be determined.
   * Otherwise rejects as `EnginePools.detokenize` does.
   */
  private async count(request: ReceivedRequest, signal: AbortSignal): Promise<number | null> {
    const known = this.counts.get(request.completion);
    if (known !== undefined) return known.count;
    const count = await this.determine(request, signal);
    this.counts.set(request.completion, { count });
    return count;
  }

  private async determine(request: ReceivedRequest, signal: AbortSignal): Promise<number | null> {
    const { names, completion, template } = request;
    const { responseIds: ids, message, stop } = completion;
    const hasCalls = (message.tool_calls ?? []).length > 0;
    if (!hasCalls && stop?.kind !== 'string') return ids.length;
    const length = lengthWithoutClose(completion, template);
    if (hasCalls && endsWithItsCalls(completion, template, length)) return ids.length;
    const decode = (some: Int32Array): Promise<string> =>
      some.length === 0 ? Promise.resolve('') : this.engines.detokenize(some, names, signal);
    try {
      const text = await decode(ids.subarray(0, length));
      const end = hasCalls
        ? endOfCalls(text, await this.callDelimiter(template, decode), completion)
        : endBeforeStop(text, completion);
      if (end === null) return null;
      if (hasCalls && text.slice(end).trim() === '') {
        return hasFurtherCalls(completion, template) ? null : ids.length;
      }
      return await countOfText(text.slice(0, end), length, (count) => decode(ids.subarray(0, count)));
    } catch (error) {
      // An engine that cannot decode ids leaves the end of the received part unknown.
      if (FloeError.is(error) && error.code === 'unsupported') return null;
      throw error;
    }
  }

  /** Returns the text that closes tool calls in the template, such as `</tool_call>`; `null` when this text contains no letters. */
  private async callDelimiter(
    { call_end }: TemplateFacts,
    decode: (ids: Int32Array) => Promise<string>,
  ): Promise<string | null> {
    const text = await decode(Int32Array.from(call_end.ids));
    const delimiter = text.trim().split(/\s+/).at(-1) ?? '';
    return /\p{L}/u.test(delimiter) ? delimiter : null;
  }
}

/**
 * Whether a turn's recorded token ids are valid for the engines that the pool has now. They are invalid when the completion has no ids, or
 * when the engines were replaced by others with another tokenizer or chat template.
 */
export function hasCurrentIds({ completion, fingerprint }: IndexedTurn, template: TemplateFacts): boolean {
  return completion.capture.mode !== 'text' && fingerprint === template.fingerprint;
}

function lengthWithoutClose({ responseIds, stop }: Completion, { close_ids }: TemplateFacts): number {
  const last = responseIds.at(-1);
  const isClosed = last !== undefined && (close_ids.includes(last) || (stop?.kind === 'token' && stop.id === last));
  return isClosed ? responseIds.length - 1 : responseIds.length;
}

/**
 * Whether the last id of the reply closes the last tool call of a turn in the template, and the reply's message has all tool calls of the
 * reply. This check needs no decoding. Nearly all replies with tool calls pass it when this id is a special token.
 */
function endsWithItsCalls(
  { responseIds, message, request }: Completion,
  { call_end: { ids, each } }: TemplateFacts,
  length: number,
): boolean {
  if (ids.length === 0 || responseIds[length - 1] !== ids.at(-1)) return false;
  return (
    request.parallelToolCalls !== false ||
    (each !== null && callCount(responseIds, each) === message.tool_calls?.length)
  );
}

/** Whether more tool calls were sampled than the message has, because the request allows only one. */
function hasFurtherCalls(
  { responseIds, message, request }: Completion,
  { call_end: { each } }: TemplateFacts,
): boolean {
  if (request.parallelToolCalls !== false || each === null) return false;
  return callCount(responseIds, each) > (message.tool_calls ?? []).length;
}

/** Returns the number of tool calls in a reply. Each call ends with the id `each`. */
function callCount(ids: Int32Array, each: number): number {
  return ids.filter((id) => id === each).length;
}

/** Returns the position in the text at which the stop string begins; `null` when the message does not end there. */
function endBeforeStop(text: string, { message, stop }: Completion): number | null {
  const end = stop?.kind === 'string' ? text.indexOf(stop.text) : -1;
  if (end < 0) return null;
  const content = (message.content ?? '').trim();
  return text.slice(0, end).trimEnd().endsWith(content) ? end : null;
}

/**
 * Returns the position in the text after the last tool call of the message; `null` when the position is unknown. Without a delimiter, the
 * last tool call is assumed to end with the text if the text ends with a character that can end a call.
 */
function endOfCalls(text: string, delimiter: string | null, { message, request }: Completion): number | null {
  if (delimiter === null) return CALL_ENDING.test(text.trimEnd()) ? text.length : null;
  const ends = endsOf(delimiter, text);
  // The last call is not closed if the text contains no delimiter. Parsers accept such a call, and nothing can follow it.
  if (ends.length === 0) return text.length;
  const last = ends.at(-1) ?? null;
  if (request.parallelToolCalls !== false || message.tool_calls?.length !== 1) return last;
  // The texts of the message may contain the delimiter. These occurrences come before the delimiter that closes the call.
  const inMessage = textsOf(message).reduce((sum, part) => sum + endsOf(delimiter, part).length, 0);
  return ends[inMessage] ?? null;
}

function textsOf({ content, reasoning_content: thinking, tool_calls: calls = [] }: AssistantMessage): string[] {
  return [content ?? '', thinking ?? '', ...calls.map((call) => call.function.arguments)];
}

/** Returns the positions after all occurrences of `part` in `text`. */
function endsOf(part: string, text: string): number[] {
  const ends: number[] = [];
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) ends.push(at + part.length);
  return ends;
}

/**
 * Returns the number of leading ids whose text is `text`, apart from white space at the end; `null` when there is no such number because
 * `text` ends inside a token. `length` is the largest possible number. Decodes about log2(length) times.
 */
async function countOfText(text: string, length: number, decode: Decoder): Promise<number | null> {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const part = (await decode(middle)).replace(INCOMPLETE_END, '');
    if (part.length <= text.length) low = middle;
    else high = middle - 1;
  }
  // One token may contain the last character of the text and a line break that begins the stop string, so one id more is tried.
  for (const count of [low, low + 1]) {
    if (count <= length && (await decode(count)).trimEnd() === text.trimEnd()) return count;
  }
  return null;
}
