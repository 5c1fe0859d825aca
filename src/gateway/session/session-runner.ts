import { join } from 'node:path';
import type { DeliveredResult } from '../../client/node-api.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import { newSessionKey } from '../../core/ids.ts';
import type { Span } from '../../core/tracing.ts';
import type { EvaluatorRegistry } from '../../evaluators/registry.ts';
import type { HarnessAdapter } from '../../harnesses/harness.ts';
import type { Logger } from '../../observe/log.ts';
import type { ModelProxy } from '../../proxy/http/proxy.ts';
import type { ProxySession } from '../../proxy/session/session.ts';
import type { Collected } from '../../runtimes/collect.ts';
import type { Runtime, StartRequest } from '../../runtimes/runtime.ts';
import type { Lease, Skill } from '../../schema/index.ts';
import type { BuilderRegistry } from '../../tokens/builders/registry.ts';
import type { StagePools } from '../node/stage-pools.ts';
import { type AgentRun, runAgent } from './agent-stage.ts';
import { collectArtifacts } from './artifacts-stage.ts';
import type { Attempt } from './attempt.ts';
import type { Decoder } from './drift-proof.ts';
import { classify, type FailedStage } from './failure.ts';
import { remainsOf } from './partial-result.ts';
import { build, evaluate, type FreshRuntime, type PostrunInput } from './postrun-stage.ts';
import type { Sandboxes } from './sandbox.ts';
import { loadSkills } from './skill-folder.ts';
import { withStallWatch } from './stall-watch.ts';

/** What is not torn down by then goes on without anybody waiting for it: the session's end must not hang on a sick disk. */
const TEARDOWN_MS = 30_000;

export type RunnerDeps = {
  /** Resolves when it is on the disk that the attempt has begun. Rejects with `store_unavailable`. */
  readonly begun: (lease: Lease) => Promise<void>;
  /** Throws when the attempt has lost its lease. Called before the proxy takes a model call of it. */
  readonly refuseLost: (attempt: Attempt) => void;
  /** Whether a model call of the session waits for its turn, which is no fault of anybody's. */
  readonly awaitsTurn: (sessionId: string) => boolean;
  /** Why a model call of the session, which goes on, has not been answered; null: nothing is wrong. */
  readonly failureOf: (sessionId: string) => FloeError | null;
  /** How long a stage may go on without a sign of progress where the task does not say; null: for ever. */
  readonly stallSeconds: number | null;
  readonly sandboxes: Sandboxes;
  readonly nodeId: string;
  readonly clock: Clock;
  readonly log: Logger;
  readonly pools: StagePools;
  readonly proxy: ModelProxy;
  readonly harnesses: ReadonlyMap<string, HarnessAdapter>;
  /** Host directory of an installed harness. Rejects with `harness_missing`. */
  readonly harnessInstallDir: (adapter: HarnessAdapter) => Promise<string | null>;
  readonly evaluators: EvaluatorRegistry;
  readonly builders: BuilderRegistry;
  readonly engines: Decoder;
  readonly socketDir: string;
  /** Host directories that a task may name paths in. */
  readonly uploadRoots: readonly string[];
};

/** Names of the sandboxes that an attempt may have. */
export function sandboxNames({ session_id, attempt }: Lease): { readonly agent: string; readonly eval: string } {
  return { agent: `${session_id}-${attempt}-agent`, eval: `${session_id}-${attempt}-eval` };
}

/**
 * Takes one attempt through INIT, READY, RUNNING and POSTRUN. Resolves with what is to be delivered: its result; what was
 * recorded when its lease was lost; or null when it was cancelled. Never rejects; whatever it started is gone when it settles.
 */
export async function runSession(attempt: Attempt, deps: RunnerDeps): Promise<DeliveredResult | null> {
  const run = new SessionRun(attempt, deps);
  let result: DeliveredResult | null = null;
  try {
    if ((await run.init()) && (await run.awaitRunSlot())) await run.agent();
    result = await run.postrun();
  } finally {
    await run.tearDown();
  }
  return attempt.stopReason === 'lease_lost' ? run.remains() : result;
}

class SessionRun {
  private readonly attempt: Attempt;
  private readonly deps: RunnerDeps;
  private readonly key = newSessionKey();
  private readonly socketPath: string;
  private runtime: Runtime | null = null;
  private fresh: FreshRuntime | null = null;
  /** Ends the start of the fresh runtime when nobody waits for it any more. */
  private readonly over = new AbortController();
  /** Ends an agent that has had all of its turns. */
  private readonly turnsUsedUp = new AbortController();
  private session: ProxySession | null = null;
  private leaveInit: () => void = () => {};
  private releaseRun: (() => void) | null = null;
  private adapter: HarnessAdapter | null = null;
  private installDir: string | null = null;
  private skills: readonly Skill[] = [];
  private artifacts: Collected | null = null;

  constructor(attempt: Attempt, deps: RunnerDeps) {
    this.attempt = attempt;
    this.deps = deps;
    // Unix socket paths are limited to about 107 bytes, so the name is short.
    this.socketPath = join(deps.socketDir, `${attempt.id.slice(-12)}-${attempt.lease.attempt}.sock`);
  }

  /** False when the attempt failed. */
  async init(): Promise<boolean> {
    const { attempt, deps } = this;
    return this.guarded('init', async () => {
      this.leaveInit = await deps.pools.enterInit(attempt.signal);
      attempt.enter('INIT');
      // Outside the budget, as all waiting is.
      const turn = await deps.sandboxes.turn(attempt.spec, attempt.signal);
      await attempt
        .measure('init_ms', () =>
          attempt.timer.run('init', seconds(attempt.lease.task.budgets.init), attempt.signal, (budget) =>
            this.watched('init', budget, async (signal) => {
              deps.builders.check(attempt.lease.task.builder);
              await this.findHarness();
              this.skills = await loadSkills(attempt.lease.task.agent, deps.uploadRoots);
              await deps.begun(attempt.lease);
              this.runtime = await deps.sandboxes.start(this.startRequest('agent'), attempt.spec.prepare, turn, signal);
            }),
          ),
        )
        .finally(turn);
    });
  }

  /** Waiting is free: the timer does not count here. */
  async awaitRunSlot(): Promise<boolean> {
    const { attempt, deps } = this;
    attempt.enter('READY');
    return this.guarded('init', () =>
      attempt.measure('ready_ms', async () => {
        this.releaseRun = await deps.pools.enterRun(this.leaveInit, attempt.signal);
      }),
    );
  }

  async agent(): Promise<void> {
    const { attempt } = this;
    attempt.enter('RUNNING');
    this.prewarmEvaluator();
    await this.guarded('agent', () =>
      attempt.measure('running_ms', (span) =>
        attempt.timer.run('agent', seconds(attempt.lease.task.budgets.agent), attempt.signal, (budget) =>
          this.watched('agent', budget, async (signal) => {
            const session = await this.openProxySession(span);
            this.session = session;
            // At once, not when the sandbox is gone: an engine must not work for a session that nobody wants.
            const end = (): void => void session.close().catch(() => undefined);
            attempt.signal.addEventListener('abort', end, { once: true });
            try {
              const run = AbortSignal.any([signal, this.turnsUsedUp.signal]);
              await runAgent(attempt, this.mustHaveRuntime(), this.agentRun(session), run);
            } finally {
              attempt.signal.removeEventListener('abort', end);
              await session.close();
            }
          }),
        ),
      ),
    );
    this.releaseRun?.();
  }

  async postrun(): Promise<DeliveredResult | null> {
    const { attempt, deps } = this;
    this.leaveInit();
    this.releaseRun?.();
    if (this.stopped()) return null;
    attempt.enter('POSTRUN');
    let leave: (() => void) | null = null;
    try {
      leave = await attempt.measure('postrun_queue_ms', () => deps.pools.enterPostrun(attempt.signal));
      return await this.finish();
    } catch (error) {
      if (this.stopped()) return null;
      attempt.fail(classify(error, 'build'));
      return await build(attempt, { reward: null, details: {} }, this.postrunInput());
    } finally {
      leave?.();
    }
  }

  /** Ends everything at the same time, whatever of it fails. Resolves after {@link TEARDOWN_MS} at the latest. */
  async tearDown(): Promise<void> {
    const { attempt, deps } = this;
    this.leaveInit();
    this.releaseRun?.();
    this.over.abort(new FloeError('cancelled', `session ${attempt.id} is over`));
    const fresh = this.fresh?.ready.then(
      (runtime) => runtime.stop(),
      () => undefined,
    );
    const settled = new AbortController();
    const all = Promise.allSettled([this.session?.close(), this.runtime?.stop(), fresh]).then((ended) => {
      settled.abort();
      for (const end of ended) {
        if (end.status === 'fulfilled') continue;
        deps.log.error({ ...attempt.names, error: asFloeError(end.reason).message }, 'a part did not end cleanly');
      }
    });
    const late = sleep(deps.clock, TEARDOWN_MS, settled.signal).then(
      () => deps.log.error({ ...attempt.names }, 'the sandbox takes long to end; the session does not wait for it'),
      () => undefined,
    );
    await Promise.race([all, late]);
  }

  /** What was recorded of an attempt that lost its lease; null: nothing. To be called after {@link tearDown}. */
  async remains(): Promise<DeliveredResult | null> {
    const { attempt, deps } = this;
    const completions = this.session?.completions() ?? [];
    if (completions.length === 0) return null;
    const message = `attempt ${attempt.lease.attempt} of session ${attempt.id} lost its lease`;
    // As any build it takes a worker, but never waits for a session that is over.
    const leave = await deps.pools.enterPostrun(new AbortController().signal);
    try {
      return await remainsOf(attempt, completions, deps, new FloeError('stale_epoch', message));
    } finally {
      leave();
    }
  }

  private watched<T>(stage: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { attempt, deps } = this;
    const stallSeconds = attempt.lease.task.budgets.stall ?? deps.stallSeconds;
    const options = {
      clock: deps.clock,
      limitMs: stallSeconds === null ? null : stallSeconds * 1000,
      signs: () => {
        if (deps.awaitsTurn(attempt.id)) attempt.signs++;
        return attempt.signs;
      },
      stalled: (idleSeconds: number) => this.stalled(stage, idleSeconds),
    };
    return withStallWatch(options, signal, work);
  }

  /** An agent that waits for its model has done nothing wrong. */
  private stalled(stage: string, stalled_seconds: number): FloeError {
    const details = { stage, budget: 'stall', stalled_seconds };
    return stage === 'agent' && (this.session?.runningCalls ?? 0) > 0
      ? new FloeError('engine_error', `a model call has shown no sign of life for ${stalled_seconds} s`, details)
      : new FloeError('deadline_exceeded', `${stage} has shown no sign of progress for ${stalled_seconds} s`, details);
  }

  private async finish(): Promise<DeliveredResult | null> {
    const { attempt } = this;
    const input = this.postrunInput();
    return attempt.measure('postrun_ms', async (span) => {
      const evaluation = await attempt.measure(
        'eval_ms',
        () => evaluate(attempt, input, (signal, work) => this.watched('eval', signal, work)),
        span,
      );
      if (this.stopped()) return null;
      // After the evaluation: what an agent makes of its sandbox costs its grading no time.
      this.artifacts = await collectArtifacts(attempt, this.runtime);
      if (this.stopped()) return null;
      return attempt.measure(
        'build_ms',
        () => build(attempt, evaluation, { ...input, artifacts: this.artifacts }),
        span,
      );
    });
  }

  private postrunInput(): PostrunInput {
    const { attempt, deps } = this;
    const strategy = attempt.lease.task.evaluator?.strategy;
    return {
      runtime: this.runtime,
      freshRuntime: this.fresh,
      evaluator: strategy === undefined ? null : deps.evaluators.get(strategy),
      completions: this.session?.completions() ?? [],
      artifacts: this.artifacts,
      builders: deps.builders,
      engines: deps.engines,
      nodeId: deps.nodeId,
    };
  }

  /** A cancelled session and one whose lease is lost have nothing to deliver; one cut off by shutdown does. */
  private stopped(): boolean {
    return this.attempt.stopReason === 'cancelled' || this.attempt.stopReason === 'lease_lost';
  }

  private async guarded(stage: FailedStage, work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (error) {
      this.attempt.fail(classify(error, stage));
      return false;
    }
  }

  private async findHarness(): Promise<void> {
    const { agent } = this.attempt.lease.task;
    const name = agent.harness;
    const adapter = this.deps.harnesses.get(name);
    if (adapter === undefined)
      throw new FloeError('unknown_harness', `this node has no harness ${name}`, { harness: name });
    this.adapter = adapter;
    this.installDir = adapter.inImage(agent) ? null : await this.deps.harnessInstallDir(adapter);
  }

  private startRequest(purpose: 'agent' | 'eval'): StartRequest {
    const { attempt, deps } = this;
    const forAgent = purpose === 'agent';
    return {
      name: sandboxNames(attempt.lease)[purpose],
      spec: attempt.spec,
      proxy: forAgent ? { socketPath: this.socketPath, tcpOrigin: deps.proxy.origin } : null,
      // At its own path: Node's compile cache is keyed by it.
      readOnlyMounts:
        forAgent && this.installDir !== null ? [{ hostPath: this.installDir, sandboxPath: this.installDir }] : [],
      onActivity: attempt.alive,
    };
  }

  private agentRun(session: ProxySession): AgentRun {
    const { adapter } = this;
    if (adapter === null) throw new FloeError('internal', `session ${this.attempt.id} runs without a harness`);
    return {
      adapter,
      installDir: this.installDir,
      contextWindow: this.deps.proxy.maxModelLen(this.attempt.lease.task.engine.pool),
      skills: this.skills,
      key: this.key,
      session,
      unanswered: () => this.deps.failureOf(this.attempt.id),
    };
  }

  private mustHaveRuntime(): Runtime {
    if (this.runtime === null) throw new FloeError('internal', `session ${this.attempt.id} has no runtime`);
    return this.runtime;
  }

  private openProxySession(span: Span): Promise<ProxySession> {
    const { attempt, deps } = this;
    const { lease } = attempt;
    const { agent } = lease.task;
    return deps.proxy.open({
      sessionId: lease.session_id,
      attempt: lease.attempt,
      sampleIndex: lease.sample_index,
      key: this.key,
      socketPath: this.mustHaveRuntime().isolation === 'sandboxed' ? this.socketPath : null,
      modelName: agent.model_name,
      modelAliases: agent.model_aliases,
      maxTurns: agent.max_turns ?? null,
      onTurnLimit: () => {
        const message = `the agent has had the ${agent.max_turns} model turns of agent.max_turns`;
        this.turnsUsedUp.abort(new FloeError('turn_limit', message, { turns: agent.max_turns }));
      },
      sampling: lease.task.sampling,
      engine: lease.task.engine,
      onProgress: (turns, sampledTokens) => attempt.progressed(turns, sampledTokens),
      onActivity: attempt.alive,
      span,
      admit: () => deps.refuseLost(attempt),
    });
  }

  /** Started while the agent runs, so that grading does not wait for it. A failure shows when it is awaited. */
  private prewarmEvaluator(): void {
    const { attempt, deps } = this;
    if (attempt.lease.task.evaluator?.refresh_runtime !== true) return;
    const prepare = attempt.spec.eval_prepare ?? attempt.spec.prepare;
    const signal = AbortSignal.any([attempt.signal, this.over.signal]);
    const turn = deps.sandboxes.turn(attempt.spec, signal);
    const ready = turn.then((end) => deps.sandboxes.start(this.startRequest('eval'), prepare, end, signal));
    ready.catch(() => undefined);
    const settled = turn.then(
      () => undefined,
      () => undefined,
    );
    this.fresh = { turn: settled, ready };
  }
}

function seconds(value: number | undefined): number | null {
  return value === undefined ? null : value * 1000;
}
