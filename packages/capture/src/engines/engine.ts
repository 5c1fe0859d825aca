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
} from '@floe-rl/core/schema';
import type { ReplyDelta, RoutedExperts } from '../reply.ts';

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
   * Hash that identifies the tokenizer and chat template that made the token ids. The ids must not be sent to an engine with another
   * fingerprint. Absent or `null` when unknown.
   */
  readonly fingerprint?: string | null;
};

/**
 * Tokens that an engine has sampled. `responseIds` and `responseLogprobs` have the same length. `versionSpans` state which policy version
 * sampled each position, without gaps.
 */
export type SampledTokens = {
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  /** The experts that the router of a mixture-of-experts model chose for each token; `null` when the engine did not report them. */
  readonly routedExperts: RoutedExperts | null;
};

/**
 * Identifies a call to an engine. The ids are used to abort and log the call, and to send all calls of one session to the engine that has
 * cached the session's prefix.
 */
export type CallContext = {
  /** Id of the completion record that this call produces. It is also sent to the engine as the request id. */
  readonly completionId: string;
  readonly sessionId: string;
  /** Name of the pool whose engines may answer the call. It is not sent to the server. */
  readonly pool: string;
  /** The trace span of the call, in W3C Trace Context notation; `null` or absent when the call is not traced. */
  readonly traceparent?: string | null | undefined;
};

/**
 * Request to sample one reply. `messageTexts` are the chat messages in floe's canonical form, as JSON texts, which are sent to the engine
 * unchanged.
 */
export type GenerateRequest = CallContext & {
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /**
   * Maximum number of tokens that the reply may have, including the tokens of `resumeFrom`; `null` when only the engine's own limit applies.
   */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  /** Format that the reply's text must have, sent to the engine unchanged; `null` when the text is not constrained. */
  readonly responseFormat: ResponseFormat | null;
  readonly seed: number | null;
  /**
   * The prompt as token ids, which the engine uses exactly as given; the request's messages then only serve to parse the reply. `null` when
   * the engine makes the prompt by rendering the messages.
   */
  readonly prompt: PromptIds | null;
  /**
   * Tokens of this reply that were sampled before a weight update interrupted it; `null` for a reply that begins with this request.
   * Requires `prompt`, which does not contain these tokens.
   */
  readonly resumeFrom: SampledTokens | null;
  /**
   * The result of `Engine.policyVersion` directly before this call; `null` when the version is unknown. It is sent as the salt of the prefix
   * cache where the server supports one, so that a reply never uses cache entries that other weights computed. A reply whose first token
   * was sampled by another version is recorded without a version.
   */
  readonly policyVersion: string | null;
  /**
   * Receives the reply while it is sampled. It is not called when the engine's streams lack exact token ids. The final reply is the same
   * with and without a listener.
   */
  readonly listener?: ReplyListener | undefined;
};

/**
 * One sampled reply, which begins with the tokens of `resumeFrom`. An engine that reports no token ids (capture mode `text`) leaves the
 * arrays of ids empty.
 */
export type GenerateReply = SampledTokens & {
  /** The prompt's token ids as the engine reports them, or the ids that were sent when the engine reports only their number. */
  readonly promptIds: Int32Array;
  /**
   * Whether the log-probabilities are the model's own (`raw`), or computed after temperature, top-p and other transforms (`processed`). `null`
   * when the reply has no log-probabilities.
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
 * Client of one inference server. Calls may run concurrently, and `close` may be called twice. Replies are never padded or truncated to make
 * them consistent. All calls reject with the signal's reason, or with one of these codes of `FloeError`:
 * - `engine_unavailable`: no reply began, because there was no connection or the status was 503 or 429.
 * - `engine_rejected`: the server answered with another 4xx, whose message is kept, or the chat template refused the messages.
 * - `unsupported`: the server does not support the call (see `info().capabilities`).
 * - `engine_error`: the server answered with a 5xx, or its reply is unreadable or breaks a rule of completion records.
 *
 * The rules of completion records are: No ids are missing. Ids and logprobs have the same length. No logprob is NaN, or positive beyond
 * rounding. The number of ids matches the usage. The prompt is the same as in the request, and the model the same as at registration.
 */
export interface Engine {
  info(): EngineInfo;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  /** Converts token ids to text, including the text of special tokens. */
  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string>;
  /** Pauses sampling on the server. Rejects with `unsupported` when the engine lacks the capability `pause`. */
  pause(mode: PauseMode, signal: AbortSignal): Promise<void>;
  resume(signal: AbortSignal): Promise<void>;
  /** Sets the policy version of the current weights. It is recorded while the server does not report a version itself. */
  setPolicyVersion(version: string): void;
  /**
   * Returns the policy version of the current weights, or a promise of it while it is requested from a server that reports it; `null` when
   * it is unknown. The promise never rejects.
   */
  policyVersion(): string | null | Promise<string | null>;
  /**
   * Records that the weights may have changed, or may change while replies are under way. The next {@link policyVersion} is requested from
   * the server, and if the server reports no version, replies under way are recorded without one.
   */
  weightsMayHaveChanged(): void;
  /** Fetches the server's own metrics in Prometheus text; `null` when the server has no metrics. */
  metrics(signal: AbortSignal): Promise<string | null>;
  close(): Promise<void>;
}

/** Function that receives messages about an engine that the operator should see, and writes them to the log. It must not throw. */
export type EngineNotice = (message: string, details: Readonly<Record<string, unknown>>) => void;
