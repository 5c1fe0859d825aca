import type { LRUCache } from 'lru-cache';

/**
 * The order in which the rows of recent epochs are sampled, by `<batch id>/<time of its creation>/<epoch>`. A plan may have 100,000 rows and is needed for each
 * group, so it is parsed only once.
 */
export type EpochPlans = LRUCache<string, readonly number[]>;
