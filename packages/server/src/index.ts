/** The exports of `@floe-rl/server` for other packages. */
export { type RolloutConfigInput, rolloutConfigSchema } from './rollout/config.ts';
export type { TokenTexts } from './rollout/context.ts';
export type { ListenerUrls } from './rollout/http/listeners.ts';
export { type RecordedSession, storeRecorded } from './rollout/recorded.ts';
export { createRolloutServer } from './rollout/server.ts';
export {
  type BlobRef,
  type BlobStore,
  type OpenStore,
  openStore,
  SqliteStore,
  type Store,
  type StoreLocation,
} from './store/index.ts';
