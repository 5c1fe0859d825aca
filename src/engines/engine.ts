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
 * Receives a reply while it is sampled. `started` is called once, before the first `delta`; the deltas form a beginning of the
 * reply's message, usually all of it. An engine that does not stream calls neither. Must not throw.
 */
export interface ReplyListener {
  /** The first token has arrived. `promptTokens` is `null` when the engine has not reported it yet. */
  started(promptTokens: number | null): void;
  delta(delta: ReplyDelta): void;
}

/** A prompt as ids, and as their JSON text between the brackets (`1,2,3`), so that a long prompt is not serialised at every turn. */
export type PromptIds = {
  readonly ids: Int32Array;
  readonly json: Buffer;
  /** Identifies the tokenizer and template of the ids: an engine with others must not get them. Absent when unknown. */
  readonly fingerprint?: string | null;
};

/** `responseIds` and `responseLogprobs` have the same length; `versionSpans` cover it without gaps. */
export type SampledTokens = {
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  /** `null` when the engine did not report them. */
  readonly routedExperts: RoutedExperts | null;
};

/** Identifies a call: for aborts and logs, and so that the calls of a session reach the engine that caches its prefix. */
export type CallContext = {
  /** floe's completion id, which becomes the engine's request id. */
  readonly completionId: string;
  readonly sessionId: string;
  /** The pool whose engines may answer; not sent to the server. */
  readonly pool: string;
  /** The span of the call in W3C Trace Context notation; `null` or absent when it is not traced. */
  readonly traceparent?: string | null | undefined;
};

/** One reply to be sampled. `messageTexts` are canonical chat messages as JSON text, which are sent unchanged. */
export type GenerateRequest = CallContext & {
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /** Bound on the reply's tokens, those of `resumeFrom` included; `null` for the engine's own. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  /** Constrains the reply's text; sent to the engine unchanged. */
  readonly responseFormat: ResponseFormat | null;
  readonly seed: number | null;
  /**
   * The prompt as ids, which is used exactly, while the messages only serve to parse the reply; `null` when the engine renders the
   * messages.
   */
  readonly prompt: PromptIds | null;
  /** Tokens of this reply that were sampled before a weight update interrupted it; requires `prompt`, which does not contain them. */
  readonly resumeFrom: SampledTokens | null;
  /** Part of the prefix cache's key, so that new weights never reuse what old ones computed; `null` for none. */
  readonly cacheSalt: string | null;
  /** Receives the reply while it is sampled, if the engine's streams are exact. The reply is the same with and without. */
  readonly listener?: ReplyListener | undefined;
};

/** One sampled reply, which begins with the tokens of `resumeFrom`. In capture mode `text` it has no ids. */
export type GenerateReply = SampledTokens & {
  /** The prompt as the engine reports it; the ids that were sent when the engine reports only their number. */
  readonly promptIds: Int32Array;
  /** `null` when there are no log-probabilities. */
  readonly logprobsMode: LogprobsMode | null;
  readonly message: AssistantMessage;
  /** `abort`: the engine interrupted the reply; the tokens up to there are valid. */
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/** Messages to be turned into ids by the engine's chat template. */
export type RenderRequest = CallContext & {
  readonly messageTexts: readonly string[];
  /** JSON array of tools; `[]` for none. */
  readonly toolsText: string;
  /** Whether to append the opening of the assistant's turn. */
  readonly generationPrompt: boolean;
};

/**
 * One inference server.
 *
 * All calls reject with FloeError: `engine_unavailable` (no reply began: no connection, 503 or 429), `engine_rejected` (the server's
 * 4xx with its message; a template that refuses the messages), `unsupported` (the server does not support the call, see
 * `info().capabilities`), `engine_error` (5xx; a reply that violates a rule of completion records: ids missing, ids and logprobs of
 * different length, a logprob that is NaN or positive beyond rounding, ids that do not match the usage, a prompt other than the one
 * sent, another model than at registration; an unreadable reply), or the signal's reason. Replies are never padded or truncated to
 * make them consistent. Calls may run concurrently. `close` may be called twice.
 */
export interface Engine {
  info(): EngineInfo;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  /** The text of ids, special tokens included. */
  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string>;
  /** Pauses sampling on the server. Rejects with `unsupported` without the capability `pause`. */
  pause(mode: PauseMode, signal: AbortSignal): Promise<void>;
  resume(signal: AbortSignal): Promise<void>;
  /** Sets the version of the current weights, used when the server does not report one itself. */
  setPolicyVersion(version: string): void;
  /** The server's own metrics in Prometheus text; `null` when it has none. */
  metrics(signal: AbortSignal): Promise<string | null>;
  close(): Promise<void>;
}

/** Receives what the operator should know about an engine. Must not throw. */
export type EngineNotice = (message: string, details: Readonly<Record<string, unknown>>) => void;
