import type { Outcome } from '@floe-rl/core/schema';
import { expertArray } from '../experts.ts';
import {
  imagesOf,
  Json,
  type PlacedRow,
  placedRows,
  responseText,
  type TrainerRecord,
  type TrainingBatch,
} from '../format.ts';
import { type ImageOptions, imagePlaces } from '../image-places.ts';
import { fullIds, responseAdvantages } from '../sequence.ts';

/** slime's `Sample.Status` for an outcome; all other outcomes have `completed`. */
const STATUS: Partial<Record<Outcome, string>> = {
  truncated_context: 'truncated',
  truncated_turns: 'truncated',
  agent_timeout: 'aborted',
  cancelled: 'aborted',
  agent_error: 'failed',
};

/**
 * Makes the fields of slime's `Sample` (`slime/utils/types.py`, version 0.3.1), one record for each row. Rows of one sample share
 * `rollout_id`, so that slime averages the loss within the rollout. Masks and logprobs cover the response; `rollout_routed_experts` has
 * T - 1 rows of int32. slime keeps the field `advantages`, which its `Sample` does not have, as an attribute.
 */
export function slimeSamples(batch: TrainingBatch, options: ImageOptions): TrainerRecord[] {
  return placedRows(batch).map((place) => slimeSample(place, options));
}

function slimeSample(place: PlacedRow, options: ImageOptions): TrainerRecord {
  const { row, sample, group, groupNumber, sampleNumber, rowNumber, rowIndex, advantage } = place;
  const images = imagesOf(place);
  return {
    group_index: groupNumber,
    index: rowNumber,
    rollout_id: sampleNumber,
    prompt: new Json(row.promptMessages),
    tokens: fullIds(row),
    multimodal_inputs: images.length === 0 ? null : { images },
    response: responseText(row),
    response_length: row.responseIds.length,
    reward: row.reward,
    loss_mask: row.lossMask,
    weight_versions: [...new Set(row.versionSpans.map(({ version }) => version ?? 'unknown'))],
    rollout_log_probs: row.logprobs,
    rollout_routed_experts: expertArray(row, { dtype: 'int32', lastRow: false, fillStart: false }),
    remove_sample: sample.use === 'mask' || !row.lossMask.includes(1),
    status: STATUS[sample.outcome] ?? 'completed',
    session_id: sample.sessionId,
    metadata: {
      task_id: group.groupId,
      sample_index: sample.sampleIndex,
      trace_id: row.traceId,
      trace_index: rowIndex,
      outcome: sample.outcome,
      reward_components: new Json(sample.rewardComponents),
      image_positions: new Json(imagePlaces(place, options)),
    },
    ...(advantage === null ? {} : { advantages: responseAdvantages(row, advantage) }),
  };
}
