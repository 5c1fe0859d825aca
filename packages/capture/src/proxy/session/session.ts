import {
  asFloeError,
  type Clock,
  FloeError,
  newId,
  onAbort,
  type Span,
  wellFormed,
  wellFormedCalls,
} from '@floe-rl/core';
import type { AssistantMessage, CallRules, ChatMessage, Sampling } from '@floe-rl/core/schema';
import { resendsUnusedReplies } from '../../dialects/call-kinds/label.ts';
import { MAIN_THREAD } from '../../dialects/call-kinds/prompt-view.ts';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { ReplyListener } from '../../engines/engine.ts';
import type { EnginePools, PooledReply } from '../../engines/pool/engine-pools.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { NO_IMAGES } from '../../tokens/images.ts';
import { BodyBudget } from '../http/body.ts';
import { SessionConnections } from '../http/session-connections.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { type PendingCall, PromptBuilder, verifiedPrompt } from '../prompt/prompt-builder.ts';
import type { SuffixRenderer } from '../prompt/suffix-renderer.ts';
import { AbandonedReplies } from './abandoned-replies.ts';
import { Call, type CallObserver, type CallParts, type StreamedReply, withoutClaims } from './call.ts';
import { CallFailures } from './call-failures.ts';
import { reportEnd, spanOf } from './call-report.ts';
import { completionOf, isAuxiliary } from './completion-record.ts';
import { type AttemptSpec, effectiveSampling, engineRequest, recordedRequest } from './engine-request.ts';
import { withPreviousResponse } from './previous-response.ts';
import { RecordLimit } from './record-limit.ts';
import { RepeatedRequests, type RequestIdentity } from './repeated-requests.ts';
import { refuseCostlySampling, refuseModel } from './request-limits.ts';
import { RequestMemory } from './request-memory.ts';
import { type HeldImages, SessionImages } from './session-images.ts';
import { ThreadPools } from './thread-pools.ts';
import { TurnLimit } from './turn-limit.ts';

/**
 * Maximum number of model calls of one session that may run concurrently. Harnesses run a handful of sub-agents, but a program in the
 * sandbox could start thousands of calls in a loop.
 */
const MAX_RUNNING_CALLS = 64;

export type ProxySessionSpec = AttemptSpec & {
  /** The session key, which authorizes the requests of this attempt only. A key is never reused. */
  readonly key: string;
  /** Path of a Unix socket for this session alone; `null` when the session is reached over the TCP listener only. */
  readonly socketPath: string | null;
  /** The name by which the harness knows the model, as the model list shows it. */
  readonly modelName: string;
  /** Other model names that requests may use; `*` allows any name. Default: none. */
  readonly modelAliases?: readonly string[];
  /** Harness whose rules label the model calls of the session. Default: none, so that every call is the main agent's work. */
  readonly callRules?: CallRules | null;
  /** Maximum number of turns that the session may have, as {@link TurnLimit} counts them; `null` or absent for no limit. */
  readonly maxTurns?: number | null;
  /** Called once, when a request is refused because of {@link maxTurns}. Must not throw. */
  readonly onTurnLimit?: () => void;
  /** Maximum size of the record of the session's calls in bytes, as {@link RecordLimit} counts them. Default: no limit. */
  readonly maxRecordedBytes?: number;
  /** Called once, when a request is refused because of {@link maxRecordedBytes}. Must not throw. */
  readonly onRecordLimit?: () => void;
  /** Called after every recorded completion, with the totals of the session so far and the newest reply. Must not throw. */
  readonly onProgress?: (completionCount: number, sampledTokens: number, reply: AssistantMessage) => void;
  /** Called when a model call begins or ends, and for every streamed delta. Must not throw. */
  readonly onActivity?: () => void;
  /** Parent of the tracing spans of the session's model calls. Default: no parent. */
  readonly span?: Span;
  /** Called before each model call and each token count. It refuses the request by throwing an error. */
  readonly admit?: () => void;
};

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

/** A model call that has begun, with the recorded turn that it continues and the images of its request. */
type StartedCall = {
  readonly parts: CallParts;
  readonly pool: string;
  readonly pending: PendingCall;
  readonly images: HeldImages;
  /** Releases what was reserved for the request. It is called once, when the call has ended. */
  readonly release: () => void;
  readonly span: Span;
};

/** The proxy's state of one attempt of a session: its running calls and its recorded completions. */
export class ProxySession {
  readonly spec: ProxySessionSpec;
  readonly connections: SessionConnections;
  readonly bodyBudget = new BodyBudget();
  /** The number of requests of any kind that were sent with the session's key. */
  requests = 0;
  sampledTokens = 0;
  /** How the last model calls and refused requests of the session ended. */
  readonly failures = new CallFailures();
  private readonly deps: SessionDeps;
  private readonly recorded: Completion[] = [];
  private readonly byId = new Map<string, Completion>();
  private readonly running = new Set<Call>();
  private readonly repeated: RepeatedRequests;
  private readonly abandoned = new AbandonedReplies();
  private readonly memory = new RequestMemory();
  private readonly images = new SessionImages();
  private readonly recordLimit: RecordLimit;
  private readonly prompts: PromptBuilder;
  private readonly turnLimit: TurnLimit;
  private readonly pools: ThreadPools;
  private runningCounts = 0;
  private nextIndex = 0;
  private closedBy: FloeError | null = null;
  private closing: Promise<void> | null = null;

  constructor(spec: ProxySessionSpec, deps: SessionDeps) {
    this.spec = spec;
    this.deps = deps;
    const { engines, suffixes, clock } = deps;
    this.connections = new SessionConnections(spec.socketPath, clock);
    this.pools = new ThreadPools(spec.engine);
    this.prompts = new PromptBuilder(spec.engine, engines, suffixes, {
      recorded: (id) => this.byId.get(id) ?? null,
      imageUrl: (reference) => this.images.urlOf(reference),
    });
    this.repeated = new RepeatedRequests(resendsUnusedReplies(spec.callRules ?? null));
    this.recordLimit = new RecordLimit(spec.maxRecordedBytes ?? Number.POSITIVE_INFINITY, () => spec.onRecordLimit?.());
    this.turnLimit = new TurnLimit(spec.maxTurns ?? null, () => spec.onTurnLimit?.());
  }

  get sessionId(): string {
    return this.spec.sessionId;
  }

  get attempt(): number {
    return this.spec.attempt;
  }

  /** The number of recorded completions, summed over all call kinds. */
  get completionCount(): number {
    return this.recorded.length;
  }

  /** The number of turns of the main agent so far, as {@link TurnLimit} counts them. */
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
   * Returns the completion with this id if its reply may have been sent to a client; `null` when the id is unknown or the engine aborted
   * the reply.
   */
  sentReply(completionId: string): Completion | null {
    const completion = this.byId.get(completionId);
    return completion === undefined || completion.finishReason === 'abort' ? null : completion;
  }

  /**
   * Returns the call that answers a request: that of an earlier request, if this one is a retry that joins it, or else a new call. `parse`
   * translates the body, which a retry does not need. Throws what `parse` and {@link begin} throw.
   */
  callFor(identity: RequestIdentity, dialect: Dialect, parse: () => CanonicalRequest): Call {
    try {
      this.refuseWhenClosed();
      return this.repeated.joinedCall(identity) ?? this.begin(identity, dialect, parse());
    } catch (error) {
      this.repeated.addFailure(identity.digest, null);
      throw error;
    }
  }

  /**
   * Starts a model call. Throws `session_closed` after the session has ended, `overloaded` when too many calls are running, `turn_limit`
   * when the agent has used up its turns, and `record_limit` when it has used up the maximum size of its record. Throws `not_found` for a
   * model that the session does not serve, and `schema_violation` when the request refers to an unknown previous response or has costly
   * sampling parameters. Throws `unsupported` and `conflict` for an engine pool, as {@link ThreadPools.of} does.
   */
  begin(identity: RequestIdentity, dialect: Dialect, received: CanonicalRequest): Call {
    this.refuseWhenClosed();
    this.refuseModel(received.model);
    refuseCostlySampling(received);
    this.turnLimit.refuse(received.callKind);
    if (this.running.size >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} model calls running`);
    }
    const { clock, abandonGraceMs } = this.deps;
    const pool = this.pools.of(received);
    const request = withPreviousResponse(received, (id) => this.sentReply(id));
    const images = this.images.hold(request.messages);
    const recorded = this.requestOf(request, images, effectiveSampling(this.spec, request, this.nextIndex));
    const release = this.reserve(recorded, images);
    const index = this.nextIndex++;
    const parts: CallParts = {
      completionId: newId('cpl', clock),
      index,
      arrivedMs: clock.monotonicMs(),
      timestampMs: clock.nowMs(),
      dialect,
      // The call stores the message objects of `recorded`, which consecutive turns share, so that the copies in `request` can be freed.
      request: withoutClaims(request, recorded),
    };
    const pending = this.locate(request, recorded);
    this.abandoned.checkRequest(recorded.messages, this.recorded);
    for (const used of this.prompts.markUsed(pending)) this.abandoned.markUsed(used);
    const span = spanOf(this.spec, parts, pool);
    const call = new Call(parts, clock, abandonGraceMs, (signal, reply) =>
      this.run({ parts, pool, pending, images, release, span }, signal, reply),
    );
    const unused = this.repeated.add(identity, call);
    if (unused !== null) this.abandoned.addRetried(unused);
    this.track(identity, call, span);
    return call;
  }

  async countTokens(received: CanonicalRequest, signal: AbortSignal): Promise<number> {
    this.refuseWhenClosed();
    // The model name is optional in a request to count tokens.
    if (received.model !== '') this.refuseModel(received.model);
    if (this.runningCounts >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} prompts being counted`);
    }
    const id = newId('cnt', this.deps.clock);
    const names = { completionId: id, sessionId: this.spec.sessionId, pool: this.pools.of(received) };
    const request = withPreviousResponse(received, (completionId) => this.sentReply(completionId));
    const images = this.images.hold(request.messages);
    const recorded = this.requestOf(request, images, effectiveSampling(this.spec, request, this.nextIndex));
    const pending = this.locate(request, recorded);
    this.runningCounts++;
    try {
      const length = await this.prompts.count(names, pending, signal);
      if (length !== null) return length;
      const texts = this.prompts.textsOf(pending);
      return await this.deps.engines.countTokens(engineRequest(names, request, recorded, texts, null), signal);
    } finally {
      this.images.release(images);
      this.runningCounts--;
    }
  }

  /** Throws `not_found` for a model that the session does not serve. */
  refuseModel(model: string): void {
    refuseModel(model, this.spec.modelName, this.spec.modelAliases ?? []);
  }

  /**
   * Returns the error with which an engine has failed a model call that is still being retried; `null` when there is no such call.
   * Auxiliary calls are ignored. With `scope` `main`, calls of sub-agents are ignored too.
   */
  pendingFailure(scope: 'main' | 'agents'): FloeError | null {
    for (const { parts } of this.running) {
      const { thread, callKind } = parts.request;
      if (isAuxiliary(callKind) || (scope === 'main' && thread !== MAIN_THREAD)) continue;
      const failure = this.deps.engines.failureOf(parts.completionId);
      if (failure !== null) return failure;
    }
    return null;
  }

  refuseWhenClosed(): void {
    if (this.closedBy !== null) throw this.closedBy;
    this.spec.admit?.();
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
    this.closedBy = new FloeError('session_closed', 'the session of this key has ended');
    const calls = [...this.running];
    for (const call of calls) call.abort(this.closedBy);
    await Promise.allSettled(calls.map((call) => call.outcome));
    await this.connections.close();
    this.deps.onClosed?.();
  }

  private track({ digest }: RequestIdentity, call: Call, span: Span): void {
    const { callKind } = call.parts.request;
    const { reply } = call;
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
        this.failures.callEnded(call.parts.request, null);
        reportEnd(this.deps, call.parts, completion, null, span);
        onEnded(true);
      },
      (error: unknown) => {
        const failure = asFloeError(error);
        this.failures.callEnded(call.parts.request, failure);
        reportEnd(this.deps, call.parts, null, failure, span);
        // A call whose client disconnected counts as a turn when a part of the reply was streamed, because that part may be all that the
        // client needed.
        onEnded(failure.code === 'cancelled' && reply?.message != null);
        this.repeated.addFailure(digest, call);
      },
    );
  }

  /** Runs a model call: builds the prompt, lets an engine sample the reply, and records the completion. */
  private async run(
    { parts, pool, pending, images: held, release, span: { traceparent } }: StartedCall,
    signal: AbortSignal,
    partial: StreamedReply | null,
  ): Promise<Completion> {
    const { completionId } = parts;
    const { request: recorded, thread } = pending;
    const removeListener = onAbort(signal, () => this.recordEngineFailure(parts));
    try {
      const names = { completionId, sessionId: this.spec.sessionId, pool, traceparent };
      const input = await this.prompts.build(names, pending, signal);
      const prompt = input.built?.prompt ?? null;
      const listener = this.listenerOf(partial);
      const request = engineRequest(names, parts.request, recorded, input.texts, prompt, listener);
      const pooled = wellFormedReply(await this.deps.engines.generate(request, signal));
      const { reply, engineId } = pooled;
      const promptIds =
        prompt === null ? this.memory.prompt(thread, reply.promptIds) : verifiedPrompt(prompt, reply, engineId);
      const totalMs = this.deps.clock.monotonicMs() - parts.arrivedMs;
      const capture = this.prompts.captureOf(input, reply);
      const images = this.images.unrecorded(held);
      const withImages = images.size === 0 ? recorded : { ...recorded, images };
      const completion = completionOf(this.spec, parts, withImages, pooled, capture, promptIds, totalMs);
      const recordBytes = await this.deps.journal.append(completion, this.recorded);
      this.images.markRecorded(images);
      this.recordLimit.add(recorded, recordBytes);
      this.recorded.push(completion);
      this.byId.set(completionId, completion);
      this.prompts.add(completion, pending, input);
      this.sampledTokens += completion.responseIds.length;
      this.spec.onProgress?.(this.completionCount, this.sampledTokens, completion.message);
      if (completion.finishReason === 'abort') {
        throw new FloeError('engine_error', `engine ${engineId} broke off the reply`, { engine_id: engineId });
      }
      return completion;
    } finally {
      removeListener();
      release();
    }
  }

  /**
   * Records the failure of a call that is aborted while it is being retried. The client may have disconnected because no engine answered in
   * time.
   */
  private recordEngineFailure({ completionId, request }: CallParts): void {
    const failure = this.deps.engines.failureOf(completionId);
    if (failure !== null) this.failures.callEnded(request, failure);
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

  /** Reserves space for a request in the record. Returns a function that releases it and the images. Throws when the request is refused. */
  private reserve(recorded: CompletionRequest, images: HeldImages): () => void {
    try {
      const release = this.recordLimit.reserve(recorded, this.images.unrecorded(images));
      return () => {
        release();
        this.images.release(images);
      };
    } catch (error) {
      this.images.release(images);
      throw error;
    }
  }

  private requestOf(request: CanonicalRequest, { messages }: HeldImages, sampling: Sampling): CompletionRequest {
    const texts = this.memory.request(request.thread, messages, request.tools);
    // The completion gets its images when it is recorded, because another call may record them first.
    return recordedRequest(request, texts, NO_IMAGES, sampling);
  }
}

/**
 * Returns an engine's reply with U+FFFD in place of lone surrogates in its message, of which harnesses, tools and environments could not
 * read any part. Its ids do not change.
 */
function wellFormedReply(pooled: PooledReply): PooledReply {
  const { message } = pooled.reply;
  const sound = wellFormedCalls(wellFormed(message));
  return sound === message ? pooled : { ...pooled, reply: { ...pooled.reply, message: sound } };
}
