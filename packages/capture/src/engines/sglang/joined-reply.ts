import type { FinishReason, StopCause, Usage } from '@floe-rl/core/schema';
import type { RoutedExperts } from '../../reply.ts';
import { concatIds, concatLogprobs, invalidReply, joinVersionSpans, resumedUsage } from '../chat/reply-tokens.ts';
import type { PromptIds, SampledTokens } from '../engine.ts';

type ReplyPart = SampledTokens & {
  readonly promptIds: Int32Array;
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/**
 * Joins the two parts of a resumed reply. `first` was sampled with `prompt`, and `later` with `prompt` followed by the tokens of `first`.
 */
export function joinReply(prompt: PromptIds, first: SampledTokens, later: ReplyPart): ReplyPart {
  const responseIds = concatIds(first.responseIds, later.responseIds);
  return {
    promptIds: prompt.ids,
    responseIds,
    responseLogprobs: concatLogprobs(first.responseLogprobs, later.responseLogprobs),
    versionSpans: joinVersionSpans(first.versionSpans, first.responseIds.length, later.versionSpans),
    routedExperts: joinExperts(first.routedExperts, later.routedExperts),
    finishReason: later.finishReason,
    stop: later.stop,
    usage: resumedUsage(prompt.ids.length, responseIds.length, later.usage.cached_tokens),
  };
}

/**
 * Number of layers of a model and number of experts per token. They are read when the engine is connected, because replies contain neither.
 */
export type ExpertShape = { readonly layers: number; readonly experts: number };

const INT32_BYTES = 4;

/**
 * Decodes the routed experts of a reply: base64 of int32 values for every position of prompt and response except the last. Throws
 * `engine_error` when the number of values does not match `shape` and `positions`.
 */
export function readExperts(base64: string, shape: ExpertShape, positions: number): RoutedExperts {
  const data = Buffer.from(base64, 'base64');
  const { layers, experts } = shape;
  const rows = positions - 1;
  const expected = rows * layers * experts * INT32_BYTES;
  if (data.length !== expected) {
    throw invalidReply(
      `routed_experts has ${data.length} bytes, not ${expected} for ${rows} x ${layers} x ${experts} int32`,
    );
  }
  return { dtype: 'int32', shape: [rows, layers, experts], start: 0, data };
}

/**
 * Joins the routed experts of a resumed reply, whose later part reports experts for all tokens (`whole`). The tokens of the first part keep
 * the experts that they were sampled with. The experts that the later call reports for these tokens are dropped, because they come from a
 * prefill, possibly with other weights. Returns `null` when either argument is `null` or their shapes do not match.
 */
function joinExperts(first: RoutedExperts | null, whole: RoutedExperts | null): RoutedExperts | null {
  if (first === null || whole === null) return null;
  const [firstRows, ...firstWidth] = first.shape;
  const [rows, ...width] = whole.shape;
  const isSameShape = first.dtype === whole.dtype && firstWidth.every((size, index) => size === width[index]);
  const end = first.start + firstRows;
  if (!isSameShape || first.start < whole.start || end > whole.start + rows) return null;
  const rowBytes = whole.data.length / Math.max(rows, 1);
  const data = Buffer.concat([first.data, whole.data.subarray((end - whole.start) * rowBytes)]);
  const [layers, experts] = width as [number, number];
  return { dtype: whole.dtype, shape: [whole.start + rows - first.start, layers, experts], start: first.start, data };
}
