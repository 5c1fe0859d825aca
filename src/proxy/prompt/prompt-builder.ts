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

/** A model call that waits for its prompt, with the recorded turn that it continues. */
export type PendingCall = { readonly thread: string; readonly request: CompletionRequest; readonly match: PrefixMatch };

/** The input of an engine for one call. */
export type PromptInput = {
  readonly mode: CaptureMode;
  readonly fingerprint: string | null;
  /** The request's messages in the form that engines accept. */
  readonly texts: readonly string[];
  /** `null` when the engine renders the messages. */
  readonly built: BuiltPrompt | null;
};

export type BuiltPrompt = {
  readonly prompt: PromptIds;
  /** The turn whose recorded ids the prompt begins with; `null` when the prompt was rendered. */
  readonly onto: MatchedTurn | null;
  /** Why the prompt was rendered; `null` when it was spliced onto a turn. */
  readonly because: RenderReason | null;
};

/** Everything that a prompt of ids is built from. */
type PromptPlan = PendingCall & {
  readonly names: CallContext;
  readonly texts: readonly string[];
  readonly template: TemplateFacts;
};

/** The parts of a prompt: recorded ids, then rendered ones. */
type PromptParts =
  | { readonly onto: Completion; readonly added: readonly Int32Array[] }
  | { readonly onto: null; readonly because: RenderReason; readonly added: readonly Int32Array[] };

/**
 * Builds the prompts of one session's model calls. In tokens mode a prompt is the recorded ids of the turn that the request
 * continues and the engine's rendering of the new messages; otherwise the engine renders all messages.
 */
export class PromptBuilder {
  private readonly engine: TaskEngine;
  private readonly engines: EnginePools;
  private readonly suffixes: SuffixRenderer;
  private readonly index = new PrefixIndex();
  private readonly messages: EngineMessages;
  private readonly buffers = new PromptBuffers();

  /** `recorded` returns the session's completion with an id, `null` when there is none. */
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

  /** Finds the turn that the request continues among those recorded so far. */
  locate(thread: string, request: CompletionRequest, claimed: ClaimedCompletionId): PendingCall {
    return { thread, request, match: this.index.find({ thread, ...request }, claimed) };
  }

  /** Marks the replies that the call continues as used by the harness, and returns them. */
  markUsed({ match }: PendingCall): Completion[] {
    const used: Completion[] = [];
    for (let matched = match.last; matched !== null; matched = matched.previous) {
      matched.turn.used = true;
      used.push(matched.turn.completion);
    }
    return used;
  }

  /** Rejects as `EnginePools.ready`, `EnginePools.modeOf` and `EnginePools.render` do. */
  async build(names: CallContext, call: PendingCall, signal: AbortSignal): Promise<PromptInput> {
    await this.engines.ready(this.engine.pool, signal);
    const { template, ...pool } = this.engines.modeOf(this.engine.pool, this.engine.mode);
    const texts = this.textsOf(call);
    const mode = effectiveMode(pool.mode, call);
    const built = mode === 'tokens' ? await this.promptOf({ ...call, names, texts, template }, signal) : null;
    return { mode, fingerprint: template.fingerprint, texts, built };
  }

  /** The length of the prompt in tokens; `null` when the engine must count it. Rejects as {@link build} does. */
  async count(names: CallContext, call: PendingCall, signal: AbortSignal): Promise<number | null> {
    const { mode, template } = this.engines.modeOf(this.engine.pool, this.engine.mode);
    if (effectiveMode(mode, call) !== 'tokens') return null;
    const { onto, added } = await this.partsOf({ ...call, names, texts: this.textsOf(call), template }, signal);
    return added.reduce((sum, { length }) => sum + length, onto?.promptIds.length ?? 0);
  }

  /** The call's messages in the form that engines accept. */
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

  /** Adds a durable completion, which later requests may continue. */
  add(completion: Completion, { match, request }: PendingCall, { built, fingerprint }: PromptInput): void {
    const onto = built?.onto ?? null;
    const rendered = onto === null ? request.messages : request.messages.slice(endOf(onto));
    const hasThinking =
      onto?.turn.hasThinking === true || rendered.some(isThinkingTurn) || containsThinking(completion.message);
    this.index.add({ completion, hasThinking, fingerprint }, match.last);
  }

  /** Rejects as `EnginePools.render` does. When the template refuses the conversation, the error has the engine's message. */
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
 * The prompt that the reply was sampled after, which is the one that was sent. Throws `engine_error` when the engine reports another.
 */
export function verifiedPrompt({ ids }: PromptIds, { promptIds }: GenerateReply, engineId: string): Int32Array {
  if (promptIds.length === ids.length && sameIds(promptIds, 0, ids, 0, ids.length)) return ids;
  throw new FloeError('engine_error', `engine ${engineId} reports a prompt with other ids than it was sent`, {
    engine_id: engineId,
  });
}

/** A conversation with pictures is rendered by the engine, because pictures are passed to a model next to its ids. */
function effectiveMode(mode: CaptureMode, { request }: PendingCall): CaptureMode {
  return mode === 'tokens' && request.messages.some(hasPicture) ? 'chat' : mode;
}

function hasPicture({ content }: ChatMessage): boolean {
  return typeof content === 'object' && content?.some(({ type }) => type !== 'text') === true;
}

/**
 * Whether the recorded ids are valid for the pool's engines. They are not when the engines were replaced by others with another
 * tokenizer or template, or when the completion has no ids.
 */
function hasCurrentIds({ completion, fingerprint }: IndexedTurn, template: TemplateFacts): boolean {
  return completion.capture.mode !== 'text' && fingerprint === template.fingerprint;
}

/**
 * The ids that close the turn when the reply does not close it itself, because it was cut or ended at a stop string. The token that
 * ended a reply is its close, whatever the template writes at that position. `null` when it cannot be determined.
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

/** Ends thinking inside the text of a reply when the server has no parser for it; templates search the text for it, too. */
const INLINE_THINKING_END = '</think>';

function containsThinking({ content, reasoning_content: thinking }: AssistantMessage): boolean {
  return (thinking ?? '') !== '' || (content ?? '').includes(INLINE_THINKING_END);
}

function isThinkingTurn(message: ChatMessage): boolean {
  return message.role === 'assistant' && containsThinking(message);
}

/**
 * Whether a prompt that continues the ids of `turn` contains the thinking that the task's retention requires; splicing always keeps
 * all of it. `added` are the messages after the turn.
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
