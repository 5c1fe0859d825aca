/** `floe/client`: the API for trainers that call floe. The types of tasks and results are in `floe/schema`. */

export type { ClientTlsFiles, ConnectionOptions } from './connection.ts';
export {
  defineTask,
  type TaskDefinition,
  type TaskFields,
  type TaskRow,
  type TaskSplit,
  type TaskTool,
  taskRequests,
  taskStream,
} from './define-task.ts';
export {
  type BatchOptions,
  type ChangeOptions,
  FloeClient,
  type FollowBatchesOptions,
  type NextBatchOptions,
  type PageOptions,
  type PartOptions,
  type ResultsOptions,
  type SessionOrder,
} from './floe-client.ts';
export { type DeliveredResult, deliveryLength, NodeApi, type NodeDescription } from './node-api.ts';
export { ServerList } from './server-list.ts';
export type { SessionFilter } from './session-filter.ts';
