import { VirtualClock } from '@floe-rl/core';
import type {
  BatchReply,
  BatchStreamRequestInput,
  BatchStreamView,
  Lease,
  Outcome,
  SessionResult,
  SessionSummary,
} from '@floe-rl/core/schema';
import { expect } from 'vitest';
import type { RolloutConfigInput, RolloutDeps } from '../../../src/rollout/index.ts';
import { type Answer, Caller, type Refusal } from '../call.ts';
import { type Running, summaryOf, Workbench } from '../workbench.ts';

/** How a session ends: a number is its reward with the outcome `completed`, otherwise its outcome. */
export type Ending = number | Outcome;

/** The place of a session in its stream. */
export type Origin = { readonly row: number; readonly group: number; readonly sample: number };

const NODE = 'n1';

/** A server with one node whose agents end as a test decides. Time passes only when a test advances the clock. */
export class StreamBench {
  readonly bench: Workbench;
  readonly clock: VirtualClock;
  readonly running: Running;
  readonly caller: Caller;

  private constructor(bench: Workbench, clock: VirtualClock, running: Running) {
    this.bench = bench;
    this.clock = clock;
    this.running = running;
    this.caller = new Caller(running.server);
  }

  static async create(config: RolloutConfigInput = {}, deps: Partial<RolloutDeps> = {}): Promise<StreamBench> {
    const clock = new VirtualClock();
    const bench = await Workbench.create(clock);
    const made = new StreamBench(bench, clock, await bench.server(config, deps));
    await made.caller.register(NODE);
    return made;
  }

  /** Starts a second server on the same store, as after a crash of the first. */
  async restarted(): Promise<StreamBench> {
    await this.running.close();
    const made = new StreamBench(this.bench, this.clock, await this.bench.server());
    await made.caller.register(NODE);
    return made;
  }

  async createStream(fields: Partial<BatchStreamRequestInput> = {}): Promise<BatchStreamView> {
    const { status, body } = await this.caller.call<BatchStreamView>('POST', '/rollout/batches', streamOf(fields));
    expect({ status, body }).toMatchObject({ status: 200 });
    return body;
  }

  refusal(fields: Partial<BatchStreamRequestInput> | object): Promise<Answer<Refusal>> {
    return this.caller.call('POST', '/rollout/batches', streamOf(fields));
  }

  async view(id = 'b'): Promise<BatchStreamView> {
    return (await this.caller.call<BatchStreamView>('GET', `/rollout/batches/${id}`)).body;
  }

  async next(query: Record<string, string | number> = {}, id = 'b'): Promise<BatchReply> {
    const { status, body } = await this.ask<BatchReply>(query, id);
    expect({ status, body }).toMatchObject({ status: 200 });
    return body;
  }

  ask<T = Refusal>(query: Record<string, string | number> = {}, id = 'b'): Promise<Answer<T>> {
    const text = Object.entries(query)
      .map(([key, value]) => `${key}=${encodeURIComponent(value)}`)
      .join('&');
    return this.caller.call<T>('GET', `/rollout/batches/${id}/next?${text}`);
  }

  /** Lets the stream start groups, and leases up to `slots` sessions of them to the node. */
  async lease(slots = 1): Promise<Lease[]> {
    const leases: Lease[] = [];
    for (;;) {
      await this.running.server.sweep();
      const more = await this.caller.lease(NODE, slots - leases.length);
      if (more.length === 0 || leases.push(...more) >= slots) return leases;
    }
  }

  /** Ends a session with one trace. `trace` overrides fields of the default trace. */
  async end(lease: Lease, ending: Ending, trace: object = {}, fields: Partial<SessionSummary> = {}): Promise<void> {
    const outcome = typeof ending === 'number' ? 'completed' : ending;
    const reward = typeof ending === 'number' ? ending : null;
    const answer = await this.caller.deliver(
      NODE,
      summaryOf(lease, outcome, { reward, ...fields }),
      trajectoryOf(trace),
    );
    expect(answer.status).toBe(200);
  }

  /** Runs all sessions that the stream starts, at most `limit`, one after the other, until none is left. Returns their places in the stream. */
  async runAll(endingOf: (origin: Origin) => Ending, limit = 200): Promise<Origin[]> {
    const ran: Origin[] = [];
    while (ran.length < limit) {
      const [lease] = await this.lease();
      if (lease === undefined) break;
      const origin = originOf(lease);
      ran.push(origin);
      await this.end(lease, endingOf(origin));
    }
    return ran;
  }

  async dispose(): Promise<void> {
    await this.bench.dispose();
  }
}

export function originOf({ task, sample_index: sample }: Lease): Origin {
  const { row_index: row, group } = task.metadata.batch as { row_index: number; group: number };
  return { row, group, sample };
}

/** Rewards that make every group informative: 1 for the first sample, 0 for the others. */
export const mixed = ({ sample }: Origin): number => (sample === 0 ? 1 : 0);

export function rows(count: number): { question: string }[] {
  return Array.from({ length: count }, (_, index) => ({ question: `q${index}` }));
}

/** A stream of batches of two groups with two samples each, in the order of its rows. */
export function streamOf(fields: Partial<BatchStreamRequestInput> | object): BatchStreamRequestInput {
  return {
    batch_id: 'b',
    source: { kind: 'rows', rows: rows(6) },
    task: {
      instruction: 'Answer {{row.question}}',
      num_samples: 2,
      agent: { harness: 'shell', custom_shell: 'true' },
      evaluator: { strategy: 'session_completed' },
    },
    batch_size: 2,
    max_staleness: 1,
    ...fields,
  };
}

/** The row of each group of a batch. */
export const rowsOf = (reply: BatchReply): number[] => reply.groups.map((group) => group.row_index);

export const resultsOf = (reply: BatchReply): SessionResult[] =>
  reply.groups.flatMap((group) => (group.results ?? []) as SessionResult[]);

const TRACE = {
  trace_id: 'trace',
  prompt_ids: [1],
  response_ids: [2, 3],
  loss_mask: [1, 1],
  response_logprobs: [-1, -2],
  version_spans: [{ version: 'v1', start: 0, end: 2 }],
  constrained_spans: [],
  prompt_messages: [],
  response_messages: [],
  tools: [],
  routed_experts: null,
  finish_reason: 'stop',
  reward: null,
  completion_ids: [],
  metadata: {},
};

function trajectoryOf(trace: object): Buffer {
  return Buffer.from(JSON.stringify({ images: {}, traces: [{ ...TRACE, ...trace }] }));
}
