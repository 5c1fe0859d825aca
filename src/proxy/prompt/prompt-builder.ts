import { FloeError } from '../../core/errors.ts';
import type { CallContext, GenerateReply, PromptIds } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type {
  AssistantMessage,
  Capture,
  CaptureMode,
  ChatMessage,
  RenderReason,
  TaskEngine,
  TemplateFacts,
  ThinkingRetention,
} from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { sameIds } from '../../tokens/sequence.ts';
import { EngineMessages } from './engine-messages.ts';
import {
  type ClaimedCompletionId,
  endOf,
  type IndexedTurn,
  type MatchedTurn,
  PrefixIndex,
  type PrefixMatch,
} from './prefix-index.ts';
import { PromptBuffers } from './prompt-buffers.ts';
import type { SuffixRenderer } from './suffix-renderer.ts';

/** A model call whose prompt is not built yet, with the recorded turn that its request continues. */
export type PendingCall = { readonly thread: string; readonly request: CompletionRequest; readonly match: PrefixMatch };

/** What an engine gets as input for one call. */
export type PromptInput = {
  readonly mode: CaptureMode;
  readonly fingerprint: string | null;
  /** The request's messages in the form that engines accept. */
  readonly texts: readonly string[];
  /** The prompt as ids; `null` when the engine renders the messages itself. */
  readonly built: BuiltPrompt | null;
};

export type BuiltPrompt = {
  readonly prompt: PromptIds;
  /** The recorded turn with whose ids the prompt begins; `null` when the whole prompt was rendered. */
  readonly onto: MatchedTurn | null;
  /** Why the whole prompt was rendered; `null` when it begins with the ids of a recorded turn. */
  readonly because: RenderReason | null;
};

/** What is needed to build a prompt of ids. */
type PromptPlan = PendingCall & {
  readonly names: CallContext;
  readonly texts: readonly string[];
  readonly template: TemplateFacts;
};

/**
 * The parts of a prompt: the prompt ids of the completion `onto`, followed by `added`. When `onto` is `null`, `added` is the whole
 * rendered prompt.
 */
type PromptParts =
  | { readonly onto: Completion; readonly added: readonly Int32Array[] }
  | { readonly onto: null; readonly because: RenderReason; readonly added: readonly Int32Array[] };

/**
 * Builds the prompts of one session's model calls. In tokens mode a prompt consists of the recorded ids of the turn that the request
 * continues, followed by the engine's rendering of the new messages. When no recorded turn can be continued, the engine renders all
 * messages.
 */
export class PromptBuilder {
  private readonly engine: TaskEngine;
  private readonly engines: EnginePools;
  private readonly suffixes: SuffixRenderer;
  private readonly index = new PrefixIndex();
  private readonly messages: EngineMessages;
  private readonly buffers = new PromptBuffers();

  /** `recorded` returns the session's completion with an id, or `null` when the session has no such completion. */
  constructor(
    engine: TaskEngine,
    engines: EnginePools,
    suffixes: SuffixRenderer,
    recorded: (completionId: string) => Completion | null,
  ) {
    this.engine = engine;
    this.engines = engines;
    this.suffixes = suffixes;
    this.messages = new EngineMessages(recorded);
  }

  /** Searches the turns recorded so far for the one that the request continues. */
  locate(thread: string, request: CompletionRequest, claimed: ClaimedCompletionId): PendingCall {
    return { thread, request, match: this.index.find({ thread, ...request }, claimed) };
  }

  /** Marks the replies that the request's history contains as used by the harness, and returns them. */
  markUsed({ match }: PendingCall): Completion[] {
    const used: Completion[] = [];
    for (let matched = match.last; matched !== null; matched = matched.previous) {
      matched.turn.used = true;
      used.push(matched.turn.completion);
    }
    return used;
  }

  /**
   * Builds the input of an engine for a call, once the pool is ready. Rejects as `EnginePools.ready`, `EnginePools.modeOf` and
   * `EnginePools.render` do.
   */
  async build(names: CallContext, call: PendingCall, signal: AbortSignal): Promise<PromptInput> {
    await this.engines.ready(this.engine.pool, signal);
    const { template, ...pool } = this.engines.modeOf(this.engine.pool, this.engine.mode);
    const texts = this.textsOf(call);
    const mode = effectiveMode(pool.mode, call);
    const built = mode === 'tokens' ? await this.promptOf({ ...call, names, texts, template }, signal) : null;
    return { mode, fingerprint: template.fingerprint, texts, built };
  }

  /** Returns the length of the prompt in tokens; `null` when the engine must count it. Rejects as {@link build} does. */
  async count(names: CallContext, call: PendingCall, signal: AbortSignal): Promise<number | null> {
    const { mode, template } = this.engines.modeOf(this.engine.pool, this.engine.mode);
    if (effectiveMode(mode, call) !== 'tokens') return null;
    const { onto, added } = await this.partsOf({ ...call, names, texts: this.textsOf(call), template }, signal);
    return added.reduce((sum, { length }) => sum + length, onto?.promptIds.length ?? 0);
  }

  /** Returns the call's messages in the form that engines accept. */
  textsOf({ request, match }: PendingCall): readonly string[] {
    return this.messages.texts(request.messages, request.messageTexts, match.last);
  }

  captureOf({ mode, built }: PromptInput, reply: GenerateReply): Capture {
    return {
      mode,
      logprobs_mode: reply.logprobsMode,
      thinking_retention: mode === 'tokens' ? this.engine.thinking_retention : 'template',
      spliced_onto: built?.onto?.turn.completion.completionId ?? null,
      rendered_because: built === null ? 'chat_mode' : built.because,
    };
  }

  /** Adds a durable completion to the turns that later requests may continue. */
  add(completion: Completion, { match, request }: PendingCall, { built, fingerprint }: PromptInput): void {
    const onto = built?.onto ?? null;
    const rendered = onto === null ? request.messages : request.messages.slice(endOf(onto));
    const hasThinking =
      onto?.turn.hasThinking === true || rendered.some(isThinkingTurn) || containsThinking(completion.message);
    this.index.add({ completion, hasThinking, fingerprint }, match.last);
  }

  /**
   * Builds the prompt as ids. Rejects as `EnginePools.render` does; when the template refuses the conversation, the error has the engine's
   * message.
   */
  private async promptOf(plan: PromptPlan, signal: AbortSignal): Promise<BuiltPrompt> {
    const parts = await this.partsOf(plan, signal);
    const ids = this.buffers.extend(plan.thread, plan.names.completionId, parts.onto, parts.added);
    const prompt = { ...ids, fingerprint: plan.template.fingerprint };
    if (parts.onto === null) return { prompt, onto: null, because: parts.because };
    return { prompt, onto: plan.match.last, because: null };
  }

  private async partsOf(plan: PromptPlan, signal: AbortSignal): Promise<PromptParts> {
    const { match, names, request, texts, template } = plan;
    if (match.last === null) return this.rendered(plan, match.because, signal);
    const { turn } = match.last;
    const { completion } = turn;
    const from = endOf(match.last);
    if (!mayKeepThinking(this.engine.thinking_retention, template, turn, request.messages.slice(from))) {
      return this.rendered(plan, 'thinking', signal);
    }
    const close = hasCurrentIds(turn, template) ? missingClose(completion, template) : null;
    const { messages, toolsText } = request;
    const suffix =
      close && (await this.suffixes.render({ names, template, completion, messages, texts, toolsText, from }, signal));
    if (!close || !suffix) return this.rendered(plan, 'template', signal);
    return { onto: completion, added: [completion.responseIds, close, suffix] };
  }

  private async rendered(plan: PromptPlan, because: RenderReason, signal: AbortSignal): Promise<PromptParts> {
    const { names, texts, request } = plan;
    const { toolsText } = request;
    const whole = { ...names, messageTexts: texts, toolsText, generationPrompt: true };
    return { onto: null, because, added: [await this.engines.render(whole, signal)] };
  }
}

/**
 * Returns the ids of the prompt that was sent. Throws `engine_error` when the engine reports that it sampled the reply after other ids.
 */
export function verifiedPrompt({ ids }: PromptIds, { promptIds }: GenerateReply, engineId: string): Int32Array {
  if (promptIds.length === ids.length && sameIds(promptIds, 0, ids, 0, ids.length)) return ids;
  throw new FloeError('engine_error', `engine ${engineId} reports a prompt with other ids than it was sent`, {
    engine_id: engineId,
  });
}

/**
 * Returns the capture mode of a call. The engine renders a conversation with pictures, because a model gets pictures separately from the
 * ids.
 */
function effectiveMode(mode: CaptureMode, { request }: PendingCall): CaptureMode {
  return mode === 'tokens' && request.messages.some(hasPicture) ? 'chat' : mode;
}

function hasPicture({ content }: ChatMessage): boolean {
  return typeof content === 'object' && content?.some(({ type }) => type !== 'text') === true;
}

/**
 * Whether the recorded ids are valid for the pool's engines. They are not when the completion has no ids, or when the engines were
 * replaced by others with another tokenizer or template.
 */
function hasCurrentIds({ completion, fingerprint }: IndexedTurn, template: TemplateFacts): boolean {
  return completion.capture.mode !== 'text' && fingerprint === template.fingerprint;
}

/**
 * Returns the ids that must be added to close a turn. An empty array when the reply ends with the token that closes it, whatever the
 * template writes at that position; one id when the reply was cut or ended at a stop string; `null` when it is unknown whether the reply
 * is closed.
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

/**
 * Text that ends thinking inside the content of a reply, when the inference server does not separate the two. Chat templates search the
 * content for it as well.
 */
const INLINE_THINKING_END = '</think>';

function containsThinking({ content, reasoning_content: thinking }: AssistantMessage): boolean {
  return (thinking ?? '') !== '' || (content ?? '').includes(INLINE_THINKING_END);
}

function isThinkingTurn(message: ChatMessage): boolean {
  return message.role === 'assistant' && containsThinking(message);
}

/**
 * Whether the task's retention allows a prompt to keep the thinking of `turn`, as every prompt does that continues its ids. `added` are
 * the messages after the turn.
 */
function mayKeepThinking(
  retention: ThinkingRetention,
  { thinking }: TemplateFacts,
  turn: IndexedTurn,
  added: readonly ChatMessage[],
): boolean {
  if (retention === 'all' || !turn.hasThinking) return true;
  const boundary = added.some(({ role }) => role === 'user') ? 'user_message' : 'tool_results';
  if (retention === 'tool_cycle' && boundary === 'tool_results') return true;
  return thinking[boundary] === 'kept';
}
