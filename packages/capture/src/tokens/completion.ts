import {
  type ChatMessage,
  type ChatTool,
  captureSchema,
  completionFields,
  versionSpanSchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../reply.ts';
import type { ImageUrls } from './images.ts';

/**
 * The part of a completion that the journal stores as JSON. The token ids, the logprobs and the texts of the request are stored outside of
 * this JSON.
 */
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

export type ReadonlyFields<Fields> = {
  readonly [Name in keyof Fields]: Fields[Name] extends (infer Item)[] ? readonly Item[] : Fields[Name];
};

/**
 * One captured model call in memory. It does not change after it was recorded, except for three flags that later events of the session set:
 *
 * - `abandoned`: the harness repeated the request instead of using this reply.
 * - `auxiliary`: the call is not part of the agent's own work (title, routing, probe, …); it is recorded and excluded by default.
 * - `undelivered`: the reply never reached the harness.
 *
 * `message` is the reply as the harness received it; its tool calls have ids that floe assigned. `engineCallIds` are the ids that the
 * engine gave to the same tool calls. `timestampMs` is the Unix time at which the request arrived. `versionSpans` cover all response
 * positions in order, without gaps.
 */
export type Completion = ReadonlyFields<Omit<Head, Mark>> &
  Pick<Head, Mark> & {
    readonly request: CompletionRequest;
    readonly promptIds: Int32Array;
    readonly responseIds: Int32Array;
    /** The log-probability of each response id, in the same order. */
    readonly responseLogprobs: Float32Array;
    /** The experts that a mixture-of-experts model selected at each position; `null` when the engine does not report them. */
    readonly routedExperts: RoutedExperts | null;
  };

export type CompletionRequest = ReadonlyFields<z.infer<typeof requestSamplingSchema>> & {
  /** The messages, with a reference in the place of each URL that contains an image. */
  readonly messages: readonly ChatMessage[];
  /** The images of the messages that no earlier completion of the session contains, by reference. */
  readonly images: ImageUrls;
  /** Each element of `messages` as JSON text. Messages are compared by these texts. */
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  /** The array `tools` as JSON text. */
  readonly toolsText: string;
};
