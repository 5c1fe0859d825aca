import type { TaskRequest, UnusableReason } from '../schema/index.ts';
import type { BlobStore, ResultWithSummary, TaskRow } from '../store/index.ts';
import { groupReport } from './groups.ts';
import { resultListBytes, resultListLength } from './result-bytes.ts';

/** A TaskResult as JSON, which can be read more than once and comes in pieces of one trajectory at most. */
export type CallbackBody = {
  readonly length: number;
  bytes(blobs: BlobStore): AsyncGenerator<Buffer>;
};

/** `results` are those of the ended task: they do not change any more, so the body is the same for every try. */
export function callbackBody(
  task: TaskRow,
  unusable: ReadonlyMap<UnusableReason, number>,
  results: readonly ResultWithSummary[],
): CallbackBody {
  const { callback_results: kind } = JSON.parse(task.request) as Pick<TaskRequest, 'callback_results'>;
  const rows = kind === 'summary' ? results.map(withoutTokens) : results;
  const paths = results.map((result) => `/sessions/${result.session_id}/trajectory`);
  const state = `"status":${JSON.stringify(task.status)},"callback_results":${JSON.stringify(kind ?? 'full')}`;
  const group = JSON.stringify(groupReport(task, unusable));
  const before = `{"task_id":${JSON.stringify(task.task_id)},${state},"group":${group},"results":`;
  const after = `,"result_paths":${JSON.stringify(paths)}}`;
  return {
    length: resultListLength(before, rows, after),
    bytes: (blobs) => resultListBytes(before, rows, after, blobs),
  };
}

function withoutTokens(row: ResultWithSummary): ResultWithSummary {
  return { ...row, trajectory_ref: null, trajectory_bytes: 0 };
}
