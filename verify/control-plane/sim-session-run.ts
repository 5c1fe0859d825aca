import type { DeliveredResult } from '@floe-rl/client';
import { FloeError, sleep } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import type { StagePools } from '#node/gateway/node/stage-pools';
import type { Attempt } from '#node/gateway/session/attempt';
import { classify } from '#node/gateway/session/failure';
import type { SimCluster } from './cluster.ts';
import type { SessionScript } from './plan.ts';
import type { EngineChooser } from './sim-engines.ts';
import type { SimProcess } from './sim-process.ts';

/** The node process that runs a session, together with the node's stage pools. */
type RunningNode = {
  readonly nodeId: string;
  readonly instance: string;
  readonly pools: StagePools;
  /** Chooses the engine of each call; `null` when the plan has no engine pool. */
  readonly chooser: EngineChooser | null;
};

/** The removal of a sandbox takes a random time in this range, in ms. */
const TEARDOWN_MS = { from: 1, to: 30 };

/**
 * Runs one attempt of a session with the stages, time limits and stage pools of floe's own runner. Instead of doing work, each stage waits
 * for some virtual time.
 */
export class SimSessionRun {
  private readonly cluster: SimCluster;
  private readonly process: SimProcess;
  private readonly node: RunningNode;
  private readonly attempt: Attempt;
  private readonly script: SessionScript;

  constructor(cluster: SimCluster, process: SimProcess, node: RunningNode, attempt: Attempt) {
    this.cluster = cluster;
    this.process = process;
    this.node = node;
    this.attempt = attempt;
    this.script = cluster.plan.script(attempt.lease);
  }

  /**
   * Runs the attempt. Resolves to the result that the node must deliver; `null` when the session was stopped and there is nothing to
   * deliver.
   */
  async run(): Promise<DeliveredResult | null> {
    const { attempt, cluster, process, node } = this;
    const { sandboxes } = cluster.history;
    const release: { run: (() => void) | null; init: (() => void) | null } = { run: null, init: null };
    try {
      const started = await this.runStage('init', async () => {
        release.init = await node.pools.enterInit(attempt.signal);
        attempt.enter('INIT');
        await attempt.measure('init_ms', () =>
          attempt.timer.run('init', null, attempt.signal, async (signal) => {
            sandboxes.start(process, node.nodeId, attempt.lease);
            await this.work(this.script.initMs, signal);
            if (this.script.initFails) throw new FloeError('runtime_failed', 'the sandbox did not start');
          }),
        );
      });
      if (started) {
        attempt.enter('READY');
        await this.runStage('init', async () => {
          release.run = await node.pools.enterRun(() => release.init?.(), attempt.signal);
          attempt.enter('RUNNING');
          await this.runStage('agent', () =>
            attempt.measure('running_ms', () =>
              attempt.timer.run('agent', null, attempt.signal, (signal) => this.runAgent(signal)),
            ),
          );
        });
      }
      release.init?.();
      release.run?.();
      return await this.runPostrun();
    } finally {
      release.init?.();
      release.run?.();
      await sleep(process.clock, cluster.random.between(TEARDOWN_MS.from, TEARDOWN_MS.to));
      sandboxes.end(process, attempt.lease);
    }
  }

  private async runAgent(signal: AbortSignal): Promise<void> {
    const { script, cluster, attempt, node } = this;
    for (let turn = 1; turn <= script.turns; turn++) {
      const end = node.chooser?.begin(attempt.lease.session_id);
      await this.work(script.turnMs, signal).finally(end);
      if (cluster.engine === 'failing') throw new FloeError('engine_unavailable', 'no engine answers');
      if (cluster.engine === 'hanging' || script.hangs) await this.work(Number.MAX_SAFE_INTEGER, signal);
      attempt.recordCalls(turn, turn * 3, { role: 'assistant', content: null });
    }
    if (script.fails) throw new FloeError('harness_failed', 'the agent exited with 1');
  }

  private async runPostrun(): Promise<DeliveredResult | null> {
    const { attempt, node, script } = this;
    if (this.isStopped()) return this.partialResult();
    attempt.enter('POSTRUN');
    let leave: (() => void) | null = null;
    try {
      leave = await node.pools.enterPostrun(attempt.signal);
      await attempt.measure('postrun_ms', () =>
        attempt.measure('eval_ms', () => this.work(script.postrunMs, attempt.signal)),
      );
    } catch (thrown) {
      attempt.fail(classify(thrown, 'build'));
    } finally {
      leave?.();
    }
    return this.isStopped() ? this.partialResult() : this.result();
  }

  /** Returns the partial result of an attempt that was stopped because it lost its lease; `null` when it was stopped for another reason. */
  private partialResult(): DeliveredResult | null {
    return this.attempt.stopReason === 'lease_lost' ? this.result() : null;
  }

  /**
   * Returns the result of the attempt. Its trajectory contains the session, epoch and process of the attempt, so that the final checks can
   * find out which attempt a stored result came from.
   */
  private result(): DeliveredResult {
    const { attempt, node, script } = this;
    const { lease } = attempt;
    const outcome = attempt.failure?.outcome ?? 'completed';
    const succeeded = outcome === 'completed';
    const origin = { session: lease.session_id, epoch: lease.epoch, instance: node.instance, turns: attempt.turns };
    return {
      summary: sessionSummary(lease, outcome, {
        reward: succeeded && lease.task.evaluator !== null && script.hasReward ? script.reward : null,
        trace_count: succeeded ? 1 : 0,
        trainable_tokens: succeeded ? attempt.sampledTokens : 0,
        completion_count: attempt.turns,
        timing: attempt.timing(),
        node_id: node.nodeId,
        error: attempt.failure?.error ?? null,
        metadata: lease.task.metadata,
      }),
      trajectory: attempt.turns === 0 ? null : Buffer.from(JSON.stringify(origin)),
      completions: null,
      artifacts: null,
    };
  }

  private work(ms: number, signal: AbortSignal): Promise<void> {
    return sleep(this.process.clock, ms, signal);
  }

  private isStopped(): boolean {
    const { stopReason } = this.attempt;
    return stopReason === 'cancelled' || stopReason === 'lease_lost';
  }

  /** Runs a stage and resolves to whether it succeeded. A failure is recorded in the attempt and does not reject the promise. */
  private async runStage(stage: 'init' | 'agent', work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (thrown) {
      this.attempt.fail(classify(thrown, stage));
      return false;
    }
  }
}
