import type { ErrorMessage } from '@floe-rl/core';
import type { MetricObjectWithValues, MetricValue } from 'prom-client';
import type { GatewayConfig } from '../node/config.ts';
import type { NodeCalls } from '../node/node-agent.ts';
import type { NodeStatus } from '../node/node-reports.ts';

/** Data that a worker gets at its start. It is not passed as program arguments, because other users can read those. */
export type WorkerSetup = {
  /** The worker's share of the configuration of the node. */
  readonly config: GatewayConfig;
  readonly index: number;
  /** Number of workers of the node. */
  readonly count: number;
  /** Id of the node's process towards the server. All workers have the same. */
  readonly instance: string;
  readonly logLevel: string;
  /** State directories that no worker uses now. The worker recovers the attempts that have records in them. */
  readonly unusedDirs: readonly string[];
};

export type WorkerReports = {
  readonly status: NodeStatus;
  readonly metrics: MetricObjectWithValues<MetricValue<string>>[];
};

/** The operations of a worker, which the parent calls. */
export type WorkerOperations = {
  /** Starts the worker's part of the node. Rejects as `startGateway` does. */
  start(setup: WorkerSetup): Promise<{ readonly proxyOrigin: string }>;
  reports(): Promise<WorkerReports>;
  engineMetrics(): Promise<string>;
  recovered(): Promise<void>;
  drain(): Promise<void>;
  close(): Promise<void>;
};

type Argument<Name extends keyof NodeCalls> = NodeCalls[Name] extends (...args: infer A) => unknown ? A[0] : never;
type Reply<Name extends keyof NodeCalls> = NodeCalls[Name] extends (...args: never) => infer R ? R : never;

/** The operations of the parent, which the workers call. */
export type ParentOperations = {
  register(description: Argument<'register'>, signal: AbortSignal): Reply<'register'>;
  heartbeat(
    call: { readonly beat: Argument<'heartbeat'>; readonly replySeconds: number | undefined },
    signal: AbortSignal,
  ): Reply<'heartbeat'>;
  lease(request: Argument<'lease'>, signal: AbortSignal): Reply<'lease'>;
  /** Reports that a newer process has registered with the id of the node. */
  takenOver(error: ErrorMessage): Promise<void>;
};
