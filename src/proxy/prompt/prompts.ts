import type { CallNames, PromptIds } from '../../engines/engine.ts';
import type { EnginePool } from '../../engines/pool.ts';
import type { ChatMessage, RenderReason, TemplateFacts, ThinkingRetention } from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { endOf, type Found, type KnownTurn, type Turn } from './prefix-index.ts';
import { PromptBuffers } from './prompt-buffers.ts';
import { mayKeepThinking } from './retention.ts';
import type { Suffixes } from './suffix-renderer.ts';

export type PromptRequest = {
  readonly names: CallNames;
  readonly thread: string;
  readonly request: CompletionRequest;
  /** The request's messages as the engine takes them. */
  readonly texts: readonly string[];
  readonly found: Found;
  readonly template: TemplateFacts;
  readonly retention: ThinkingRetention;
};

/** What a prompt is made of: what was recorded, then what was rendered. */
type Pieces =
  | { readonly onto: Completion; readonly added: readonly Int32Array[] }
  | { readonly onto: null; readonly because: RenderReason; readonly added: readonly Int32Array[] };

export type BuiltPrompt = {
  readonly prompt: PromptIds;
  /** The turn whose ids the prompt begins with; null: it was rendered. */
  readonly onto: KnownTurn | null;
  readonly because: RenderReason | null;
};

/** Makes the prompts of one session's calls: recorded ids as far as they go, and the engine's own rendering of what is new. */
export class Prompts {
  private readonly engines: EnginePool;
  private readonly suffixes: Suffixes;
  private readonly buffers = new PromptBuffers();

  constructor(engines: EnginePool, suffixes: Suffixes) {
    this.engines = engines;
    this.suffixes = suffixes;
  }

  /** Rejects as `EnginePool.render` does: a conversation that the template refuses is refused with the engine's words. */
  async build(asked: PromptRequest, signal: AbortSignal): Promise<BuiltPrompt> {
    const pieces = await this.pieces(asked, signal);
    const { completionId } = asked.names;
    const ids = this.buffers.extend(asked.thread, completionId, pieces.onto, pieces.added);
    const prompt = { ...ids, fingerprint: asked.template.fingerprint };
    if (pieces.onto === null) return { prompt, onto: null, because: pieces.because };
    return { prompt, onto: asked.found.last, because: null };
  }

  /** The length of the prompt that would be built. */
  async count(asked: PromptRequest, signal: AbortSignal): Promise<number> {
    const { onto, added } = await this.pieces(asked, signal);
    return added.reduce((sum, { length }) => sum + length, onto?.promptIds.length ?? 0);
  }

  private async pieces(asked: PromptRequest, signal: AbortSignal): Promise<Pieces> {
    const { found, names, request, texts, template, retention } = asked;
    if (found.last === null) return this.rendered(asked, found.because, signal);
    const { turn } = found.last;
    const { completion } = turn;
    const from = endOf(found.last);
    if (!mayKeepThinking(retention, template, turn, request.messages.slice(from))) {
      return this.rendered(asked, 'thinking', signal);
    }
    const close = sameIdsAsNow(turn, template) ? missingClose(completion, template) : null;
    const { messages, toolsText } = request;
    const suffix =
      close && (await this.suffixes.of({ names, template, completion, messages, texts, toolsText, from }, signal));
    if (!close || !suffix) return this.rendered(asked, 'template', signal);
    return { onto: completion, added: [completion.responseIds, close, suffix] };
  }

  private async rendered(asked: PromptRequest, because: RenderReason, signal: AbortSignal): Promise<Pieces> {
    const { names, texts, request } = asked;
    const { toolsText } = request;
    const whole = { ...names, messageTexts: texts, toolsText, generationPrompt: true };
    return { onto: null, because, added: [await this.engines.render(whole, signal)] };
  }
}

/** Engines may have been replaced, and one that tells no ids leaves nothing to go on from. */
function sameIdsAsNow({ completion, fingerprint }: Turn, template: TemplateFacts): boolean {
  return completion.capture.mode !== 'text' && fingerprint === template.fingerprint;
}

/**
 * The ids that close the turn where the reply itself does not: it was cut, or stopped at a string. A token that ends a reply is its
 * close, whatever templates write there. Null: it cannot be told.
 */
function missingClose({ responseIds, stop, finishReason }: Completion, template: TemplateFacts): Int32Array | null {
  const [close] = template.close_ids;
  const last = responseIds.at(-1);
  if (close === undefined) return null;
  if (last !== undefined && (template.close_ids.includes(last) || (stop?.kind === 'token' && stop.id === last))) {
    return new Int32Array(0);
  }
  const ended = finishReason === 'stop' || finishReason === 'tool_calls';
  return ended && stop === null ? null : Int32Array.of(close);
}

/** Pictures reach a model beside its ids: only the engine can put them into a prompt. */
export function holdsPictures(messages: readonly ChatMessage[]): boolean {
  return messages.some(({ content }) => typeof content === 'object' && content?.some(({ type }) => type !== 'text'));
}
