import { Json, type PlacedRow, placedRows, type TrainerRecord, type TrainingBatch } from '../format.ts';
import { type ImageOptions, imagePlaces } from '../image-places.ts';
import { responseAdvantages } from '../sequence.ts';

/** Makes floe's own record, one for each row: everything that the other formats are made from. `advantages` has R entries, or is `null`. */
export function floeRows(batch: TrainingBatch, options: ImageOptions): TrainerRecord[] {
  return placedRows(batch).map((place) => floeRow(place, options));
}

function floeRow(place: PlacedRow, options: ImageOptions): TrainerRecord {
  const { row, sample, group, rowIndex, advantage } = place;
  return {
    trace_id: row.traceId,
    group_id: group.groupId,
    session_id: sample.sessionId,
    sample_index: sample.sampleIndex,
    trace_index: rowIndex,
    trace_count: sample.rows.length,
    outcome: sample.outcome,
    use: sample.use,
    in_baseline: sample.inBaseline,
    prompt_ids: row.promptIds,
    response_ids: row.responseIds,
    loss_mask: row.lossMask,
    logprobs: row.logprobs,
    advantages: advantage === null ? null : responseAdvantages(row, advantage),
    reward: row.reward,
    sample_reward: sample.reward,
    reward_components: new Json(sample.rewardComponents),
    version_spans: new Json(row.versionSpans),
    constrained_spans: new Json(row.constrainedSpans),
    routed_experts: row.routedExperts === null ? null : new Json(row.routedExperts),
    finish_reason: row.finishReason,
    prompt_messages: new Json(row.promptMessages),
    response_messages: new Json(row.responseMessages),
    tools: new Json(row.tools),
    images: new Json(sample.images),
    image_positions: new Json(imagePlaces(place, options)),
    metadata: new Json(row.metadata),
  };
}
