import { z } from 'zod';
import type { RoutedExperts } from '../core/reply.ts';
import {
  type ChatMessage,
  type ChatTool,
  captureSchema,
  completionFields,
  versionSpanSchema,
} from '../schema/index.ts';

/** The part of a completion that is JSON in the journal. The columns of ids and logprobs and the request's texts are kept apart. */
export const completionHeadSchema = z.object({
  ...completionFields.names,
  timestampMs: z.number(),
  ...completionFields.origin,
  capture: captureSchema,
  versionSpans: z.array(versionSpanSchema),
  ...completionFields.reply,
  ...completionFields.timings,
  ...completionFields.marks,
});
type Head = z.infer<typeof completionHeadSchema>;

export const requestSamplingSchema = z.object(completionFields.sampling);

type Mark = keyof typeof completionFields.marks;

type ReadonlyFields<Fields> = {
  readonly [Name in keyof Fields]: Fields[Name] extends (infer Item)[] ? readonly Item[] : Fields[Name];
};

/**
 * One captured model call in memory. All of it is immutable but the marks, which later events of the session set:
 *
 * - `abandoned`: the harness repeated the request instead of using this reply.
 * - `auxiliary`: the call is not part of the agent's own work (title, routing, probe, …); it is recorded and excluded by default.
 * - `undelivered`: the reply never reached the harness.
 *
 * `message` is what the harness received, whose tool calls have floe's ids; `engineCallIds` are the engine's ids of the same calls.
 * `timestampMs` is the Unix time at which the request arrived. `versionSpans` cover all response positions in order, without gaps.
 */
export type Completion = ReadonlyFields<Omit<Head, Mark>> &
  Pick<Head, Mark> & {
    readonly request: CompletionRequest;
    readonly promptIds: Int32Array;
    readonly responseIds: Int32Array;
    /** One for each response id. */
    readonly responseLogprobs: Float32Array;
    /** `null` when the engine does not report them. */
    readonly routedExperts: RoutedExperts | null;
  };

export type CompletionRequest = ReadonlyFields<z.infer<typeof requestSamplingSchema>> & {
  readonly messages: readonly ChatMessage[];
  /** Each message as JSON text, ready to be sent; two messages are equal when their texts are. Same length as `messages`. */
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  /** The tools as JSON text. */
  readonly toolsText: string;
};
