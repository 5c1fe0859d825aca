import { randomUUID } from 'node:crypto';
import type { Clock } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';
import type { SimConfig } from './config.ts';
import type { SimEngine } from './engine.ts';
import type { FaultInjector } from './faults.ts';
import type { Ledger } from './ledger.ts';
import type { VllmMetrics } from './metrics.ts';
import type { WeightStore } from './policy/weights.ts';
import type { TemplateMode } from './template.ts';
import type { Vocabulary } from './vocabulary.ts';

/** Which log-probability of a token the server reports: before or after penalties, temperature and cut-offs are applied. */
export type LogprobsMode = SimConfig['logprobsMode'];

/** The parts of one simulated server that the routes of the vLLM API and of the SGLang API share. */
export type SimContext = {
  readonly config: SimConfig;
  readonly servedModel: ServedModel;
  readonly engine: SimEngine;
  readonly vocabulary: Vocabulary;
  readonly weights: WeightStore;
  readonly ledger: Ledger;
  readonly faults: FaultInjector;
  readonly metrics: VllmMetrics;
  readonly toolCallIds: ToolCallIds;
  readonly clock: Clock;
  readonly mode: TemplateMode;
  /** Unix time in milliseconds at which the server started. */
  readonly startedMs: number;
};

/** Holds the name of the served model and decides which model names requests may use. */
export class ServedModel {
  private readonly configuredName: string;
  private reportedName: string;
  private renames = 0;

  constructor(name: string) {
    this.configuredName = name;
    this.reportedName = name;
  }

  /** The model's name in replies and in the server's list of models. */
  get name(): string {
    return this.reportedName;
  }

  /** Whether a request may name `model`. The model that the server reports and the model of the server's configuration are both accepted. */
  accepts(model: string): boolean {
    return model === this.reportedName || model === this.configuredName;
  }

  /** Changes the model name that the engine reports. Requests that use the configured model name are still accepted. */
  rename(): void {
    this.reportedName = `${this.configuredName}-changed-${++this.renames}`;
  }
}

/** Maximum number of sessions whose latest tool-call ids are kept in memory. No test runs that many sessions concurrently. */
const MAX_SESSIONS = 1_000;

/** Key under which the tool-call ids of calls without a session id are kept. */
const NO_SESSION = Symbol('no session');

/** Creates tool-call ids. Stores the ids of each session's latest reply, because the injected fault `duplicate_call_ids` reuses them. */
export class ToolCallIds {
  private readonly latest = new LRUCache<string | symbol, readonly string[]>({ max: MAX_SESSIONS });

  /**
   * Returns a function that maps the index of a tool call in one reply to the call's id, which begins with `prefix`. With `repeat`, the ids
   * of the session's latest reply are used first.
   */
  forReply(sessionId: string | null, repeat: boolean, prefix = 'chatcmpl-tool-'): (index: number) => string {
    const key = sessionId ?? NO_SESSION;
    const earlier = repeat ? (this.latest.peek(key) ?? []) : [];
    const ids: string[] = [];
    return (index) => {
      const id = earlier[index] ?? `${prefix}${randomUUID().replaceAll('-', '')}`;
      ids[index] = id;
      this.latest.set(key, ids);
      return id;
    };
  }
}
