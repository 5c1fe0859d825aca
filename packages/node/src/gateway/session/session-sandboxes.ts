import type { ModelProxy } from '@floe-rl/capture';
import { asFloeError, type Clock, FloeError, type HostPatterns } from '@floe-rl/core';
import { evalRuntimeSpec } from '@floe-rl/core/protocol';
import type { Lease } from '@floe-rl/core/schema';
import { type EvaluatorRegistry, usesFreshRuntime } from '@floe-rl/evaluators';
import type { Logger } from '@floe-rl/observe';
import type { Runtime, StartRequest } from '@floe-rl/sandbox';
import { openSessionEgress, type SessionEgress } from '../egress/session-egress.ts';
import type { Attempt } from './attempt.ts';
import type { FreshRuntime } from './postrun-stage.ts';
import type { PrewarmedRuntimes, WarmSandbox } from './prewarmed-runtimes.ts';
import type { ProxySockets } from './proxy-sockets.ts';
import type { ReusableRuntime, SandboxPlace } from './reusable-runtime.ts';
import type { ReusedRuntimes } from './reused-runtimes.ts';
import type { Sandboxes, StartPermit } from './sandbox.ts';
import { endInTime, type SandboxStops } from './sandbox-stops.ts';

export type SandboxDeps = {
  readonly sandboxes: Sandboxes;
  /** Sandboxes that were started in advance. */
  readonly prewarmed: PrewarmedRuntimes;
  /** Ends sandboxes after their sessions, without the sessions waiting for it. */
  readonly stops: SandboxStops;
  /** Sandboxes that several sessions use. */
  readonly reused: ReusedRuntimes;
  readonly clock: Clock;
  readonly log: Logger;
  readonly proxy: Pick<ModelProxy, 'origin'>;
  readonly evaluators: EvaluatorRegistry;
  readonly sockets: ProxySockets;
  /** Hosts that the operator lets sandboxes reach; `null` for all hosts of the Internet. */
  readonly egressHosts: HostPatterns | null;
};

/** Returns the names of the sandboxes that an attempt has started or is starting. */
export function sandboxNames({ lease, freshRuntimeCount }: Attempt): string[] {
  return [
    agentSandbox(lease),
    ...Array.from({ length: freshRuntimeCount }, (_, index) => evalSandbox(lease, index + 1)),
  ];
}

function agentSandbox({ session_id, attempt }: Lease): string {
  return `${session_id}-${attempt}-agent`;
}

/** Returns the name of the fresh runtime with this number, which starts at 1. */
function evalSandbox({ session_id, attempt }: Lease, number: number): string {
  return `${session_id}-${attempt}-eval${number === 1 ? '' : number}`;
}

/**
 * The sandboxes of one attempt, with the directories of their sockets and the egress proxy. The agent's sandbox may be new, started in
 * advance, or used by several sessions. The evaluator may have a fresh sandbox.
 */
export class SessionSandboxes {
  private readonly attempt: Attempt;
  private readonly deps: SandboxDeps;
  /** Paths of the sockets of the session's proxy and of the egress proxy, which exists only for some networks. */
  private place: SandboxPlace;
  private installDir: string | null = null;
  /** The sandbox of the agent, when other sessions use it too. */
  private reusable: ReusableRuntime | null = null;
  /** The sandbox of the agent, when it was started in advance. */
  private warm: WarmSandbox | null = null;
  private agentRuntime: Runtime | null = null;
  private freshRuntime: FreshRuntime | null = null;
  private sessionEgress: SessionEgress | null = null;
  /** Aborted when the session ends, to stop the start of the fresh sandbox. */
  private readonly ended = new AbortController();

  constructor(attempt: Attempt, deps: SandboxDeps) {
    this.attempt = attempt;
    this.deps = deps;
    const name = `${attempt.id.slice(-12)}-${attempt.lease.attempt}`;
    this.place = { socketPath: deps.sockets.pathOf(name), egressPath: deps.sockets.pathOf(`${name}-e`) };
  }

  /** The sandbox of the agent; `null` before {@link start} has resolved. */
  get agent(): Runtime | null {
    return this.agentRuntime;
  }

  /** The sandbox in which the evaluator runs, when {@link startFresh} has started one. */
  get fresh(): FreshRuntime | null {
    return this.freshRuntime;
  }

  /** The egress proxy of both sandboxes; `null` for networks without one. */
  get egress(): SessionEgress | null {
    return this.sessionEgress;
  }

  /** Path of the socket for the session's proxy in the agent's sandbox. To be read when {@link start} has resolved. */
  get proxySocketPath(): string {
    return this.place.socketPath;
  }

  /**
   * Starts or chooses the sandbox of the agent. `installDir` is the directory of the harness; `null` without one. Gives `permit` back.
   * Rejects like {@link Sandboxes.start}, or with the reason of `signal`.
   */
  async start(installDir: string | null, permit: StartPermit, signal: AbortSignal): Promise<void> {
    this.installDir = installDir;
    await this.findPlace(permit, signal);
    this.sessionEgress = await this.openEgress();
    this.agentRuntime = await this.startAgentRuntime(permit, signal);
  }

  /** Starts the second sandbox, for the evaluator, while the agent runs, so that grading does not wait for it; nothing for a task without one. */
  startFresh(): void {
    const { evaluator } = this.attempt.lease.task;
    if (evaluator === null || !usesFreshRuntime(evaluator, this.deps.evaluators.get(evaluator.strategy))) return;
    this.freshRuntime = this.newFreshRuntime();
  }

  /** Stops the second sandbox, so that two of them never take memory at the same time, and starts another one in its place. */
  async renewFresh(): Promise<Runtime> {
    await (await this.fresh?.ready)?.stop();
    this.freshRuntime = this.newFreshRuntime();
    return this.freshRuntime.ready;
  }

  /**
   * Ends the sandboxes and the egress proxy concurrently, even if some fail to end. `proxyClosed` settles when the session's proxy is closed.
   * Resolves after a limited time ({@link endInTime}), and before the sandboxes have ended where {@link SandboxStops} allows it.
   */
  async end(proxyClosed: Promise<unknown>): Promise<void> {
    const { attempt, deps } = this;
    this.ended.abort(new FloeError('cancelled', `session ${attempt.id} has ended`));
    const fresh = this.fresh?.ready.then(
      (runtime) => runtime.stop(),
      () => undefined,
    );
    const removed = proxyClosed.finally(() => this.removeDirectory(this.place.socketPath));
    const egressEnded = this.egress?.close().finally(() => this.removeDirectory(this.place.egressPath));
    const closed = Promise.allSettled([removed, egressEnded]);
    const all = Promise.allSettled([removed, this.agent?.stop(), fresh, egressEnded]).then((ended) => {
      if (this.reusable !== null) deps.reused.giveBack(this.reusable);
      if (this.warm !== null) deps.prewarmed.release(this.warm);
      for (const end of ended) {
        if (end.status === 'fulfilled') continue;
        deps.log.error(
          { ...attempt.names, error: asFloeError(end.reason).message },
          'a part of the session failed to end cleanly',
        );
      }
    });
    const late = 'the sandbox has not ended in time; the session ends without waiting for it';
    const ended = endInTime(deps.clock, all, () => deps.log.error({ ...attempt.names }, late));
    // A session that was stopped can be leased again at once, with the same names of sandboxes.
    if (attempt.stopReason !== null) return ended;
    await Promise.race([closed, ended]);
    const specs = [attempt.spec, ...(this.fresh === null ? [] : [evalRuntimeSpec(attempt.spec)])];
    const memoryMb = specs.reduce((sum, { memory_mb, storage_mb }) => sum + memory_mb + storage_mb, 0);
    await deps.stops.await({ names: sandboxNames(attempt), memoryMb, ended });
  }

  private async removeDirectory(socketPath: string): Promise<void> {
    // The directories of a sandbox that another session used, or that was started in advance, are removed with the sandbox.
    if (this.reusable === null && this.warm === null) await this.deps.sockets.removeDirectory(socketPath);
  }

  /** Chooses a sandbox that other sessions have used, when the task allows that, or creates the directory of the session's socket. */
  private async findPlace(permit: StartPermit, signal: AbortSignal): Promise<void> {
    const { deps } = this;
    const request = await deps.sandboxes.reuseRequest(this.startRequest('agent'));
    if (request === null) {
      this.warm = await deps.prewarmed.take(this.startRequest('agent'), signal);
      if (this.warm === null) await deps.sockets.createDirectory(this.place.socketPath);
      else this.place = this.warm.place;
      return;
    }
    this.reusable = await deps.reused.take(request, permit, signal);
    this.place = this.reusable.place;
  }

  private async openEgress(): Promise<SessionEgress | null> {
    const { attempt, deps } = this;
    const { network } = attempt.spec;
    if (network !== 'proxy' && network !== 'allowlist') return null;
    await deps.sockets.createDirectory(this.place.egressPath);
    const { log } = deps;
    return openSessionEgress(attempt.spec, deps.egressHosts, {
      socketPath: this.place.egressPath,
      log,
      names: attempt.names,
    });
  }

  private async startAgentRuntime(permit: StartPermit, signal: AbortSignal): Promise<Runtime> {
    const { attempt, deps, reusable, warm } = this;
    const request = this.startRequest('agent');
    const start = (own: Partial<StartRequest>): Promise<Runtime> =>
      deps.sandboxes.start({ ...request, ...own }, attempt.spec.prepare, permit, signal);
    if (reusable === null) {
      warm?.give(request);
      const { prepare } = attempt.spec;
      const runtime = await (warm === null ? start({}) : deps.sandboxes.prepare(warm.runtime, prepare, signal));
      deps.prewarmed.replenish(request);
      return runtime;
    }
    const runtime = await reusable.open(start, request, signal);
    deps.reused.recordUse(reusable);
    attempt.runtime = { reused: reusable.uses > 1, uses: reusable.uses };
    return runtime;
  }

  /** If the start fails, the promise `ready` rejects. */
  private newFreshRuntime(): FreshRuntime {
    const { attempt, deps } = this;
    attempt.freshRuntimeCount += 1;
    const request = this.startRequest('eval');
    const prepare = attempt.spec.eval_prepare ?? attempt.spec.prepare;
    const signal = AbortSignal.any([attempt.signal, this.ended.signal]);
    const permit = deps.sandboxes.awaitPermit(request.spec, signal);
    const ready = permit.then((granted) => deps.sandboxes.start(request, prepare, granted, signal));
    ready.catch(() => undefined);
    const permitted = permit.then(
      () => undefined,
      () => undefined,
    );
    return { permitted, ready };
  }

  private startRequest(purpose: 'agent' | 'eval'): StartRequest {
    const { attempt, deps } = this;
    const forAgent = purpose === 'agent';
    return {
      name: forAgent ? agentSandbox(attempt.lease) : evalSandbox(attempt.lease, attempt.freshRuntimeCount),
      spec: forAgent ? attempt.spec : evalRuntimeSpec(attempt.spec),
      proxy: forAgent ? { socketPath: this.place.socketPath, tcpOrigin: deps.proxy.origin } : null,
      egressSocket: this.egress?.socketPath ?? null,
      // The harness is mounted at its path on the host, because the keys of Node's compile cache contain the path.
      readOnlyMounts:
        forAgent && this.installDir !== null ? [{ hostPath: this.installDir, sandboxPath: this.installDir }] : [],
      onActivity: attempt.recordProgress,
    };
  }
}
