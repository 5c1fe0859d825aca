import { FloeError } from '../../core/errors.ts';
import type { CallNames, EngineNotice } from '../../engines/engine.ts';
import type { EnginePool } from '../../engines/pool.ts';
import {
  type Closing,
  closingOf,
  equalIds,
  type StandInCall,
  standInHistory,
  suffixOf,
} from '../../engines/turn-close.ts';
import type { AssistantMessage, ChatMessage, TemplateFacts } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';

/** What new messages are rendered behind. */
export type SuffixRequest = {
  readonly names: CallNames;
  readonly template: TemplateFacts;
  /** The completion that they follow. */
  readonly completion: Completion;
  /** The whole conversation, and its texts as the engine takes them. */
  readonly messages: readonly ChatMessage[];
  readonly texts: readonly string[];
  readonly toolsText: string;
  /** Index of the first new message. */
  readonly from: number;
};

/** Templates' names for calls are few; a policy that makes up names must not fill the memory. */
const MAX_CLOSINGS = 256;
const MAX_KEY_CHARS = 4096;

/** One splice in so many is rendered in both forms. */
const CHECK_ONE_IN = 64;

const NO_TOOLS = '[]';

/**
 * Finds the ids that new messages add behind a recorded turn, with the engine's own template: the messages are rendered behind a
 * history, and what follows as many turn closes as that has is theirs. In the short form the history is a stand-in of one turn;
 * in the full form it is the conversation, with turns that have no thinking: how often a close stands in it must not depend on
 * what a template leaves out. Shared by all sessions of a proxy.
 */
export class Suffixes {
  private readonly engines: EnginePool;
  private readonly notice: EngineNotice;
  private readonly closings = new Map<string, Closing | null>();
  /** Templates for which the short form was found to be wrong. */
  private readonly longOnly = new Set<string>();

  constructor(engines: EnginePool, notice: EngineNotice) {
    this.engines = engines;
    this.notice = notice;
  }

  /** Null: it cannot be told. Rejects as `EnginePool.render` does, but for a template that refuses. */
  async of(request: SuffixRequest, signal: AbortSignal): Promise<Int32Array | null> {
    const { template } = request;
    if (template.close_ids.length === 0) return null;
    const plain = await this.closing(request, [], signal);
    if (plain === null) return null;
    const key = templateKey(request);
    const short = this.fitsShort(request) ? await this.short(request, plain, signal) : null;
    if (short === null) return this.full(request, plain, signal);
    if (!isChecked(request.names.completionId)) return short;
    const full = await this.full(request, plain, signal);
    if (full === null || equalIds(full, short)) return short;
    this.longOnly.add(key);
    this.notice(
      'the chat template renders new messages otherwise behind a short history; all of it is rendered from now on',
      {
        pool: request.names.pool,
        completion_id: request.names.completionId,
      },
    );
    return full;
  }

  private fitsShort(request: SuffixRequest): boolean {
    const { template, messages, from } = request;
    if (!template.tail_render || this.longOnly.has(templateKey(request))) return false;
    return messages
      .slice(from)
      .every(({ role, content }) => (role === 'user' || role === 'tool') && typeof content === 'string');
  }

  private async short(request: SuffixRequest, plain: Closing, signal: AbortSignal): Promise<Int32Array | null> {
    const { completion, texts, from, template } = request;
    const calls = (completion.message.tool_calls ?? []).map(({ function: called }, index) => ({
      id: completion.engineCallIds[index] ?? '',
      name: called.name,
    }));
    const closing = calls.length === 0 ? plain : await this.closing(request, calls, signal);
    if (closing === null || !closesAs(closing, plain)) return null;
    const whole = await this.render(request, [...standInHistory(calls), ...texts.slice(from)], NO_TOOLS, true, signal);
    return whole && suffixOf(whole, template.close_ids, closing);
  }

  private async full(request: SuffixRequest, plain: Closing, signal: AbortSignal): Promise<Int32Array | null> {
    const { messages, texts, from, toolsText, template } = request;
    const history = texts.slice(0, from).map((text, index) => {
      return messages[index]?.role === 'assistant' ? plainTurn(text) : text;
    });
    const head = await this.render(request, history, toolsText, false, signal);
    const closing = head && closingOf(head, template.close_ids);
    if (!closing || !closesAs(closing, plain)) return null;
    const whole = await this.render(request, [...history, ...texts.slice(from)], toolsText, true, signal);
    return whole && suffixOf(whole, template.close_ids, closing);
  }

  /** Of a stand-in history, which is the same for all calls of the same names. */
  private async closing(
    request: SuffixRequest,
    calls: readonly StandInCall[],
    signal: AbortSignal,
  ): Promise<Closing | null> {
    const { close_ids } = request.template;
    const key = JSON.stringify([templateKey(request), close_ids, calls.map(({ name }) => name)]);
    const known = this.closings.get(key);
    if (known !== undefined) return known;
    const ids = await this.render(request, standInHistory(calls), NO_TOOLS, false, signal);
    const found = ids && closingOf(ids, close_ids);
    if (key.length > MAX_KEY_CHARS) return found;
    this.closings.set(key, found);
    const [oldest] = this.closings.keys();
    if (this.closings.size > MAX_CLOSINGS && oldest !== undefined) this.closings.delete(oldest);
    return found;
  }

  /** Null: the template refuses. */
  private async render(
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

/** The last turn is closed, and what stands behind it is what always does. */
function closesAs({ before, tail }: Closing, plain: Closing): boolean {
  return before.length >= plain.before.length && equalIds(tail, plain.tail);
}

/** The turn without its thinking, wherever that stands: with the same calls, or a word where it has none. */
function plainTurn(text: string): string {
  const { tool_calls: calls } = JSON.parse(text) as AssistantMessage;
  if (calls === undefined || calls.length === 0) return standInHistory([])[1] as string;
  return JSON.stringify({ role: 'assistant', content: null, tool_calls: calls });
}

function templateKey({ names, template }: SuffixRequest): string {
  return JSON.stringify([names.pool, template.fingerprint]);
}

/** Whether the prompt of that completion is rendered in both forms: by its id, which is random. */
export function isChecked(completionId: string): boolean {
  let number = 0;
  for (const char of completionId) number = (number * 31 + char.charCodeAt(0)) % (CHECK_ONE_IN * 1024);
  return number % CHECK_ONE_IN === 0;
}
