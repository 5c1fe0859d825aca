import { FloeError } from '@floe-rl/core';
import { policyStep } from '@floe-rl/core/protocol';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchGroupRow, BatchStreamPatch, BatchStreamRow, OpenGroupRow, OpenState } from '../../store/index.ts';
import { queryError } from '../field-errors.ts';
import { isSampled } from './next-row.ts';

/**
 * The parts of a stream that a request for a batch reads. They are from one state of the store, or were read while the request held the
 * stream's lock.
 */
export type StreamState = OpenState & { readonly stream: BatchStreamRow; readonly request: BatchStreamRequest };

/** The changes that a request for a batch makes to the groups of its stream. */
export type BatchDecision = {
  /** Ready groups that are too old, or whose results were removed. Their rows are started again. */
  readonly expired: readonly BatchGroupRow[];
  /** Running groups whose tasks are cancelled. Their rows are started again. */
  readonly restarted: readonly BatchGroupRow[];
  /** The groups of the next batch; `null` while there are too few. */
  readonly handed: readonly BatchGroupRow[] | null;
  /** Whether the stream will have no further batch. */
  readonly isDone: boolean;
};

/**
 * Decides which groups make the next batch. These are the oldest ready groups when there are enough. When no further group will become ready,
 * these are all ready groups. `size` is the requested number of groups or resolved samples; `undefined` for the stream's `batch_size`.
 */
export function decideBatch(state: StreamState, size: number | undefined): BatchDecision {
  const { stream, request, groups, unsampledRows } = state;
  const { batch_unit: unit, unfinished, purpose } = request;
  const running = groups.filter((group) => group.state === 'running');
  const outdated = running.filter((group) => isOutdated(state, group));
  const ready = groups.filter((group) => group.state === 'ready');
  const isUsable = (group: OpenGroupRow): boolean => group.is_stored === 1 && !isOutdated(state, group);
  const usable = ready.filter(isUsable);
  let missing = size ?? request.batch_size;
  const last = usable.findIndex((group) => {
    missing -= unit === 'group' ? 1 : group.resolved;
    return missing <= 0;
  });
  // The rows of groups that expire now will be started once more.
  const hasRepeats = groups.some((group) => group.repeat === 1) || usable.length < ready.length;
  const isEnd = last === -1 && isSampled(stream, request, { running: running.length, hasRepeats, unsampledRows });
  const isEnded = stream.status === 'ended';
  const chosen = isEnd ? usable : usable.slice(0, last + 1);
  const handed = isEnded || chosen.length === 0 ? null : chosen;
  const restartsAll = handed !== null && unfinished === 'restart' && purpose === 'train';
  return {
    expired: ready.filter((group) => !isUsable(group)),
    restarted: restartsAll ? running : outdated,
    handed,
    isDone: isEnded || (isEnd && handed === null),
  };
}

/** Returns the number of policy steps between a group's policy version and the current one; 0 while the trainer names no versions. */
export function stalenessOf(stream: Pick<BatchStreamRow, 'policy_step'>, group: BatchGroupRow): number {
  return (stream.policy_step ?? 0) - (group.policy_step ?? stream.policy_step ?? 0);
}

/** Whether a group is too old for the current policy of its stream. */
export function isOutdated(
  { stream, request }: Pick<StreamState, 'stream' | 'request'>,
  group: BatchGroupRow,
): boolean {
  return request.purpose === 'train' && stalenessOf(stream, group) > request.max_staleness;
}

/** Returns the size of the batch that the trainer waits for; 0 when it waits for none. */
export function waitedSize(stream: BatchStreamRow): number {
  return stream.requested_batch > stream.last_batch ? stream.requested_size : 0;
}

/**
 * Returns the fields of a stream that a request for its next batch changes: the request confirms all earlier batches and gives the policy
 * version. Throws `schema_violation` for a version without a step, and `conflict` for an older version than before.
 */
export function recordedRequest(
  stream: BatchStreamRow,
  size: number,
  version: string | undefined,
): BatchStreamPatch & Pick<BatchStreamRow, 'policy_version' | 'policy_step'> {
  const { last_batch: last, policy_version: newest, policy_step: newestStep } = stream;
  const requested = {
    acknowledged: last,
    requested_batch: last + 1,
    // Requests of several processes may wait at the same time, each with its own size.
    requested_size: Math.max(size, waitedSize(stream)),
  };
  if (version === undefined) return { ...requested, policy_version: newest, policy_step: newestStep };
  const step = policyStep(version);
  if (step === null) {
    const message = 'must end in the number of its optimizer step, as in "7", "v7" or "run-step-7"';
    throw queryError('policy_version', message);
  }
  if (newestStep !== null && step < newestStep) {
    throw new FloeError(
      'conflict',
      `the policy version ${version} is older than ${newest}, which the trainer gave before; ` +
        'after restoring a checkpoint, call POST /rollout/batches/{id}/rewind first',
      { policy_version: version, newest },
    );
  }
  return { ...requested, policy_version: version, policy_step: step };
}
