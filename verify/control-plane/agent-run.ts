import type { DeliveredResult } from '../../src/client/node-api.ts';
import { sleep } from '../../src/core/clock.ts';
import { FloeError } from '../../src/core/errors.ts';
import { sessionSummary } from '../../src/core/session-summary.ts';
import type { StagePools } from '../../src/gateway/node/stage-pools.ts';
import type { Attempt } from '../../src/gateway/session/attempt.ts';
import { classify } from '../../src/gateway/session/failure.ts';
import { sessionScript } from './session-script.ts';
import type { SimProcess } from './sim-process.ts';
import type { World } from './world.ts';

export type RunPlace = { readonly nodeId: string; readonly instance: string; readonly pools: StagePools };

/** Tearing a sandbox down, ms. */
const TEAR_DOWN_MS = { from: 1, to: 30 };

/** One attempt of a session: the stages of the real runner with their budgets and pools, and virtual work in them. */
export class AgentRun {
  private readonly world: World;
  private readonly life: SimProcess;
  private readonly place: RunPlace;
  private readonly attempt: Attempt;
  private readonly script;

  constructor(world: World, life: SimProcess, place: RunPlace, attempt: Attempt) {
    this.world = world;
    this.life = life;
    this.place = place;
    this.attempt = attempt;
    this.script = sessionScript(world.plan, attempt.lease);
  }

  /** Null: the session was stopped, and there is nothing to deliver. */
  async run(): Promise<DeliveredResult | null> {
    const { attempt, world, life, place } = this;
    const { sandboxes } = world.history;
    const release: { run: (() => void) | null; init: (() => void) | null } = { run: null, init: null };
    try {
      const started = await this.guarded('init', async () => {
        release.init = await place.pools.enterInit(attempt.signal);
        attempt.enter('INIT');
        await attempt.timer.run('init', null, attempt.signal, async (signal) => {
          sandboxes.start(life, place, attempt.lease);
          await this.work(this.script.initMs, signal);
          if (this.script.initFails) throw new FloeError('runtime_failed', 'the sandbox did not start');
        });
      });
      if (started) {
        attempt.enter('READY');
        await this.guarded('init', async () => {
          release.run = await place.pools.enterRun(() => release.init?.(), attempt.signal);
          attempt.enter('RUNNING');
          await this.guarded('agent', () =>
            attempt.timer.run('agent', null, attempt.signal, (signal) => this.agent(signal)),
          );
        });
      }
      release.init?.();
      release.run?.();
      return await this.postrun();
    } finally {
      release.init?.();
      release.run?.();
      await sleep(life.clock, world.dice.between(TEAR_DOWN_MS.from, TEAR_DOWN_MS.to));
      sandboxes.end(life, attempt.lease);
    }
  }

  private async agent(signal: AbortSignal): Promise<void> {
    const { script, world, attempt } = this;
    for (let turn = 1; turn <= script.turns; turn++) {
      await this.work(script.turnMs, signal);
      if (world.engine === 'failing') throw new FloeError('engine_unavailable', 'no engine answers');
      if (world.engine === 'hanging' || script.hangs) await this.work(Number.MAX_SAFE_INTEGER, signal);
      attempt.recordCalls(turn, turn * 3);
    }
    if (script.fails) throw new FloeError('harness_failed', 'the agent exited with 1');
  }

  private async postrun(): Promise<DeliveredResult | null> {
    const { attempt, place, script } = this;
    if (this.stopped()) return this.remains();
    attempt.enter('POSTRUN');
    let leave: (() => void) | null = null;
    try {
      leave = await place.pools.enterPostrun(attempt.signal);
      await this.work(script.postrunMs, attempt.signal);
    } catch (thrown) {
      attempt.fail(classify(thrown, 'build'));
    } finally {
      leave?.();
    }
    return this.stopped() ? this.remains() : this.result();
  }

  /** Of an attempt that lost its lease, what its agent did; of a cancelled one nothing. */
  private remains(): DeliveredResult | null {
    return this.attempt.stopReason === 'lease_lost' ? this.result() : null;
  }

  /** What was made tells who made it, so that a result can be traced to the attempt that it came from. */
  private result(): DeliveredResult {
    const { attempt, place, script } = this;
    const { lease } = attempt;
    const outcome = attempt.failure?.outcome ?? 'completed';
    const good = outcome === 'completed';
    const made = { session: lease.session_id, epoch: lease.epoch, instance: place.instance, turns: attempt.turns };
    return {
      summary: sessionSummary(lease, outcome, {
        reward: good && lease.task.evaluator !== null && script.graded ? script.reward : null,
        trace_count: good ? 1 : 0,
        trainable_tokens: good ? attempt.sampledTokens : 0,
        completion_count: attempt.turns,
        timing: attempt.timing(),
        node_id: place.nodeId,
        error: attempt.failure?.error ?? null,
        metadata: lease.task.metadata,
      }),
      trajectory: attempt.turns === 0 ? null : Buffer.from(JSON.stringify(made)),
      completions: null,
      artifacts: null,
    };
  }

  private work(ms: number, signal: AbortSignal): Promise<void> {
    return sleep(this.life.clock, ms, signal);
  }

  private stopped(): boolean {
    const { stopReason } = this.attempt;
    return stopReason === 'cancelled' || stopReason === 'lease_lost';
  }

  private async guarded(stage: 'init' | 'agent', work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (thrown) {
      this.attempt.fail(classify(thrown, stage));
      return false;
    }
  }
}
