import type { ReplyDelta, RoutedExperts } from '../core/reply.ts';
import type {
  AssistantMessage,
  ChatTool,
  EngineInfo,
  FinishReason,
  LogprobsMode,
  PauseMode,
  ResponseFormat,
  Sampling,
  StopCause,
  ToolChoice,
  Usage,
  VersionSpan,
} from '../schema/index.ts';

/**
 * Hears of a reply while it is sampled. `started` comes once, before the first `delta`; the deltas add up to a beginning of the
 * reply's message, mostly to all of it. An engine that does not stream calls neither. Must not throw.
 */
export interface ReplyListener {
  /** The first token is there. `promptTokens` is null where the engine does not tell yet. */
  started(promptTokens: number | null): void;
  delta(delta: ReplyDelta): void;
}

/** Ids to be prompted with, and the same as JSON text between the brackets (`1,2,3`): a long prompt is not written anew at each turn. */
export type PromptIds = {
  readonly ids: Int32Array;
  readonly json: Buffer;
  /** Of the tokenizer and template that they are of: no engine with another may be given them. Absent: not known. */
  readonly fingerprint?: string | null;
};

/** `responseIds`, `responseLogprobs` have one length; `versionSpans` cover it without gaps. */
export type SampledTokens = {
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  /** Null: the engine did not tell. */
  readonly routedExperts: RoutedExperts | null;
};

/** What every call names: so that aborts and logs join up, and calls of a session reach the engine that holds its prefix. */
export type CallNames = {
  /** floe's completion id: becomes the engine's request id. */
  readonly completionId: string;
  readonly sessionId: string;
  /** Which engines may answer; nothing that a server is told. */
  readonly pool: string;
  /** The span that the call is part of, as W3C Trace Context writes it; null or absent: none. */
  readonly traceparent?: string | null | undefined;
};

/** One call to be sampled. `messageTexts` are canonical chat messages as JSON text, sent as they are. */
export type GenerateRequest = CallNames & {
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /** The bound in effect for this reply, what is `begun` included; null: the engine's own. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  /** Constrains the reply's text; sent to the engine as it is. */
  readonly responseFormat: ResponseFormat | null;
  readonly seed: number | null;
  /** The prompt as ids, to be used exactly; null: the engine renders the messages, which otherwise only serve to read the reply. */
  readonly prompt: PromptIds | null;
  /** Tokens of this reply that were sampled before an update broke it off; only with `prompt`, which does not hold them. */
  readonly begun: SampledTokens | null;
  /** Part of the prefix cache's key, so that new weights never go on from what old ones computed; null: none. */
  readonly cacheSalt: string | null;
  /** Wants the reply as it comes, where the engine's streams are exact. The reply itself is the same with and without. */
  readonly listener?: ReplyListener | undefined;
};

/** One sampled reply, with what was `begun` before it. With capture mode `text` there are no ids at all. */
export type GenerateReply = SampledTokens & {
  /** What the reply was sampled after, as the engine tells; a copy of the ids that were sent where it tells none but their number. */
  readonly promptIds: Int32Array;
  /** Null: there are no log-probabilities. */
  readonly logprobsMode: LogprobsMode | null;
  readonly message: AssistantMessage;
  /** `abort`: the engine broke the reply off, what there is of it is good. */
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/** Messages to be turned into ids by the engine's own template. */
export type RenderRequest = CallNames & {
  readonly messageTexts: readonly string[];
  /** JSON array; `[]` for none. */
  readonly toolsText: string;
  /** Whether the opening of the assistant's turn follows. */
  readonly generationPrompt: boolean;
};

/**
 * One inference server.
 *
 * All calls reject with FloeError: `engine_unavailable` (no reply began: no connection, 503 or 429),
 * `engine_rejected` (the server's 4xx, message passed on; a template that refuses messages), `unsupported` (the server cannot do
 * that at all, see `info().capabilities`), `engine_error` (5xx, a reply that breaks a rule of a
 * completion record: ids missing, ids and logprobs of different length, a logprob NaN or positive beyond rounding,
 * ids that do not add up to the usage, a prompt other than the one sent; another model than at registration; or garbage),
 * or the signal's reason. Never pads, never cuts to fit.
 * They may be called concurrently. `close` may be called twice.
 */
export interface Engine {
  info(): EngineInfo;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  /** The text of ids, special tokens included. */
  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string>;
  /** Tells the server; what `capabilities.pause` stands for. */
  pause(mode: PauseMode, signal: AbortSignal): Promise<void>;
  resume(signal: AbortSignal): Promise<void>;
  /** From now on the weights are known by this name, where the server does not tell its own. */
  setPolicyVersion(version: string): void;
  /** The server's own metrics in Prometheus text; null: it has none. */
  metrics(signal: AbortSignal): Promise<string | null>;
  close(): Promise<void>;
}

/** Something about an engine that its operator should know. Must not throw. */
export type EngineNotice = (message: string, details: Readonly<Record<string, unknown>>) => void;
