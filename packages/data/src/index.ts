/** The exports of `@floe-rl/data` for other packages. */
export { ARCHITECTURES, type Architecture } from './datasets/images.ts';
export { SWE_DATASETS, type SweDataset, type SweTaskOptions, sweTask } from './datasets/swe-task.ts';
export {
  CONDITION_FIELDS,
  type Condition,
  DEFAULT_CONDITIONS,
  parseCondition,
} from './generation/acceptance-conditions.ts';
export { type CheckedRows, checkRows, rowsOf } from './generation/data-set.ts';
export { Journal } from './generation/journal.ts';
export { type Acceptance, OUTPUT_FORMATS, type OutputFormat, writeOutput } from './generation/output.ts';
export { checkTemplate, sampleTask, type TaskTemplate } from './generation/row-task.ts';
export { openRun } from './generation/run-file.ts';
export { RowPlan, SampleIndex, type SamplePolicy } from './generation/samples.ts';
export { SamplingRun } from './generation/sampling-run.ts';
export {
  addLine,
  journalHeader,
  ownsRow,
  parseShard,
  readShards,
  type Shard,
  shardFile,
  shardName,
} from './generation/shards.ts';
export { parseSplits, type Split } from './generation/splits.ts';
export { floeTask } from './harbor/floe-task.ts';
export { loadHarborTask, taskFolders } from './harbor/load.ts';
export type { HarborPart, HarborTask, ImageSource } from './harbor/task.ts';
export { unsupported } from './harbor/task-file.ts';
export { resolveVariables } from './harbor/variables.ts';
export { readRecordings } from './recordings/files.ts';
export type { Recording } from './recordings/recording.ts';
export {
  type AcceptanceGroup,
  type Manifest,
  SET_ENCODINGS,
  SET_FORMATS,
  type SetEncoding,
  type SetFormat,
} from './session-sets/manifest.ts';
export { readSessions } from './session-sets/read-set.ts';
export { ServerSessions } from './session-sets/server-sessions.ts';
export { rowText, type SetRow } from './session-sets/set-row.ts';
export { type SetOptions, writeSet } from './session-sets/write-set.ts';
