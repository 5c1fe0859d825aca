import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, TemplateFacts } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { CallContext, EngineNotice } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import {
  closesLike,
  equalIds,
  type HistoryEnd,
  historyEndOf,
  type PlaceholderCall,
  placeholderHistory,
  suffixAfter,
} from '../../engines/turn-close.ts';
import type { Completion } from '../../tokens/completion.ts';

/** A request to render the new messages that follow a recorded completion. */
export type SuffixRequest = {
  readonly names: CallContext;
  readonly template: TemplateFacts;
  readonly completion: Completion;
  /** The messages of the whole conversation. */
  readonly messages: readonly ChatMessage[];
  /** All messages of the conversation as JSON texts, in the form that engines accept. */
  readonly texts: readonly string[];
  readonly toolsText: string;
  /** Index of the first new message in `messages`. */
  readonly from: number;
};

/**
 * Maximum number of cached {@link HistoryEnd} values (how a rendered history ends). A cache key contains the names of tool calls, which are
 * few in practice. Without the limit, a policy that invents names would fill the memory.
 */
const MAX_CLOSINGS = 256;
/** Maximum number of characters of a key in the cache of {@link HistoryEnd} values. A value with a longer key is not cached. */
const MAX_KEY_CHARS = 4096;

/**
 * One in this many suffixes is rendered twice: once after a placeholder history (a short invented conversation) and once after the real
 * conversation. The results are compared; see {@link SuffixRenderer}.
 */
const CHECK_ONE_IN = 64;

const NO_TOOLS = '[]';

/**
 * Renders suffixes. A suffix is the token ids that new messages add after a recorded turn, according to the engine's chat template. The
 * engine renders a history followed by the new messages. The suffix is the part of the result after the history, whose end is found by
 * counting its end-of-turn ids. There are two forms of the history:
 *
 * - short form: a placeholder history, which is an invented conversation of one turn and fast to render.
 * - full form: the real conversation without thinking. A template may omit old thinking, which could change the number of end-of-turn ids.
 *
 * All sessions of a proxy share one instance.
 */
export class SuffixRenderer {
  private readonly engines: EnginePools;
  private readonly notice: EngineNotice;
  private readonly closings = new LRUCache<string, { readonly closing: HistoryEnd | null }>({ max: MAX_CLOSINGS });
  /**
   * Keys of the chat templates for which a suffix was wrong when it was rendered after a placeholder history (a short invented
   * conversation). For these templates, suffixes are always rendered after the real conversation.
   */
  private readonly fullOnly = new Set<string>();

  constructor(engines: EnginePools, notice: EngineNotice) {
    this.engines = engines;
    this.notice = notice;
  }

  /**
   * Returns the suffix; `null` when it cannot be determined, for example because the chat template refuses the messages. Otherwise rejects
   * as `EnginePools.render` does.
   */
  async render(request: SuffixRequest, signal: AbortSignal): Promise<Int32Array | null> {
    const { template } = request;
    if (template.close_ids.length === 0) return null;
    const plain = await this.closing(request, [], signal);
    if (plain === null) return null;
    const key = templateKey(request);
    const short = this.allowsShortForm(request) ? await this.short(request, plain, signal) : null;
    if (short === null) return this.full(request, plain, signal);
    if (!isChecked(request.names.completionId)) return short;
    const full = await this.full(request, plain, signal);
    if (full === null || equalIds(full, short)) return short;
    this.fullOnly.add(key);
    this.notice(
      'the chat template renders new messages differently after a short history; whole conversations are rendered from now on',
      {
        pool: request.names.pool,
        completion_id: request.names.completionId,
      },
    );
    return full;
  }

  private allowsShortForm(request: SuffixRequest): boolean {
    const { template, messages, from } = request;
    if (!template.tail_render || this.fullOnly.has(templateKey(request))) return false;
    return messages
      .slice(from)
      .every(({ role, content }) => (role === 'user' || role === 'tool') && typeof content === 'string');
  }

  private async short(request: SuffixRequest, plain: HistoryEnd, signal: AbortSignal): Promise<Int32Array | null> {
    const { completion, texts, from, template } = request;
    const calls = (completion.message.tool_calls ?? []).map(({ function: called }, index) => ({
      id: completion.engineCallIds[index] ?? '',
      name: called.name,
    }));
    const closing = calls.length === 0 ? plain : await this.closing(request, calls, signal);
    if (closing === null || !closesLike(closing, plain)) return null;
    const history = placeholderHistory(calls);
    const whole = await this.idsOf(request, [...history, ...texts.slice(from)], NO_TOOLS, true, signal);
    return whole && suffixAfter(whole, template.close_ids, closing);
  }

  private async full(request: SuffixRequest, plain: HistoryEnd, signal: AbortSignal): Promise<Int32Array | null> {
    const { messages, texts, from, toolsText, template } = request;
    const history = texts.slice(0, from).map((text, index) => {
      return messages[index]?.role === 'assistant' ? withoutThinking(text) : text;
    });
    const head = await this.idsOf(request, history, toolsText, false, signal);
    const closing = head && historyEndOf(head, template.close_ids);
    if (!closing || !closesLike(closing, plain)) return null;
    const whole = await this.idsOf(request, [...history, ...texts.slice(from)], toolsText, true, signal);
    return whole && suffixAfter(whole, template.close_ids, closing);
  }

  /**
   * Returns how the rendering of a placeholder history (a short invented conversation) ends; `null` when that is unknown. The result is
   * cached, because it is the same for all placeholder histories whose tool calls have the same names.
   */
  private async closing(
    request: SuffixRequest,
    calls: readonly PlaceholderCall[],
    signal: AbortSignal,
  ): Promise<HistoryEnd | null> {
    const { close_ids } = request.template;
    const key = JSON.stringify([templateKey(request), close_ids, calls.map(({ name }) => name)]);
    const cached = this.closings.get(key);
    if (cached !== undefined) return cached.closing;
    const ids = await this.idsOf(request, placeholderHistory(calls), NO_TOOLS, false, signal);
    const closing = ids && historyEndOf(ids, close_ids);
    if (key.length <= MAX_KEY_CHARS) this.closings.set(key, { closing });
    return closing;
  }

  /** Returns the token ids of rendered messages; `null` when the chat template refuses the messages. */
  private async idsOf(
    { names }: SuffixRequest,
    messageTexts: readonly string[],
    toolsText: string,
    generationPrompt: boolean,
    signal: AbortSignal,
  ): Promise<Int32Array | null> {
    try {
      return await this.engines.render({ ...names, messageTexts, toolsText, generationPrompt }, signal);
    } catch (error) {
      if (FloeError.is(error) && error.code === 'engine_rejected') return null;
      throw error;
    }
  }
}

/**
 * Returns an assistant message with only its tool calls. Its content is dropped, because the content may contain thinking. A message
 * without tool calls is replaced by a fixed assistant message.
 */
function withoutThinking(text: string): string {
  const { tool_calls: calls } = JSON.parse(text) as AssistantMessage;
  if (calls === undefined || calls.length === 0) return placeholderHistory([])[1] as string;
  return JSON.stringify({ role: 'assistant', content: null, tool_calls: calls });
}

function templateKey({ names, template }: SuffixRequest): string {
  return JSON.stringify([names.pool, template.fingerprint]);
}

/**
 * Whether the suffix after this completion is rendered a second time, after the real conversation instead of a placeholder history, to
 * compare the results. The choice depends on a hash of the completion's random id.
 */
export function isChecked(completionId: string): boolean {
  let hash = 0;
  for (const char of completionId) hash = (hash * 31 + char.charCodeAt(0)) % (CHECK_ONE_IN * 1024);
  return hash % CHECK_ONE_IN === 0;
}
