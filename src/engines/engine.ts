import type { ReplyDelta } from '../core/reply-delta.ts';
import type {
  AssistantMessage,
  ChatTool,
  EngineInfo,
  FinishReason,
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

/** One call to be sampled. `messageTexts` are canonical chat messages as JSON text, sent as they are. */
export type GenerateRequest = {
  /** floe's completion id: becomes the engine's request id, so aborts and logs join up. */
  readonly completionId: string;
  readonly sessionId: string;
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /** The bound in effect for this reply; null: the engine's own. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  /** Constrains the reply's text; sent to the engine as it is. */
  readonly responseFormat: ResponseFormat | null;
  readonly seed: number | null;
  /** Wants the reply as it comes, where the engine's streams are exact. The reply itself is the same with and without. */
  readonly listener?: ReplyListener | undefined;
};

/** One sampled reply. `responseIds`, `responseLogprobs` have one length; `versionSpans` cover it without gaps. */
export type GenerateReply = {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/**
 * One inference server.
 *
 * `generate` and `countTokens` reject with FloeError: `engine_unavailable` (no reply began: no connection, 503 or 429),
 * `engine_rejected` (the server's 4xx, message passed on), `engine_error` (5xx, a reply that breaks a rule of a
 * completion record: ids missing, ids and logprobs of different length, a logprob NaN or positive beyond rounding,
 * ids that do not add up to the usage; or garbage), or the signal's reason. Never pads, never cuts to fit.
 * They may be called concurrently. `close` may be called twice.
 */
export interface Engine {
  info(): EngineInfo;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  close(): Promise<void>;
}

/** Something about an engine that its operator should know. Must not throw. */
export type EngineNotice = (message: string, details: Readonly<Record<string, unknown>>) => void;
