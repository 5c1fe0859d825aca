import type { RoutedExperts } from '../core/routed-experts.ts';
import type {
  AssistantMessage,
  CallKind,
  Capture,
  ChatMessage,
  ChatTool,
  DialectName,
  FinishReason,
  Sampling,
  SamplingAsked,
  StopCause,
  Usage,
  VersionSpan,
} from '../schema/index.ts';

/**
 * One captured model call in memory. Immutable but for the three marks at the end, which later events of the session set.
 * `responseLogprobs` has one entry per response id; `versionSpans` cover all response positions in order, without gaps.
 */
export type Completion = {
  readonly completionId: string;
  readonly sessionId: string;
  readonly attempt: number;
  /** Arrival order of the request within the attempt, from 0. */
  readonly index: number;
  /** Unix ms, when the request arrived. */
  readonly timestampMs: number;
  readonly dialect: DialectName;
  readonly callKind: CallKind;
  /** The harness's own agent thread; `main` when it names none. */
  readonly thread: string;
  readonly request: CompletionRequest;
  readonly capture: Capture;
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versionSpans: readonly VersionSpan[];
  /** Null: the engine did not tell. */
  readonly routedExperts: RoutedExperts | null;
  /** As the harness got it: tool calls have ids of floe's. */
  readonly message: AssistantMessage;
  /** The engine's own ids of the message's tool calls, in order. */
  readonly engineCallIds: readonly string[];
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly engineId: string;
  readonly model: string;
  readonly usage: Usage;
  readonly engineMs: number;
  readonly totalMs: number;
  /** The harness asked again for the same request instead of using this reply. */
  abandoned: boolean;
  /** Not part of the agent's own work (title, routing, probe, …): recorded, excluded by default. */
  auxiliary: boolean;
  /** The reply never reached the harness. */
  undelivered: boolean;
};

export type CompletionRequest = {
  readonly messages: readonly ChatMessage[];
  /** Each message as JSON text: what equality of messages means, and ready to be sent. Same length as `messages`. */
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  /** The tools as JSON text. */
  readonly toolsText: string;
  readonly samplingAsked: SamplingAsked;
  readonly sampling: Sampling;
  readonly adjusted: readonly string[];
};
