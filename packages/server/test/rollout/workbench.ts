import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient, NodeApi, type NodeDescription } from '@floe-rl/client';
import { type Clock, systemClock } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import type { Lease, Outcome, SessionSummary, TaskRequestInput } from '@floe-rl/core/schema';
import {
  createRolloutServer,
  type RolloutConfigInput,
  type RolloutDeps,
  type RolloutServer,
} from '../../src/rollout/index.ts';
import { type BlobStore, DirectoryBlobStore, SqliteStore } from '../../src/store/index.ts';

/** A temporary directory with a database and blobs, on which a test can start several servers one after another. */
export class Workbench {
  readonly directory: string;
  readonly clock: Clock;
  private readonly undo: (() => Promise<unknown>)[] = [];

  private constructor(directory: string, clock: Clock) {
    this.directory = directory;
    this.clock = clock;
  }

  static async create(clock: Clock = systemClock): Promise<Workbench> {
    return new Workbench(await mkdtemp(join(tmpdir(), 'floe-rollout-')), clock);
  }

  async open(): Promise<{ store: SqliteStore; blobs: BlobStore }> {
    const store = SqliteStore.open(join(this.directory, 'floe.db'));
    this.undo.push(() => store.close());
    return { store, blobs: await DirectoryBlobStore.open(join(this.directory, 'blobs'), this.clock) };
  }

  /** Starts a server on the store of this directory. The store is closed by the workbench's `dispose`, or earlier by `stop`. */
  async server(config: RolloutConfigInput = {}, deps: Partial<RolloutDeps> = {}): Promise<Running> {
    const own = deps.store === undefined ? await this.open() : null;
    const server = await createRolloutServer({ port: 0, ...config }, {
      clock: this.clock,
      validateTask: () => {},
      ...own,
      ...deps,
    } as RolloutDeps);
    const running = new Running(server, own?.store ?? null);
    this.undo.push(() => running.close());
    return running;
  }

  async dispose(): Promise<void> {
    for (const close of this.undo.reverse()) await close();
    await rm(this.directory, { recursive: true, force: true });
  }
}

export class Running {
  readonly server: RolloutServer;
  private readonly ownStore: SqliteStore | null;
  private readonly clients: { close(): Promise<void> }[] = [];
  private url: string | null = null;

  constructor(server: RolloutServer, ownStore: SqliteStore | null) {
    this.server = server;
    this.ownStore = ownStore;
  }

  async listen(): Promise<string> {
    this.url ??= (await this.server.listen()).url;
    return this.url;
  }

  async client(token?: string): Promise<FloeClient> {
    const client = new FloeClient({ url: await this.listen(), token });
    this.clients.push(client);
    return client;
  }

  async node(nodeId = 'node-1', token?: string): Promise<NodeApi> {
    const node = new NodeApi({ url: await this.listen(), nodeId, token });
    this.clients.push(node);
    await node.register(REGISTRATION);
    return node;
  }

  async close(): Promise<void> {
    for (const client of this.clients.splice(0)) await client.close();
    await this.server.close();
    await this.ownStore?.close();
  }
}

export const REGISTRATION: NodeDescription = {
  host: null,
  dispatch_policy: 'pipeline',
  gateway_url: null,
  max_init_workers: 4,
  ready_size: 2,
  max_run_workers: 4,
  max_postrun_workers: 2,
  memory_mb: null,
};

export const METRICS = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

export function task(fields: Partial<TaskRequestInput> = {}): TaskRequestInput {
  return { instruction: 'add two numbers', agent: { harness: 'shell', custom_shell: 'true' }, ...fields };
}

export function summaryOf(
  lease: Pick<Lease, 'session_id' | 'task_id' | 'sample_index' | 'attempt' | 'epoch'>,
  outcome: Outcome = 'completed',
  fields: Partial<SessionSummary> = {},
): SessionSummary {
  const summary = sessionSummary(lease, outcome, {
    reward: outcome === 'completed' ? 1 : null,
    trace_count: 1,
    trainable_tokens: 3,
    completion_count: 1,
    timing: {
      queued_ms: 1,
      init_ms: 1,
      ready_ms: 1,
      running_ms: 1,
      postrun_queue_ms: 1,
      build_ms: 1,
      eval_ms: 1,
      postrun_ms: 1,
      total_ms: 7,
    },
  });
  return { ...summary, ...fields };
}

export const TRAJECTORY = Buffer.from('{"status":"COMPLETED","traces":[{"response_ids":[1,2,3]}],"odd number":1.0}');
export const COMPLETIONS = Buffer.from('[{"completion_id":"cmp_1"}]');
