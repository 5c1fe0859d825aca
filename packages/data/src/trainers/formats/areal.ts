import {
  Booleans,
  requiredReward,
  type TrainerRecord,
  type TrainingBatch,
  trainedRows,
  withKnownVersions,
} from '../format.ts';
import { fullAdvantages, fullIds, fullLogprobs, fullMask, stepOf } from '../sequence.ts';
import type { TrainingRow } from '../training-row.ts';

/**
 * Makes the trajectory dict of AReaL (version 1.0.4) for each row with trained tokens and known versions. Token columns have the batch dimension first: [1, T].
 * `versions` is -1 at tokens that the policy did not sample.
 */
export function arealTrajectories(batch: TrainingBatch): TrainerRecord[] {
  return withKnownVersions(trainedRows(batch)).map((place) => {
    const { row, advantage } = place;
    const ids = fullIds(row);
    return {
      input_ids: [ids],
      loss_mask: [fullMask(row)],
      logprobs: [fullLogprobs(row)],
      versions: [tokenVersions(row)],
      attention_mask: [new Booleans(new Uint8Array(ids.length).fill(1))],
      rewards: [requiredReward(place, 'areal')],
      ...(advantage === null ? {} : { advantages: [fullAdvantages(row, advantage)] }),
    };
  });
}

function tokenVersions(row: TrainingRow): Int32Array {
  const versions = new Int32Array(row.promptIds.length + row.responseIds.length).fill(-1);
  for (const { version, start, end } of row.versionSpans) {
    const step = stepOf(version, row);
    for (let i = start; i < end; i++) if (row.lossMask[i] === 1) versions[row.promptIds.length + i] = step;
  }
  return versions;
}
