import type { AgentHost } from '@floe-rl/agents';
import {
  type BuilderRegistry,
  callRulesOf,
  type ModelProxy,
  type ProxySession,
  type ProxySessionSpec,
} from '@floe-rl/capture';
import type { DeliveredResult } from '@floe-rl/client';
import { asFloeError, FloeError, linkAbort, MIB, newSessionKey, onAbort, raceAbort, type Span } from '@floe-rl/core';
import type { Lease, Skill, TaskStep } from '@floe-rl/core/schema';
import { isBelowMinimum, type PostRunHook } from '@floe-rl/evaluators';
import { type Collected, egressEnvironment, type Runtime, runPrepare } from '@floe-rl/sandbox';
import type { HarnessAdapter } from '../../harnesses/harness.ts';
import type { CpuMeter } from '../node/cpu-meter.ts';
import type { StagePools } from '../node/stage-pools.ts';
import { type AgentRun, runAgent } from './agent-stage.ts';
import type { Attempt } from './attempt.ts';
import { classify, type FailedStage, sessionError } from './failure.ts';
import { runFloeAgent } from './floe-agent-stage.ts';
import { leaseLostError, partialResultOf } from './partial-result.ts';
import {
  buildResult,
  buildSession,
  collectArtifacts,
  type Decoder,
  encodeResult,
  evaluate,
  evaluateStep,
  type PostrunInput,
  runHooks,
  type StallGuard,
  undropped,
} from './postrun-stage.ts';
import { type SandboxDeps, SessionSandboxes } from './session-sandboxes.ts';
import { loadSkills } from './skill-folder.ts';
import { withStallWatch } from './stall-watch.ts';

export type RunnerDeps = SandboxDeps & {
  /** Records on disk that the attempt has started. Rejects with `store_unavailable` when the disk refuses the write. */
  readonly recordStart: (lease: Lease) => Promise<void>;
  /** Throws when the attempt has lost its lease. Called before the proxy accepts a model call of the attempt. */
  readonly assertLease: (attempt: Attempt) => void;
  /** Whether a model call of the session waits for a free engine. This wait does not count as a stall. */
  readonly awaitsEngine: (sessionId: string) => boolean;
  /** Maximum time that a stage may make no progress, in seconds, for tasks that set no limit of their own; `null` for no limit. */
  readonly stallSeconds: number | null;
  readonly nodeId: string;
  readonly cpu: Pick<CpuMeter, 'take'>;
  readonly pools: StagePools;
  readonly proxy: ModelProxy;
  readonly harnesses: ReadonlyMap<string, HarnessAdapter>;
  /**
   * Returns the host directory of an installed harness; `null` for a harness that needs no installation. Rejects with `harness_missing`
   * when the harness is not installed.
   */
  readonly harnessInstallDir: (adapter: HarnessAdapter) => Promise<string | null>;
  /** Runs the agents of the harness `floe`. */
  readonly agentHost: Pick<AgentHost, 'run'>;
  readonly builders: BuilderRegistry;
  /** The operator's hooks, in the order in which they run after the evaluation. */
  readonly hooks: readonly PostRunHook[];
  readonly engines: Decoder;
  /** Directories of the host. Every host path in a task must be inside one of them. */
  readonly uploadRoots: readonly string[];
};

/**
 * Runs one attempt through the stages INIT, READY, RUNNING and POSTRUN. Resolves with its result, or with its partial result when it lost
 * its lease after model calls; `null` when there is nothing to deliver. Never rejects. When the promise settles, all commands that the attempt
 * started have ended, and its sandboxes have, too, unless {@link SandboxStops} lets them end later, or they do not end in time.
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
  return attempt.stopReason === 'lease_lost' ? run.partialResult() : result;
}

class SessionRun {
  private readonly attempt: Attempt;
  private readonly deps: RunnerDeps;
  private readonly key = newSessionKey();
  private readonly sandboxes: SessionSandboxes;
  /** Aborted to end the agent when it has used up its model turns or the maximum size of its record. */
  private readonly callsUsedUp = new AbortController();
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
    this.sandboxes = new SessionSandboxes(attempt, deps);
  }

  /** Starts the sandbox. Resolves with false when it could not be started, which ends the attempt as failed. */
  async init(): Promise<boolean> {
    const { attempt, deps } = this;
    return this.runStage('init', async () => {
      this.leaveInit = await deps.pools.enterInit(attempt.signal);
      attempt.enter('INIT');
      // The wait for the start permit comes before the timer, because waiting for capacity does not count against the time budget.
      const permit = await deps.sandboxes.awaitPermit(attempt.spec, attempt.signal);
      await attempt
        .measure('init_ms', () =>
          attempt.timer.run('init', toMs(attempt.lease.task.budgets.init), attempt.signal, (budget) =>
            this.guardStall('init', budget, async (signal) => {
              const { builder, evaluator } = attempt.lease.task;
              deps.builders.check(builder);
              if (evaluator !== null) deps.evaluators.check(evaluator);
              await this.findHarness();
              this.skills = await loadSkills(attempt.lease.task.agent, deps.uploadRoots);
              await deps.recordStart(attempt.lease);
              await this.sandboxes.start(this.installDir, permit, signal);
            }),
          ),
        )
        .finally(permit);
    });
  }

  /**
   * Waits in the READY stage for a RUN worker. The wait does not count against the time budget. Resolves with false when it fails, which
   * ends the attempt as failed.
   */
  async awaitRunSlot(): Promise<boolean> {
    const { attempt, deps } = this;
    attempt.enter('READY');
    return this.runStage('init', () =>
      attempt.measure('ready_ms', async () => {
        this.releaseRun = await deps.pools.enterRun(this.leaveInit, attempt.signal);
      }),
    );
  }

  /** Opens a proxy session and runs the agent in the sandbox. */
  async agent(): Promise<void> {
    const { attempt } = this;
    attempt.enter('RUNNING');
    this.sandboxes.startFresh();
    await this.runStage('agent', () =>
      attempt.measure('running_ms', async (span) => {
        const { steps, instruction, budgets } = attempt.lease.task;
        const session = await this.within(budgets.agent, (signal) => this.openProxySession(span, signal));
        this.session = session;
        // If the session is stopped, its proxy session is closed before the sandbox has ended, so that no engine continues to sample for it.
        const release = onAbort(attempt.signal, () => void session.close().catch(() => undefined));
        try {
          if (steps.length === 0)
            await this.runOnce({ instruction, agent_seconds: budgets.agent, prepare: [] }, session);
          else await this.runSteps(steps, session);
        } finally {
          release();
          await session.close();
        }
      }),
    );
    this.releaseRun?.();
  }

  /** Runs the agent once, after prepare actions. Rejects when floe failed to run it, or when its time is used up. */
  private async runOnce(
    { instruction, agent_seconds, prepare }: Pick<TaskStep, 'instruction' | 'agent_seconds' | 'prepare'>,
    session: ProxySession,
  ): Promise<void> {
    const { attempt, deps } = this;
    const runtime = this.requireRuntime();
    if (prepare.length > 0) {
      await this.within(attempt.lease.task.budgets.init, (signal) =>
        runPrepare(runtime, prepare, { uploadRoots: deps.uploadRoots }, signal).catch(this.blameAgent),
      );
    }
    await this.within(agent_seconds, async (signal) => {
      const run = linkAbort(signal, this.callsUsedUp.signal);
      try {
        const agentRun = this.agentRun(instruction, session);
        if (agentRun.adapter.runsOnNode) {
          const { origin: proxyOrigin } = deps.proxy;
          await runFloeAgent(attempt, runtime, { ...agentRun, proxyOrigin }, deps.agentHost, run.signal);
        } else await runAgent(attempt, runtime, agentRun, run.signal);
      } finally {
        run.release();
      }
    });
  }

  /** Runs a part of the agent stage. `limit` is its time limit in seconds; with `undefined`, only the time limit of the session applies. */
  private within<T>(limit: number | undefined, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { attempt } = this;
    return attempt.timer.run('agent', toMs(limit), attempt.signal, (budget) => this.guardStall('agent', budget, work));
  }

  /** Rethrows the error of a prepare action. The agent of an earlier step can have caused it. */
  private readonly blameAgent = (thrown: unknown): never => {
    const { attempt } = this;
    const error = asFloeError(thrown);
    if (attempt.steps.length > 0 && error.code === 'prepare_failed') {
      attempt.fail({ outcome: 'agent_error', error: sessionError(error, 'agent') });
    }
    throw error;
  };

  /** Runs the agent for each step and evaluates the step, until one of them fails or has a reward below its minimum. */
  private async runSteps(steps: readonly TaskStep[], session: ProxySession): Promise<void> {
    const { attempt, deps } = this;
    const { budgets } = attempt.lease.task;
    for (const step of steps) {
      const own = { ...step, agent_seconds: step.agent_seconds ?? budgets.agent };
      await this.runStage('agent', () => this.runOnce(own, session));
      if (this.isStopped()) return;
      const guarded: StallGuard = (signal, work) => this.guardStall('eval', signal, work);
      const input = { runtime: this.requireRuntime(), evaluators: deps.evaluators, completions: session.completions() };
      const evaluation = await attempt.measure('eval_ms', () => evaluateStep(attempt, step, input, guarded));
      if (evaluation === null) return;
      attempt.steps.push({ name: step.name, evaluation });
      if (attempt.failure !== null || isBelowMinimum(step, evaluation)) return;
    }
  }

  /**
   * Builds the traces of the session, evaluates it, collects its artifacts and encodes its result. Resolves with `null` when the session
   * was cancelled or lost its lease.
   */
  async postrun(): Promise<DeliveredResult | null> {
    const { attempt, deps } = this;
    this.leaveInit();
    this.releaseRun?.();
    if (this.isStopped()) return null;
    attempt.enter('POSTRUN');
    let leave: (() => void) | null = null;
    try {
      leave = await attempt.measure('postrun_queue_ms', () => deps.pools.enterPostrun(attempt.signal));
      return await this.finish();
    } catch (error) {
      if (this.isStopped()) return null;
      attempt.fail(classify(error, 'build'));
      return await buildResult(attempt, this.postrunInput());
    } finally {
      leave?.();
    }
  }

  /** Ends the proxy session and the sandboxes, even if some fail to end, in a limited time: see {@link SessionSandboxes.end}. */
  async tearDown(): Promise<void> {
    this.leaveInit();
    this.releaseRun?.();
    await this.sandboxes.end(Promise.resolve(this.session?.close()));
  }

  /**
   * Returns the partial result of an attempt that lost its lease; `null` when it has no recorded completion. To be called after {@link
   * tearDown}.
   */
  async partialResult(): Promise<DeliveredResult | null> {
    const { attempt, deps } = this;
    const completions = this.session?.completions() ?? [];
    if (completions.length === 0) return null;
    // Every build of a result needs a POSTRUN worker. The wait for a worker uses a new signal, because the signal of the attempt has
    // already aborted.
    const leave = await deps.pools.enterPostrun(new AbortController().signal);
    try {
      return await partialResultOf(attempt, completions, deps, leaseLostError(attempt.lease));
    } finally {
      leave();
    }
  }

  /** Runs `work` with a signal that also aborts when the stage makes no progress for longer than the stall limit. */
  private guardStall<T>(stage: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { attempt, deps } = this;
    const stallSeconds = attempt.lease.task.budgets.stall ?? deps.stallSeconds;
    const options = {
      clock: deps.clock,
      limitMs: stallSeconds === null ? null : stallSeconds * 1000,
      progressCount: () => {
        if (deps.awaitsEngine(attempt.id)) attempt.recordProgress();
        return attempt.progressCount;
      },
      stallError: (idleSeconds: number) => this.stallError(stage, idleSeconds),
    };
    return withStallWatch(options, signal, work);
  }

  /** Returns the error of a stalled stage. When the agent waits for a model call, the engine is the cause, not the agent. */
  private stallError(stage: string, stalled_seconds: number): FloeError {
    const details = { stage, budget: 'stall', stalled_seconds };
    return stage === 'agent' && (this.session?.runningCalls ?? 0) > 0
      ? new FloeError('engine_error', `a model call has shown no sign of life for ${stalled_seconds} s`, details)
      : new FloeError('deadline_exceeded', `${stage} has shown no sign of progress for ${stalled_seconds} s`, details);
  }

  private async finish(): Promise<DeliveredResult | null> {
    const { attempt } = this;
    const input = this.postrunInput();
    return attempt.measure('postrun_ms', async (span) => {
      // The traces are built before the evaluation, because it may give each trace a reward. They are encoded after it, so that they are
      // encoded once.
      const built = await attempt.measure('build_ms', () => buildSession(attempt, input), span);
      if (this.isStopped()) return null;
      const evaluation = await attempt.measure(
        'eval_ms',
        async () => {
          const guarded: StallGuard = (signal, work) => this.guardStall('eval', signal, work);
          const evaluated = await evaluate(attempt, built, input, guarded);
          return this.isStopped() ? undropped(evaluated) : runHooks(attempt, built, evaluated, input, this.deps.hooks);
        },
        span,
      );
      if (this.isStopped()) return null;
      // Artifacts are packed after the evaluation, so that packing a large file tree does not reduce the time for grading.
      this.artifacts = await collectArtifacts(attempt, this.sandboxes.agent);
      if (this.isStopped()) return null;
      attempt.cpuUs += this.deps.cpu.take();
      return attempt.measure(
        'build_ms',
        async () => encodeResult(attempt, built, evaluation, this.postrunInput()),
        span,
      );
    });
  }

  private postrunInput(): PostrunInput {
    const { attempt, deps } = this;
    const strategy = attempt.lease.task.evaluator?.strategy;
    return {
      runtime: this.sandboxes.agent,
      freshRuntime: this.sandboxes.fresh,
      renewFreshRuntime: () => this.sandboxes.renewFresh(),
      evaluator: strategy === undefined ? null : deps.evaluators.get(strategy),
      completions: this.session?.completions() ?? [],
      artifacts: this.artifacts,
      egress: this.sandboxes.egress?.report() ?? null,
      builders: deps.builders,
      engines: deps.engines,
      nodeId: deps.nodeId,
    };
  }

  /** Whether the session was stopped and has no result to deliver. A session that was stopped by a shutdown of the node has a result. */
  private isStopped(): boolean {
    return this.attempt.stopReason === 'cancelled' || this.attempt.stopReason === 'lease_lost';
  }

  /** Runs a stage. Resolves with false when it fails; the error then becomes the failure of the attempt. */
  private async runStage(stage: FailedStage, work: () => Promise<unknown>): Promise<boolean> {
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

  private agentRun(instruction: string, session: ProxySession): AgentRun {
    const { adapter } = this;
    if (adapter === null) throw new FloeError('internal', `session ${this.attempt.id} runs without a harness`);
    return {
      instruction,
      adapter,
      installDir: this.installDir,
      contextWindow: this.deps.proxy.maxModelLen(this.attempt.lease.task.engine.pool),
      skills: this.skills,
      key: this.key,
      session,
      egressEnv: this.sandboxes.egress === null ? {} : egressEnvironment(),
    };
  }

  private requireRuntime(): Runtime {
    const { agent } = this.sandboxes;
    if (agent === null) throw new FloeError('internal', `session ${this.attempt.id} has no runtime`);
    return agent;
  }

  /**
   * Opens the proxy session. Rejects with the reason of `signal`, but with `setup_failed` when a time limit has passed, because the agent has
   * not run. A proxy session that opens after that is closed.
   */
  private async openProxySession(span: Span, signal: AbortSignal): Promise<ProxySession> {
    const opening = this.deps.proxy.open(this.proxySessionSpec(span));
    try {
      return await raceAbort(opening, signal);
    } catch (thrown) {
      opening.then((session) => session.close()).catch(() => undefined);
      const error = asFloeError(thrown);
      if (error.code !== 'deadline_exceeded') throw thrown;
      throw new FloeError(
        'setup_failed',
        `the proxy of the session did not open: ${error.message}`,
        error.details,
        error,
      );
    }
  }

  private proxySessionSpec(span: Span): ProxySessionSpec {
    const { attempt, deps } = this;
    const { lease } = attempt;
    const { agent } = lease.task;
    return {
      sessionId: lease.session_id,
      attempt: lease.attempt,
      sampleIndex: lease.sample_index,
      key: this.key,
      // An agent on the node reaches the proxy by its TCP listener, and its sandbox does not reach it at all.
      socketPath:
        this.requireRuntime().isolation === 'none' || this.adapter?.runsOnNode === true
          ? null
          : this.sandboxes.proxySocketPath,
      modelName: agent.model_name,
      modelAliases: agent.model_aliases,
      callRules: callRulesOf(agent),
      maxTurns: agent.max_turns ?? null,
      onTurnLimit: () => {
        const message = `the agent has used the ${agent.max_turns} model turns of agent.max_turns`;
        this.callsUsedUp.abort(new FloeError('turn_limit', message, { turns: agent.max_turns }));
      },
      maxRecordedBytes: agent.max_recorded_mb * MIB,
      onRecordLimit: () => {
        const message = `the agent's model calls have used up the ${agent.max_recorded_mb} MiB of agent.max_recorded_mb`;
        const details = { max_recorded_mb: agent.max_recorded_mb, turns: this.session?.turns ?? null };
        this.callsUsedUp.abort(new FloeError('record_limit', message, details));
      },
      sampling: lease.task.sampling,
      engine: lease.task.engine,
      onProgress: (turns, sampledTokens, reply) => {
        attempt.cpuUs += deps.cpu.take();
        attempt.recordCalls(turns, sampledTokens, reply);
      },
      onActivity: attempt.recordProgress,
      span,
      admit: () => deps.assertLease(attempt),
    };
  }
}

/** Converts seconds to milliseconds; `null` when `value` is undefined. */
function toMs(value: number | undefined): number | null {
  return value === undefined ? null : value * 1000;
}
