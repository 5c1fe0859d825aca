export type { BlobStore } from './blob-store.ts';
export { DirectoryBlobStore } from './directory-blob-store.ts';
export type {
  BlobRef,
  CallbackRow,
  DeliveryRow,
  EngineRow,
  EngineStateRow,
  NodeRow,
  ResultBlobs,
  ResultWithSummary,
  SessionPatch,
  SessionRow,
  TaskRow,
} from './rows.ts';
export { SqliteStore } from './sqlite/store.ts';
export type { Store, StoreTables } from './store.ts';
