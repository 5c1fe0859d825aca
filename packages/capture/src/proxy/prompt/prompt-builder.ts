import { FloeError } from '@floe-rl/core';
import type {
  AssistantMessage,
  Capture,
  CaptureMode,
  ChatMessage,
  RenderReason,
  TaskEngine,
  TemplateFacts,
  ThinkingRetention,
} from '@floe-rl/core/schema';
import type { CallContext, GenerateReply, PromptIds } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { sameIds } from '../../tokens/sequence.ts';
import { EngineMessages, type RecordedParts } from './engine-messages.ts';
import { endOf, type IndexedTurn, type MatchedTurn, type PrefixMatch, type RecordedTurn } from './prefix-index.ts';
import { PromptBuffers } from './prompt-buffers.ts';
import { hasCurrentIds, ReceivedParts } from './received-part.ts';
import type { SuffixRenderer } from './suffix-renderer.ts';

/** A model call whose prompt is not built yet, with the recorded turn that its request continues. */
export type PendingCall = { readonly thread: string; readonly request: CompletionRequest; readonly match: PrefixMatch };

/** The input that an engine gets for one model call. */
export type PromptInput = {
  readonly mode: CaptureMode;
  readonly fingerprint: string | null;
  /** The request's messages as JSON texts, in the form that engines accept. */
  readonly texts: readonly string[];
  /** The prompt as token ids; `null` when the engine renders the messages itself. */
  readonly built: BuiltPrompt | null;
  /** Why the engine rendered the whole prompt; `null` when the prompt begins with the token ids of a recorded turn. */
  readonly because: RenderReason | null;
};

export type BuiltPrompt = {
  readonly prompt: PromptIds;
  /**
   * The recorded turn that the prompt continues: its prompt ids, and its response ids as far as the harness received them, are the
   * beginning of the prompt. `null` when the engine rendered the whole prompt.
   */
  readonly onto: MatchedTurn | null;
};

/** The values from which a prompt of token ids is built. */
type PromptPlan = PendingCall & {
  readonly names: CallContext;
  readonly texts: readonly string[];
  readonly template: TemplateFacts;
};

/**
 * The parts of a prompt: the prompt ids of the recorded turn `onto`, followed by the ids in `added`. When `onto` is `null`, `added` is the
 * whole prompt as the engine rendered it.
 */
type PromptParts =
  | { readonly onto: MatchedTurn; readonly added: readonly Int32Array[] }
  | { readonly onto: null; readonly because: RenderReason; readonly added: readonly Int32Array[] };

/**
 * Builds the prompts of one session's model calls. In capture mode `tokens`, a prompt consists of the recorded token ids of the turn that
 * the request continues, followed by the engine's rendering of the new messages. When no recorded turn can be continued, the engine renders
 * all messages.
 */
export class PromptBuilder {
  private readonly engine: TaskEngine;
  private readonly engines: EnginePools;
  private readonly suffixes: SuffixRenderer;
  private readonly messages: EngineMessages;
  private readonly buffers = new PromptBuffers();
  private readonly receivedParts: ReceivedParts;

  constructor(engine: TaskEngine, engines: EnginePools, suffixes: SuffixRenderer, session: RecordedParts) {
    this.engine = engine;
    this.engines = engines;
    this.suffixes = suffixes;
    this.messages = new EngineMessages(session);
    this.receivedParts = new ReceivedParts(engines);
  }

  /**
   * Builds the engine's input for a model call, once the engine pool is ready. Rejects as `EnginePools.modeWhenReady` and
   * `EnginePools.render` do. When the chat template refuses the conversation, the error has the engine's message.
   */
  async build(names: CallContext, call: PendingCall, signal: AbortSignal): Promise<PromptInput> {
    const { template, mode: poolMode } = await this.engines.modeWhenReady(names, this.engine.mode, signal);
    const { fingerprint } = template;
    const { messages, messageTexts } = call.request;
    const texts = this.messages.texts(messages, messageTexts, call.match.last);
    const mode = effectiveMode(poolMode, call);
    if (mode !== 'tokens') {
      return { mode, fingerprint, texts, built: null, because: poolMode === 'tokens' ? 'images' : 'chat_mode' };
    }
    const parts = await this.partsOf({ ...call, names, texts, template }, signal);
    const { onto } = parts;
    const base = onto?.turn.completion ?? null;
    const ids = this.buffers.extend(call.thread, names.completionId, base, parts.added);
    const because = parts.onto === null ? parts.because : null;
    return { mode, fingerprint, texts, built: { prompt: { ...ids, fingerprint }, onto }, because };
  }

  /**
   * Returns the length of the prompt in tokens, and the call's messages as JSON texts in the form that engines accept. The length is `null`
   * when the engine must count it. Rejects as {@link build} does.
   */
  async count(
    names: CallContext,
    call: PendingCall,
    signal: AbortSignal,
  ): Promise<{ readonly length: number | null; readonly texts: readonly string[] }> {
    const { mode, template } = this.engines.modeOf(names.pool, this.engine.mode);
    const { messages, messageTexts } = call.request;
    const texts = this.messages.texts(messages, messageTexts, call.match.last);
    if (effectiveMode(mode, call) !== 'tokens') return { length: null, texts };
    const { onto, added } = await this.partsOf({ ...call, names, texts, template }, signal);
    const length = added.reduce((sum, ids) => sum + ids.length, onto?.turn.completion.promptIds.length ?? 0);
    return { length, texts };
  }

  captureOf({ mode, built, because }: PromptInput, reply: GenerateReply): Capture {
    return {
      mode,
      logprobs_mode: reply.logprobsMode,
      thinking_retention: mode === 'tokens' ? this.engine.thinking_retention : 'template',
      spliced_onto: built?.onto?.turn.completion.completionId ?? null,
      rendered_because: because,
    };
  }

  private async partsOf(plan: PromptPlan, signal: AbortSignal): Promise<PromptParts> {
    const { match, names, request, texts, template } = plan;
    if (match.last === null) return this.rendered(plan, match.because, signal);
    const base = await this.receivedParts.lastWhole(match.last, names, template, signal);
    if (base === null) return this.rendered(plan, 'cut', signal);
    const { matched, received } = base;
    const { turn } = matched;
    const { completion } = turn;
    const from = endOf(matched);
    if (!mayKeepThinking(this.engine.thinking_retention, template, turn, request.messages.slice(from))) {
      return this.rendered(plan, 'thinking', signal);
    }
    const close = hasCurrentIds(turn, template) ? missingClose(completion, received, template) : null;
    const { messages, toolsText } = request;
    const suffix =
      close && (await this.suffixes.render({ names, template, completion, messages, texts, toolsText, from }, signal));
    if (!close || !suffix) return this.rendered(plan, 'template', signal);
    return { onto: matched, added: [received, close, suffix] };
  }

  private async rendered(plan: PromptPlan, because: RenderReason, signal: AbortSignal): Promise<PromptParts> {
    const { names, texts, request } = plan;
    const { toolsText } = request;
    const whole = { ...names, messageTexts: texts, toolsText, generationPrompt: true };
    return { onto: null, because, added: [await this.engines.render(whole, signal)] };
  }
}

/** Returns a recorded completion as a turn that later requests may continue. */
export function turnOf(
  completion: Completion,
  { request }: PendingCall,
  { built, fingerprint }: PromptInput,
): RecordedTurn {
  const onto = built?.onto ?? null;
  const rendered = onto === null ? request.messages : request.messages.slice(endOf(onto));
  const hasThinking =
    onto?.turn.hasThinking === true || rendered.some(isThinkingTurn) || containsThinking(completion.message);
  return { completion, hasThinking, fingerprint };
}

/** Returns the token ids of the prompt that was sent. Throws `engine_error` when the engine's reply reports other prompt ids. */
export function verifiedPrompt({ ids }: PromptIds, { promptIds }: GenerateReply, engineId: string): Int32Array {
  if (promptIds.length === ids.length && sameIds(promptIds, 0, ids, 0, ids.length)) return ids;
  throw new FloeError('engine_error', `engine ${engineId} reports a prompt with other ids than it was sent`, {
    engine_id: engineId,
  });
}

/**
 * Returns the capture mode of a call. A conversation with pictures is sent as messages (mode `chat`), because a model receives pictures
 * separately from the token ids.
 */
function effectiveMode(mode: CaptureMode, { request }: PendingCall): CaptureMode {
  return mode === 'tokens' && request.messages.some(hasPicture) ? 'chat' : mode;
}

function hasPicture({ content }: ChatMessage): boolean {
  return typeof content === 'object' && content?.some(({ type }) => type !== 'text') === true;
}

/**
 * Returns the token ids that must be added after a reply to close the assistant's turn. `received` are the response ids that the harness
 * received. The result is empty when they already end with a closing token. It has one id when the reply was cut off, ended at a stop string,
 * or was received in part. `null` means that it is unknown whether the reply is closed.
 */
function missingClose(
  { responseIds, stop, finishReason }: Completion,
  received: Int32Array,
  template: TemplateFacts,
): Int32Array | null {
  const [close] = template.close_ids;
  const last = responseIds.at(-1);
  if (close === undefined) return null;
  if (received.length < responseIds.length) return Int32Array.of(close);
  if (last !== undefined && (template.close_ids.includes(last) || (stop?.kind === 'token' && stop.id === last))) {
    return new Int32Array(0);
  }
  const ended = finishReason === 'stop' || finishReason === 'tool_calls';
  return ended && stop === null ? null : Int32Array.of(close);
}

/**
 * Tag that ends the thinking inside the content of a reply, when the inference server does not return thinking separately. Chat templates
 * search the content for this tag as well.
 */
const INLINE_THINKING_END = '</think>';

function containsThinking({ content, reasoning_content: thinking }: AssistantMessage): boolean {
  return (thinking ?? '') !== '' || content?.includes(INLINE_THINKING_END) === true;
}

function isThinkingTurn(message: ChatMessage): boolean {
  return message.role === 'assistant' && containsThinking(message);
}

/**
 * Whether a new prompt may contain the thinking of `turn`. This depends on the task's thinking retention, which defines how long thinking
 * stays in prompts. When the answer is no, the prompt cannot continue the turn's token ids, because these contain the thinking. `added` are
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
