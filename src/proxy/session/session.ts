import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import { newId } from '../../core/ids.ts';
import { NO_SPAN, type Span } from '../../core/tracing.ts';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { CallContext, ReplyListener } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type { ChatMessage, Sampling } from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { BodyBudget } from '../http/body.ts';
import { SessionConnections } from '../http/session-connections.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { type PendingCall, PromptBuilder, verifiedPrompt } from '../prompt/prompt-builder.ts';
import type { SuffixRenderer } from '../prompt/suffix-renderer.ts';
import { AbandonedReplies } from './abandoned-replies.ts';
import { Call, type CallObserver, type CallParts, type StreamedReply } from './call.ts';
import { completionOf } from './completion-record.ts';
import { type AttemptSpec, effectiveSampling, engineRequest } from './engine-request.ts';
import { withPreviousResponse } from './previous-response.ts';
import { refuseCostlySampling, refuseModel } from './request-limits.ts';
import { RequestMemory } from './request-memory.ts';
import { TurnLimit } from './turn-limit.ts';

/**
 * Maximum number of model calls of one session that may run concurrently. Harnesses run a handful of sub-agents; a loop in the sandbox
 * could open thousands.
 */
const MAX_RUNNING_CALLS = 64;

export type ProxySessionSpec = AttemptSpec & {
  /** The session key, which opens the proxy for this attempt only. A key is never reused. */
  readonly key: string;
  /** Path of a Unix socket for this session alone; `null` when the session is reached over the TCP listener only. */
  readonly socketPath: string | null;
  /** The name by which the harness knows the model, as the model list shows it. */
  readonly modelName: string;
  /** Other model names that requests may use; `*` allows any name. Default: none. */
  readonly modelAliases?: readonly string[];
  /** Maximum number of turns that the session may have, as {@link TurnLimit} counts them; `null` or absent for no limit. */
  readonly maxTurns?: number | null;
  /** Called once, when a request beyond {@link maxTurns} is refused. Must not throw. */
  readonly onTurnLimit?: () => void;
  /** Called after every recorded completion. Must not throw. */
  readonly onProgress?: (completionCount: number, sampledTokens: number) => void;
  /** Called when a model call begins or ends, and while it streams. Must not throw. */
  readonly onActivity?: () => void;
  /** Parent of the tracing spans of the session's model calls. Default: no parent. */
  readonly span?: Span;
  /** Called before each model call. It refuses the call by throwing. */
  readonly admit?: () => void;
};

export type SessionDeps = {
  readonly clock: Clock;
  readonly engines: EnginePools;
  readonly journal: CompletionJournal;
  readonly suffixes: SuffixRenderer;
  readonly abandonGraceMs: number;
  readonly observer?: CallObserver | undefined;
  /**
   * Called when {@link ProxySession.close} begins. Must not throw; the same holds for `onClosed`, which is called when it has finished.
   */
  readonly onClosing?: () => void;
  readonly onClosed?: () => void;
};

/** One attempt as the proxy serves it: its running calls and its recorded completions. */
export class ProxySession {
  readonly spec: ProxySessionSpec;
  readonly connections: SessionConnections;
  readonly bodyBudget = new BodyBudget();
  /** The number of requests of any kind that were sent with the session's key. */
  requests = 0;
  sampledTokens = 0;
  /** Why the last model call failed; `null` when it succeeded. */
  lastError: FloeError | null = null;
  private readonly deps: SessionDeps;
  private readonly recorded: Completion[] = [];
  private readonly byId = new Map<string, Completion>();
  /** The latest call with each request digest; see {@link requestDigest}. */
  private readonly byDigest = new Map<string, Call>();
  private readonly running = new Set<Call>();
  private readonly abandoned = new AbandonedReplies();
  private readonly memory = new RequestMemory();
  private readonly prompts: PromptBuilder;
  private readonly turnLimit: TurnLimit;
  private runningCounts = 0;
  private nextIndex = 0;
  private closedBy: FloeError | null = null;
  private closing: Promise<void> | null = null;

  constructor(spec: ProxySessionSpec, deps: SessionDeps) {
    this.spec = spec;
    this.deps = deps;
    const { engines, suffixes, clock } = deps;
    this.connections = new SessionConnections(spec.socketPath, clock);
    this.prompts = new PromptBuilder(spec.engine, engines, suffixes, (id) => this.byId.get(id) ?? null);
    this.turnLimit = new TurnLimit(spec.maxTurns ?? null, () => spec.onTurnLimit?.());
  }

  get sessionId(): string {
    return this.spec.sessionId;
  }

  get attempt(): number {
    return this.spec.attempt;
  }

  /** The number of recorded completions, of every call kind. */
  get completionCount(): number {
    return this.recorded.length;
  }

  /** The number of turns so far, as {@link TurnLimit} counts them. */
  get turns(): number {
    return this.turnLimit.turns;
  }

  /** The number of model calls that have begun and not ended. */
  get runningCalls(): number {
    return this.running.size;
  }

  /** Returns the recorded completions, ordered by the arrival of their requests. */
  completions(): readonly Completion[] {
    return [...this.recorded].sort((a, b) => a.index - b.index);
  }

  /**
   * Returns the completion with this id whose reply may have been sent to a client; `null` when there is none or the engine aborted the
   * reply.
   */
  sentReply(completionId: string): Completion | null {
    const completion = this.byId.get(completionId);
    return completion === undefined || completion.finishReason === 'abort' ? null : completion;
  }

  /**
   * Returns the call that a repeated request joins: one that is still running, or one whose reply no client has received. `null` when the
   * request is new, or repeats one whose reply was delivered and therefore requests another sample.
   */
  findRepeated(digest: string): Call | null {
    const call = this.byDigest.get(digest);
    if (call === undefined || (!call.running && call.delivered)) return null;
    return call;
  }

  /**
   * Starts a model call. Throws `session_closed`, `overloaded`, `not_found` for a model that the session does not serve, `turn_limit`, or
   * `schema_violation` when the request refers to an unknown previous response or has costly sampling parameters.
   */
  begin(digest: string, dialect: Dialect, received: CanonicalRequest): Call {
    this.refuseWhenClosed();
    this.refuseModel(received.model);
    refuseCostlySampling(received);
    this.turnLimit.refuse(received.callKind);
    if (this.running.size >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} model calls running`);
    }
    const { clock, abandonGraceMs } = this.deps;
    const request = withPreviousResponse(received, (id) => this.sentReply(id));
    const index = this.nextIndex++;
    const recorded = this.requestOf(request, effectiveSampling(this.spec, request, index));
    const parts: CallParts = {
      completionId: newId('cpl', clock),
      index,
      arrivedMs: clock.monotonicMs(),
      timestampMs: clock.nowMs(),
      dialect,
      // The call keeps the message objects that consecutive turns share, and not the copies in this request.
      request: withoutClaims({ ...request, messages: recorded.messages, tools: recorded.tools }),
    };
    const pending = this.locate(request, recorded);
    const earlier = this.byDigest.get(digest)?.completion;
    if (earlier) this.abandoned.addRepeated(earlier);
    this.abandoned.checkRequest(recorded.messages, this.recorded);
    for (const used of this.prompts.markUsed(pending)) this.abandoned.markUsed(used);
    const span = this.spanOf(parts);
    const call = new Call(parts, clock, abandonGraceMs, (signal, reply) =>
      this.run(parts, pending, span, signal, reply),
    );
    this.track(digest, call, span);
    return call;
  }

  async countTokens(received: CanonicalRequest, signal: AbortSignal): Promise<number> {
    this.refuseWhenClosed();
    // A request to count tokens need not name a model.
    if (received.model !== '') this.refuseModel(received.model);
    if (this.runningCounts >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} prompts being counted`);
    }
    const id = newId('cnt', this.deps.clock);
    const request = withPreviousResponse(received, (completionId) => this.sentReply(completionId));
    const recorded = this.requestOf(request, effectiveSampling(this.spec, request, this.nextIndex));
    const pending = this.locate(request, recorded);
    this.runningCounts++;
    try {
      const length = await this.prompts.count(this.namesOf(id), pending, signal);
      if (length !== null) return length;
      const texts = this.prompts.textsOf(pending);
      return await this.deps.engines.countTokens(engineRequest(id, this.spec, request, recorded, texts, null), signal);
    } finally {
      this.runningCounts--;
    }
  }

  /** Throws `not_found` for a model that the session does not serve. */
  refuseModel(model: string): void {
    refuseModel(model, this.spec.modelName, this.spec.modelAliases ?? []);
  }

  /**
   * Sets {@link lastError}. It stays unchanged when a client disconnected or called after the end of the session, because these are not
   * failures.
   */
  setFailed(error: FloeError): void {
    if (error.code !== 'cancelled' && error.code !== 'session_closed') this.lastError = error;
  }

  refuseWhenClosed(): void {
    if (this.closedBy !== null) throw this.closedBy;
    this.spec.admit?.();
  }

  /**
   * Ends the session: later requests are answered 410, and engine calls are aborted. Resolves when all sampled tokens are recorded. May be
   * called more than once.
   */
  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  private async end(): Promise<void> {
    this.deps.onClosing?.();
    this.closedBy = new FloeError('session_closed', 'the session of this key has ended');
    const calls = [...this.running];
    for (const call of calls) call.abort(this.closedBy);
    await Promise.allSettled(calls.map((call) => call.outcome));
    await this.connections.close();
    this.deps.onClosed?.();
  }

  private track(digest: string, call: Call, span: Span): void {
    const { callKind } = call.parts.request;
    const { reply } = call;
    this.byDigest.set(digest, call);
    this.running.add(call);
    this.turnLimit.callStarted(callKind);
    this.spec.onActivity?.();
    const onEnded = (isAnswered: boolean): void => {
      this.running.delete(call);
      this.spec.onActivity?.();
      this.turnLimit.callEnded(callKind, isAnswered);
    };
    call.outcome.then(
      (completion) => {
        this.lastError = null;
        this.report(call.parts, completion, null, span);
        onEnded(true);
      },
      (error: unknown) => {
        const failure = asFloeError(error);
        this.setFailed(failure);
        this.report(call.parts, null, failure, span);
        // A call whose client disconnected counts as answered when a part of the reply was streamed, because that part may be all that the
        // client needed.
        onEnded(failure.code === 'cancelled' && reply?.message != null);
        if (this.byDigest.get(digest) === call) this.byDigest.delete(digest);
      },
    );
  }

  /** Reports to the observer how a call ended, and ends the call's span. */
  private report(parts: CallParts, completion: Completion | null, error: FloeError | null, span: Span): void {
    const failedEngine = error?.details.engine_id;
    const engineId = completion?.engineId ?? (typeof failedEngine === 'string' ? failedEngine : null);
    this.deps.observer?.({
      dialect: parts.dialect.name,
      engineId,
      code: error?.code ?? 'ok',
      totalMs: this.deps.clock.monotonicMs() - parts.arrivedMs,
      engineMs: completion?.engineMs ?? null,
    });
    if (completion !== null) {
      span.set({
        finish_reason: completion.finishReason,
        prompt_tokens: completion.promptIds.length,
        sampled_tokens: completion.responseIds.length,
        policy_version: completion.versionSpans.at(-1)?.version ?? null,
      });
    }
    span.set({ engine: engineId });
    span.end(error?.message);
  }

  private spanOf({ completionId, dialect, request }: CallParts): Span {
    const { sessionId, attempt, engine, span = NO_SPAN } = this.spec;
    const call = { completion_id: completionId, dialect: dialect.name, call_kind: request.callKind, pool: engine.pool };
    return span.child('model_call', { session_id: sessionId, attempt, ...call }, 'client');
  }

  /** Runs a model call: builds the prompt, lets an engine sample the reply, and records the completion. */
  private async run(
    parts: CallParts,
    pending: PendingCall,
    { traceparent }: Span,
    signal: AbortSignal,
    partial: StreamedReply | null,
  ): Promise<Completion> {
    const { completionId } = parts;
    const { request: recorded, thread } = pending;
    const input = await this.prompts.build({ ...this.namesOf(completionId), traceparent }, pending, signal);
    const prompt = input.built?.prompt ?? null;
    const request = engineRequest(completionId, this.spec, parts.request, recorded, input.texts, prompt);
    const pooled = await this.deps.engines.generate(
      { ...request, traceparent, listener: this.listenerOf(partial) },
      signal,
    );
    const { reply, engineId } = pooled;
    const promptIds =
      prompt === null ? this.memory.prompt(thread, reply.promptIds) : verifiedPrompt(prompt, reply, engineId);
    const totalMs = this.deps.clock.monotonicMs() - parts.arrivedMs;
    const capture = this.prompts.captureOf(input, reply);
    const completion = completionOf(this.spec, parts, recorded, pooled, capture, promptIds, totalMs);
    await this.deps.journal.append(completion, this.recorded);
    this.recorded.push(completion);
    this.byId.set(completionId, completion);
    this.prompts.add(completion, pending, input);
    this.sampledTokens += completion.responseIds.length;
    this.spec.onProgress?.(this.completionCount, this.sampledTokens);
    if (completion.finishReason === 'abort') {
      throw new FloeError('engine_error', `engine ${engineId} broke off the reply`, { engine_id: engineId });
    }
    return completion;
  }

  private listenerOf(reply: StreamedReply | null): ReplyListener | undefined {
    const { onActivity } = this.spec;
    if (reply === null || onActivity === undefined) return reply ?? undefined;
    return {
      started: (promptTokens) => {
        onActivity();
        reply.started(promptTokens);
      },
      delta: (delta) => {
        onActivity();
        reply.delta(delta);
      },
    };
  }

  private locate(request: CanonicalRequest, recorded: CompletionRequest): PendingCall {
    const { messages, claimedCompletions, thread } = request;
    return this.prompts.locate(thread, recorded, (index) => claimedCompletions?.get(messages[index] as ChatMessage));
  }

  private namesOf(completionId: string): CallContext {
    return { completionId, sessionId: this.spec.sessionId, pool: this.spec.engine.pool };
  }

  private requestOf(request: CanonicalRequest, sampling: Sampling): CompletionRequest {
    return {
      ...this.memory.request(request.thread, request.messages, request.tools),
      samplingAsked: request.samplingAsked,
      sampling,
      adjusted: request.adjusted,
    };
  }
}

/**
 * Returns the request without `claimedCompletions`, whose keys are message objects of this request. The recorded request may contain equal
 * objects of an earlier request instead.
 */
function withoutClaims(request: CanonicalRequest): CanonicalRequest {
  const { claimedCompletions: _, ...rest } = request;
  return rest;
}
