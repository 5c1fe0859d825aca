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
 * Receives a reply while the engine samples it. `started` is called once, before the first `delta`. The deltas together are the
 * beginning of the reply's message, usually all of it. An engine that does not stream calls neither method. The methods must not throw.
 */
export interface ReplyListener {
  /**
   * Called when the first token has arrived. `promptTokens` is the number of tokens of the prompt, `null` when the engine has not
   * reported it yet.
   */
  started(promptTokens: number | null): void;
  delta(delta: ReplyDelta): void;
}

/**
 * A prompt as token ids, in two forms: `ids`, and `json`, their JSON text without the brackets (`1,2,3`). `json` is kept so that a long
 * prompt is not serialised again at every turn.
 */
export type PromptIds = {
  readonly ids: Int32Array;
  readonly json: Buffer;
  /**
   * Identifies the tokenizer and chat template that made the ids; an engine with another fingerprint must not get them. Absent or `null`
   * when unknown.
   */
  readonly fingerprint?: string | null;
};

/**
 * Tokens that an engine has sampled. `responseIds` and `responseLogprobs` have the same length, and `versionSpans` cover that length
 * without gaps.
 */
export type SampledTokens = {
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  /** The experts that the model's router chose for each token; `null` when the engine did not report them. */
  readonly routedExperts: RoutedExperts | null;
};

/**
 * Identifies a call to an engine. The ids are used to abort and log the call, and to send the calls of one session to the engine that
 * caches its prefix.
 */
export type CallContext = {
  /** floe's completion id, which becomes the engine's request id. */
  readonly completionId: string;
  readonly sessionId: string;
  /** Name of the pool whose engines may answer the call. It is not sent to the server. */
  readonly pool: string;
  /** The trace span of the call, in W3C Trace Context notation; `null` or absent when the call is not traced. */
  readonly traceparent?: string | null | undefined;
};

/** Request to sample one reply. `messageTexts` are the canonical chat messages as JSON texts, which are sent to the engine unchanged. */
export type GenerateRequest = CallContext & {
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /** Maximum number of tokens that the reply may have, including those of `resumeFrom`; `null` when only the engine's own limit applies. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  /** Format that the reply's text must have, sent to the engine unchanged; `null` when the text is not constrained. */
  readonly responseFormat: ResponseFormat | null;
  readonly seed: number | null;
  /**
   * The prompt as token ids, which the engine uses exactly; the messages then only serve to parse the reply. `null` when the engine
   * makes the prompt by rendering the messages.
   */
  readonly prompt: PromptIds | null;
  /**
   * Tokens of this reply that were sampled before a weight update interrupted it; `null` for a reply that begins with this request.
   * Requires `prompt`, which does not contain these tokens.
   */
  readonly resumeFrom: SampledTokens | null;
  /**
   * Added to the key of the engine's prefix cache, so that new weights never reuse cache entries that old weights computed; `null` when
   * no salt is sent.
   */
  readonly cacheSalt: string | null;
  /**
   * Receives the reply while it is sampled, provided that the engine's streams contain exact token ids. The final reply is the same with
   * and without a listener.
   */
  readonly listener?: ReplyListener | undefined;
};

/** One sampled reply, which begins with the tokens of `resumeFrom`. In capture mode `text` the reply has no token ids. */
export type GenerateReply = SampledTokens & {
  /** The prompt ids as the engine reports them, or the ids that were sent when the engine reports only their number. */
  readonly promptIds: Int32Array;
  /**
   * Whether the log-probabilities are the model's own or those after sampling transforms; `null` when the reply has no
   * log-probabilities.
   */
  readonly logprobsMode: LogprobsMode | null;
  readonly message: AssistantMessage;
  /** Why sampling ended. `abort` means that the engine interrupted the reply; the tokens sampled until then are valid. */
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/** Request to convert messages to token ids with the engine's chat template. */
export type RenderRequest = CallContext & {
  readonly messageTexts: readonly string[];
  /** The tools as the text of a JSON array; `[]` when the request has no tools. */
  readonly toolsText: string;
  /** Whether the template appends the tokens that open the assistant's turn. */
  readonly generationPrompt: boolean;
};

/**
 * Client of one inference server. All calls reject with FloeError: `engine_unavailable` when no reply began (no connection, status 503
 * or 429); `engine_rejected` for another 4xx of the server, with its message, and for messages that the chat template refuses;
 * `unsupported` when the server does not support the call (see `info().capabilities`); `engine_error` for a 5xx, an unreadable reply, or
 * a reply that violates a rule of completion records: ids are missing, ids and logprobs differ in length, a logprob is NaN or positive
 * beyond rounding, the ids do not match the usage, the prompt is not the one that was sent, or the model is not the one at registration;
 * or the signal's reason. Replies are never padded or truncated to make them consistent. Calls may run concurrently. `close` may be
 * called twice.
 */
export interface Engine {
  info(): EngineInfo;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  /** Converts ids to text, including the text of special tokens. */
  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string>;
  /** Pauses sampling on the server. Rejects with `unsupported` when the engine lacks the capability `pause`. */
  pause(mode: PauseMode, signal: AbortSignal): Promise<void>;
  resume(signal: AbortSignal): Promise<void>;
  /** Sets the policy version of the current weights. It is used when the server does not report a version itself. */
  setPolicyVersion(version: string): void;
  /** Fetches the server's own metrics in Prometheus text; `null` when the server has no metrics. */
  metrics(signal: AbortSignal): Promise<string | null>;
  close(): Promise<void>;
}

/** Receives what the operator should know about an engine. Must not throw. */
export type EngineNotice = (message: string, details: Readonly<Record<string, unknown>>) => void;
