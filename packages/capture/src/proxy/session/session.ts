import { type Clock, FloeError } from '@floe-rl/core';
import { MAIN_THREAD } from '../../dialects/call-kinds/prompt-view.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type { Completion } from '../../tokens/completion.ts';
import { BodyBudget } from '../http/body.ts';
import { SessionConnections } from '../http/session-connections.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import type { SuffixRenderer } from '../prompt/suffix-renderer.ts';
import { Admission } from './admission.ts';
import { CallFailures } from './call-failures.ts';
import type { CallObserver } from './call-report.ts';
import { isAuxiliary } from './completion-record.ts';
import { Generation } from './generation.ts';
import { SessionRecord } from './record.ts';
import { RequestMemory } from './request-memory.ts';
import type { ProxySessionSpec } from './session-spec.ts';

export type SessionDeps = {
  readonly clock: Clock;
  readonly engines: EnginePools;
  readonly journal: CompletionJournal;
  readonly suffixes: SuffixRenderer;
  readonly abandonGraceMs: number;
  readonly observer?: CallObserver | undefined;
  /** Called when {@link ProxySession.close} begins. Must not throw. */
  readonly onClosing?: () => void;
  /** Called when {@link ProxySession.close} has finished. Must not throw. */
  readonly onClosed?: () => void;
};

/**
 * The proxy's state of one attempt of a session, from its opening to its end. Its model calls pass through its three parts: {@link
 * admission}, generation and {@link record}.
 */
export class ProxySession {
  readonly spec: ProxySessionSpec;
  readonly connections: SessionConnections;
  readonly bodyBudget = new BodyBudget();
  readonly admission: Admission;
  readonly record: SessionRecord;
  /** The number of requests of any kind that were sent with the session's key. */
  requests = 0;
  /** How the last model calls and refused requests of the session ended. */
  readonly failures = new CallFailures();
  private readonly deps: SessionDeps;
  private closing: Promise<void> | null = null;

  constructor(spec: ProxySessionSpec, deps: SessionDeps) {
    this.spec = spec;
    this.deps = deps;
    const { clock, engines, suffixes, journal, abandonGraceMs, observer } = deps;
    const { failures } = this;
    const memory = new RequestMemory();
    const record = new SessionRecord(spec, journal, clock);
    const generation = new Generation(spec, { engines, suffixes, record, memory, failures });
    this.connections = new SessionConnections(spec.socketPath, clock);
    this.record = record;
    this.admission = new Admission(spec, { clock, abandonGraceMs, observer, generation, record, memory, failures });
  }

  get sessionId(): string {
    return this.spec.sessionId;
  }

  get attempt(): number {
    return this.spec.attempt;
  }

  /** The number of recorded completions, summed over all call kinds. */
  get completionCount(): number {
    return this.record.completions.length;
  }

  get sampledTokens(): number {
    return this.record.sampledTokens;
  }

  /** The number of turns of the main agent so far, as `TurnLimit` counts them. */
  get turns(): number {
    return this.admission.turns;
  }

  /** The number of model calls that have begun and not ended. */
  get runningCalls(): number {
    return this.admission.runningCalls.size;
  }

  /** Returns the recorded completions, ordered by the arrival of their requests. */
  completions(): readonly Completion[] {
    return [...this.record.completions].sort((a, b) => a.index - b.index);
  }

  /**
   * Returns an engine's error from a failed model call that is still being retried; `null` when there is no such call. Auxiliary calls are
   * ignored. With `scope` `main`, calls of sub-agents are ignored too.
   */
  pendingFailure(scope: 'main' | 'agents'): FloeError | null {
    for (const { parts } of this.admission.runningCalls) {
      const { thread, callKind } = parts.request;
      if (isAuxiliary(callKind) || (scope === 'main' && thread !== MAIN_THREAD)) continue;
      const failure = this.deps.engines.failureOf(parts.completionId);
      if (failure !== null) return failure;
    }
    return null;
  }

  /**
   * Ends the session: later requests are answered with HTTP 410, and running engine calls are aborted. Resolves when all sampled tokens are
   * recorded. May be called more than once.
   */
  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  private async end(): Promise<void> {
    this.deps.onClosing?.();
    await this.admission.close(new FloeError('session_closed', 'the session of this key has ended'));
    await this.connections.close();
    this.deps.onClosed?.();
  }
}
