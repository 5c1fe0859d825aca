export type { BlobStore } from './blobs/blob-store.ts';
export { DirectoryBlobStore } from './blobs/directory.ts';
export type {
  FactFilter,
  FactGroupColumn,
  FactGroupRow,
  FactNumberColumn,
  FactOrder,
  FactPosition,
  FactRow,
  FactSpread,
  FactTextColumn,
  FactTotals,
  Measure,
  MeasureTotals,
  NewFactRow,
} from './facts.ts';
export { type OpenStore, openStore, type StoreLocation } from './open.ts';
export type {
  AliasedTask,
  AliasRow,
  BatchCounts,
  BatchDataRow,
  BatchGroupRow,
  BatchGroupState,
  BatchGroupTotals,
  BatchRowTotals,
  BatchStreamPatch,
  BatchStreamRow,
  BlobRef,
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  EndedCounts,
  EngineStateRow,
  HandedGroupRow,
  NodeRow,
  OpenGroupRow,
  OpenState,
  QueuedSessions,
  ResultBlobs,
  ResultWithSummary,
  SessionRow,
  TaskRow,
  TrainerLoad,
} from './rows.ts';
export { SqliteStore } from './sqlite/store.ts';
export type { ClaimRequest, HeldSessions, NewSessions, NodeMemory, Store, StoreTables } from './store.ts';
