import type { TaskRequest, UnusableReason } from '../../schema/index.ts';
import type { BlobStore, ResultWithSummary, TaskRow } from '../../store/index.ts';
import { resultListBytes, resultListLength, sessionResultLength } from '../sessions/result-json.ts';
import { groupReport } from '../tasks/groups.ts';

/** A TaskResult as JSON, which can be read more than once and comes in pieces of one trajectory at most. */
export type CallbackBody = {
  readonly length: number;
  bytes(blobs: BlobStore): AsyncGenerator<Buffer>;
};

/**
 * `results` reads those of the ended task from the first: they do not change any more, so the body is the same for every try.
 * They are read once here and once for every reading of the body, and never held all at once.
 */
export async function callbackBody(
  task: TaskRow,
  unusable: ReadonlyMap<UnusableReason, number>,
  results: () => AsyncIterable<ResultWithSummary>,
): Promise<CallbackBody> {
  const { callback_results: kind } = JSON.parse(task.request) as Pick<TaskRequest, 'callback_results'>;
  const rows = kind === 'summary' ? () => withoutTokens(results()) : results;
  const paths: string[] = [];
  const lengths: number[] = [];
  for await (const row of rows()) {
    paths.push(`/sessions/${row.session_id}/trajectory`);
    lengths.push(sessionResultLength(row));
  }
  const state = `"status":${JSON.stringify(task.status)},"callback_results":${JSON.stringify(kind ?? 'full')}`;
  const group = JSON.stringify(groupReport(task, unusable));
  const before = `{"task_id":${JSON.stringify(task.task_id)},${state},"group":${group},"results":`;
  const after = `,"result_paths":${JSON.stringify(paths)}}`;
  return {
    length: resultListLength(before, lengths, after),
    bytes: (blobs) => resultListBytes(before, rows(), after, blobs),
  };
}

async function* withoutTokens(rows: AsyncIterable<ResultWithSummary>): AsyncGenerator<ResultWithSummary> {
  for await (const row of rows) yield { ...row, trajectory_ref: null, trajectory_bytes: 0 };
}
