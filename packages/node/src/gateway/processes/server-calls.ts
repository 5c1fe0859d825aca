import type { NodeApi, NodeDescription } from '@floe-rl/client';
import {
  asFloeError,
  type Backoff,
  backoffMs,
  type Clock,
  FloeError,
  type LinkedAbort,
  linkAbort,
  onAbort,
  sleep,
} from '@floe-rl/core';
import type { Heartbeat, HeartbeatReply, Lease, LeaseRequest, NodeInfo, NodeProcess } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import { commonRefusal, mergeEngineReports, sumOfStages } from './merged-heartbeat.ts';
import { engineShareOf } from './shares.ts';

type Beat = Omit<Heartbeat, 'instance'>;
type Request = Omit<LeaseRequest, 'instance'>;
type HeldSession = { readonly session_id: string; readonly epoch: number };

/** Backoff between tries to report lost sessions to the server. */
const RETRY: Backoff = { baseMs: 200, maxMs: 5_000 };
/** Largest number of sessions that one lease call may request. */
const MAX_SLOTS = 10_000;

export type ServerCallsDeps = {
  readonly api: Pick<NodeApi, 'register' | 'heartbeat' | 'lease'>;
  readonly clock: Clock;
  readonly log: Logger;
  /** Sizes of the stages of the whole node, as registered at the server. */
  readonly sizes: Pick<NodeDescription, 'max_init_workers' | 'ready_size' | 'max_run_workers' | 'max_postrun_workers'>;
  /** Returns the state of each worker. */
  readonly states: () => readonly Pick<NodeProcess, 'state' | 'ends'>[];
};

/** A worker's request for leases that has no reply yet. */
type OpenRequest = {
  readonly slots: number;
  readonly waitSeconds: number;
  resolve(leases: Lease[]): void;
  reject(error: Error): void;
};

/** The state of one worker. */
type KnownWorker = {
  /** The worker's latest heartbeat; `null` before its first one. */
  beat: Beat | null;
  request: OpenRequest | null;
  /** The sessions that the worker got, until a heartbeat shows that they have ended. The value is whether a heartbeat has listed them. */
  readonly held: Map<string, HeldSession & { listed: boolean }>;
};

/**
 * Calls the rollout server for several workers, which the server sees as one node. Each worker's heartbeat is sent on with the numbers of the
 * whole node. Leases go to the worker with the fewest sessions.
 */
export class ServerCalls {
  private readonly deps: ServerCallsDeps;
  private readonly workers: readonly KnownWorker[];
  /** Leases that no worker had requested when they arrived. The next request gets them. */
  private unclaimed: Lease[] = [];
  /** The lease call that the server has not answered; `null` when there is none. Only one is made at a time, so that leases can be divided. */
  private leasing: LinkedAbort | null = null;
  private readonly stopping = new AbortController();
  private reporting: Promise<void> = Promise.resolve();

  constructor(deps: ServerCallsDeps) {
    this.deps = deps;
    this.workers = deps.states().map(() => ({ beat: null, request: null, held: new Map() }));
  }

  /** Registers the node with the sizes of all workers together. */
  register(description: NodeDescription, signal: AbortSignal): Promise<NodeInfo> {
    return this.deps.api.register({ ...description, ...this.deps.sizes }, signal);
  }

  /** Sends a worker's heartbeat. The reply has the worker's share of the engines' limits. Rejects as `NodeApi.heartbeat` does. */
  async heartbeat(
    index: number,
    beat: Beat,
    replySeconds: number | undefined,
    signal: AbortSignal,
  ): Promise<HeartbeatReply> {
    this.record(this.at(index), beat);
    const reply = await this.deps.api.heartbeat({ ...beat, ...this.nodeFields() }, signal, replySeconds);
    if (reply.engines === null) return reply;
    const engines = reply.engines.engines.map((spec) => engineShareOf(spec, index, this.workers.length));
    return { ...reply, engines: { ...reply.engines, engines } };
  }

  /**
   * Resolves with leases for a worker: at least one and at most `slots`, or none when the server has none within the wait, or `signal` aborts.
   * Rejects as `NodeApi.lease` does.
   */
  lease(index: number, { slots, wait_seconds: waitSeconds }: Request, signal: AbortSignal): Promise<Lease[]> {
    const worker = this.at(index);
    return new Promise<Lease[]>((resolve, reject) => {
      let release = (): void => {};
      worker.request = {
        slots,
        waitSeconds,
        resolve: (leases) => {
          release();
          resolve(leases);
        },
        reject: (error) => {
          release();
          reject(error);
        },
      };
      release = onAbort(signal, () => this.withdraw(worker));
      if (worker.request !== null) this.distribute(this.unclaimed.splice(0));
    });
  }

  /** Reports the sessions of a worker whose process has ended to the server, which returns them to the queue. */
  lose(index: number): void {
    const worker = this.at(index);
    const lost = [...worker.held.values()].map(({ session_id, epoch }) => ({ session_id, epoch }));
    worker.held.clear();
    worker.beat = null;
    this.answer(worker, []);
    this.reporting = this.reporting.then(() => this.reportLost(lost));
  }

  /** Returns the figures of each worker. */
  processes(): NodeProcess[] {
    const states = this.deps.states();
    return this.workers.map(({ beat }, index) => ({
      ...(states[index] ?? { state: 'starting', ends: 0 }),
      ...sumOfStages(beat === null ? [] : [beat.metrics]),
      refuses: beat?.refuses ?? null,
    }));
  }

  /** Ends all calls, and resolves when they have ended. */
  async close(): Promise<void> {
    const reason = new FloeError('not_ready', 'the node is shutting down');
    this.stopping.abort(reason);
    this.leasing?.abort(reason);
    await this.reporting;
  }

  private at(index: number): KnownWorker {
    const worker = this.workers[index];
    if (worker === undefined) throw new Error(`there is no worker ${index}`);
    return worker;
  }

  private record(worker: KnownWorker, beat: Beat): void {
    const { held } = worker;
    worker.beat = beat;
    const listed = new Set(beat.sessions.map(keyOf));
    for (const [key, session] of held) {
      if (listed.has(key)) session.listed = true;
      else if (session.listed) held.delete(key);
    }
  }

  /** Returns the fields of a heartbeat that concern the whole node. */
  private nodeFields(): Pick<Beat, 'metrics' | 'refuses' | 'engines'> {
    const beats = this.workers.flatMap(({ beat }) => beat ?? []);
    return {
      metrics: { ...sumOfStages(beats.map(({ metrics }) => metrics)), processes: this.processes() },
      refuses: commonRefusal(beats.map(({ refuses }) => refuses)),
      engines: mergeEngineReports(beats.flatMap(({ engines }) => engines ?? [])),
    };
  }

  private answer(worker: KnownWorker, leases: Lease[]): void {
    const { request } = worker;
    worker.request = null;
    request?.resolve(leases);
  }

  /** Answers a worker that no longer wants leases. When no worker does, the call that the server holds is ended as well. */
  private withdraw(worker: KnownWorker): void {
    this.answer(worker, []);
    if (this.workers.some(({ request }) => request !== null)) return;
    this.leasing?.abort(new FloeError('cancelled', 'no process of the node takes sessions'));
    this.leasing = null;
  }

  /**
   * Gives leases to the workers that request some, each to the requesting worker with the fewest sessions, and requests more for the requests
   * that are still open.
   */
  private distribute(leases: readonly Lease[]): void {
    const given = new Map<KnownWorker, Lease[]>();
    for (const lease of leases) {
      const open = this.workers.filter((one) => (one.request?.slots ?? 0) > (given.get(one)?.length ?? 0));
      const [worker] = open.toSorted((one, other) => one.held.size - other.held.size);
      if (worker === undefined) {
        this.unclaimed.push(lease);
        continue;
      }
      given.set(worker, [...(given.get(worker) ?? []), lease]);
      worker.held.set(keyOf(lease), { session_id: lease.session_id, epoch: lease.epoch, listed: false });
    }
    for (const [worker, own] of given) this.answer(worker, own);
    this.requestMore();
  }

  /** Requests leases for all open requests, unless the server already holds a call. */
  private requestMore(): void {
    const requests = this.workers.flatMap(({ request }) => request ?? []);
    if (this.leasing !== null || requests.length === 0) return;
    const slots = requests.reduce((sum, request) => sum + request.slots, 0);
    const waitSeconds = Math.max(...requests.map((request) => request.waitSeconds));
    const leasing = linkAbort();
    this.leasing = leasing;
    this.deps.api.lease({ slots: Math.min(slots, MAX_SLOTS), wait_seconds: waitSeconds }, leasing.signal).then(
      (leases) => {
        if (leasing === this.leasing) this.leasing = null;
        if (leases.length === 0) this.answerAll();
        this.distribute(leases);
      },
      (error: unknown) => {
        if (leasing !== this.leasing) return;
        this.leasing = null;
        for (const worker of this.workers) {
          worker.request?.reject(asFloeError(error, 'peer_unreachable'));
          worker.request = null;
        }
      },
    );
  }

  /** Answers all requests, so that the workers repeat them with their present numbers of free slots. */
  private answerAll(): void {
    for (const worker of this.workers) if (worker.request !== null) this.answer(worker, []);
  }

  private async reportLost(lost: readonly HeldSession[]): Promise<void> {
    const { api, clock, log } = this.deps;
    const { signal } = this.stopping;
    for (let tries = 1; !signal.aborted; tries++) {
      try {
        const beat = { ...this.nodeFields(), sessions: [], lost: [...lost], wait_seconds: 0 };
        await api.heartbeat(beat, signal);
        return;
      } catch (thrown) {
        const error = asFloeError(thrown, 'peer_unreachable');
        log.warn(
          { tries, code: error.code, error: error.message },
          'lost sessions could not be reported to the server',
        );
        if (!error.retryable) return;
        await sleep(clock, backoffMs(RETRY, tries), signal).catch(() => undefined);
      }
    }
  }
}

function keyOf({ session_id, epoch }: HeldSession): string {
  return `${session_id}/${epoch}`;
}
