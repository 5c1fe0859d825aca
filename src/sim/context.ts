import type { Clock } from '../core/clock.ts';
import type { CallIds } from './call-ids.ts';
import type { SimConfig } from './config.ts';
import type { SimEngine } from './engine.ts';
import type { FaultInjector } from './faults.ts';
import type { Identity } from './identity.ts';
import type { Ledger } from './ledger.ts';
import type { SimMetrics } from './metrics.ts';
import type { TemplateMode } from './template.ts';
import type { Vocabulary } from './vocabulary.ts';
import type { WeightStore } from './weights.ts';

export type LogprobsMode = SimConfig['logprobsMode'];

/** What the routes of every face share. */
export type SimContext = {
  readonly config: SimConfig;
  readonly identity: Identity;
  readonly engine: SimEngine;
  readonly vocabulary: Vocabulary;
  readonly weights: WeightStore;
  readonly ledger: Ledger;
  readonly faults: FaultInjector;
  readonly metrics: SimMetrics;
  readonly callIds: CallIds;
  readonly clock: Clock;
  readonly mode: TemplateMode;
  readonly startedMs: number;
};
