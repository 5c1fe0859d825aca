import { asFloeError, type Clock, FloeError, newId } from '@floe-rl/core';
import type { CallKind, ChatMessage } from '@floe-rl/core/schema';
import { resendsUnusedReplies } from '../../dialects/call-kinds/label.ts';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import type { PendingCall } from '../prompt/prompt-builder.ts';
import { AbandonedReplies } from './abandoned-replies.ts';
import { Call, withoutClaims } from './call.ts';
import type { CallFailures } from './call-failures.ts';
import { type CallObserver, reportEnd, spanOf } from './call-report.ts';
import { effectiveSampling, recordedRequest } from './engine-request.ts';
import type { Generation } from './generation.ts';
import { withPreviousResponse } from './previous-response.ts';
import type { SessionRecord } from './record.ts';
import { RepeatedRequests, type RequestIdentity } from './repeated-requests.ts';
import { refuseCostlySampling, refuseModel } from './request-limits.ts';
import type { RequestMemory } from './request-memory.ts';
import type { HeldImages } from './session-images.ts';
import type { ProxySessionSpec } from './session-spec.ts';
import { ThreadPools } from './thread-pools.ts';
import { TurnLimit } from './turn-limit.ts';

/**
 * Maximum number of model calls of one session that may run concurrently. Harnesses run a handful of sub-agents, but a program in the
 * sandbox could start thousands of calls in a loop.
 */
const MAX_RUNNING_CALLS = 64;

type AdmissionDeps = {
  readonly clock: Clock;
  readonly abandonGraceMs: number;
  readonly observer?: CallObserver | undefined;
  readonly generation: Generation;
  readonly record: SessionRecord;
  readonly memory: RequestMemory;
  readonly failures: CallFailures;
};

/** A request with its previous response resolved, its images, the form in which it is recorded, and the recorded turn that it continues. */
type PreparedRequest = {
  readonly request: CanonicalRequest;
  readonly images: HeldImages;
  readonly pending: PendingCall;
};

/**
 * The first part of a session's model calls. It decides whether a request is a retry of an earlier call, is refused, or becomes a new call. It
 * starts the generation of a new call.
 */
export class Admission {
  private readonly spec: ProxySessionSpec;
  private readonly deps: AdmissionDeps;
  private readonly running = new Set<Call>();
  private readonly repeated: RepeatedRequests;
  private readonly abandoned = new AbandonedReplies();
  private readonly turnLimit: TurnLimit;
  private readonly pools: ThreadPools;
  private runningCounts = 0;
  private nextIndex = 0;
  private closedBy: FloeError | null = null;

  constructor(spec: ProxySessionSpec, deps: AdmissionDeps) {
    this.spec = spec;
    this.deps = deps;
    this.repeated = new RepeatedRequests(resendsUnusedReplies(spec.callRules ?? null));
    this.turnLimit = new TurnLimit(spec.maxTurns ?? null, () => spec.onTurnLimit?.());
    this.pools = new ThreadPools(spec.engine);
  }

  /** The calls that have begun and not ended. */
  get runningCalls(): ReadonlySet<Call> {
    return this.running;
  }

  /** The number of turns of the main agent so far, as {@link TurnLimit} counts them. */
  get turns(): number {
    return this.turnLimit.turns;
  }

  /**
   * Returns the call that answers a request: the call of an earlier request if this request is a retry of it, or else a new call. `parse`
   * translates the body, which is not needed for a retry. Throws what `parse` and {@link begin} throw.
   */
  admit(identity: RequestIdentity, dialect: Dialect, parse: () => CanonicalRequest): Call {
    try {
      this.refuseWhenClosed();
      return this.repeated.joinedCall(identity) ?? this.begin(identity, dialect, parse());
    } catch (error) {
      this.repeated.addFailure(identity.digest, null);
      throw error;
    }
  }

  /**
   * Starts a model call. Throws one of these codes:
   * - `session_closed`: the session has ended.
   * - `overloaded`: too many calls are running.
   * - `turn_limit`: the agent has used up its turns.
   * - `record_limit`: the agent has used up the maximum size of its record.
   * - `not_found`: the session does not serve the model.
   * - `schema_violation`: the request refers to an unknown previous response or has costly sampling parameters.
   * - `unsupported` or `conflict`: the engine pool is refused, as in {@link ThreadPools.of}.
   */
  begin(identity: RequestIdentity, dialect: Dialect, received: CanonicalRequest): Call {
    this.refuseWhenClosed();
    refuseModel(received.model, this.spec);
    refuseCostlySampling(received);
    const { callKind } = received;
    this.turnLimit.refuse(callKind);
    if (this.running.size >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} model calls running`);
    }
    const { clock, abandonGraceMs, generation, record } = this.deps;
    const pool = this.pools.of(received);
    const { request, images, pending } = this.prepared(received);
    const { request: recorded, match } = pending;
    const release = this.reserve(recorded, images);
    const parts = {
      completionId: newId('cpl', clock),
      index: this.nextIndex++,
      arrivedMs: clock.monotonicMs(),
      timestampMs: clock.nowMs(),
      dialect,
      // The call stores the message objects of `recorded`, which consecutive turns share, so that the copies in `request` can be freed.
      request: withoutClaims(request, recorded),
    };
    this.abandoned.checkRequest(recorded.messages, record.completions);
    for (let matched = match.last; matched !== null; matched = matched.previous) {
      matched.turn.used = true;
      this.abandoned.markUsed(matched.turn.completion);
    }
    const span = spanOf(this.spec, parts, pool);
    const call = new Call({ ...parts, pool, pending, images, span, release }, clock, abandonGraceMs);
    const unused = this.repeated.add(identity, call);
    if (unused !== null) this.abandoned.addRetried(unused);
    this.running.add(call);
    this.turnLimit.callStarted(callKind);
    this.spec.onActivity?.();
    this.watchEnd(call, identity.digest, callKind);
    call.endWith(generation.run(call));
    return call;
  }

  /**
   * Returns the length of a request's prompt in tokens. Throws as {@link begin} does for a closed session, a model and a pool. Throws
   * `overloaded` when too many prompts are being counted.
   */
  async countTokens(received: CanonicalRequest, signal: AbortSignal): Promise<number> {
    this.refuseWhenClosed();
    // The model name is optional in a request to count tokens.
    if (received.model !== '') refuseModel(received.model, this.spec);
    if (this.runningCounts >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} prompts being counted`);
    }
    const { clock, generation, record } = this.deps;
    const id = newId('cnt', clock);
    const names = { completionId: id, sessionId: this.spec.sessionId, pool: this.pools.of(received) };
    const { request, images, pending } = this.prepared(received);
    this.runningCounts++;
    try {
      return await generation.countTokens(names, request, pending, signal);
    } finally {
      record.images.release(images);
      this.runningCounts--;
    }
  }

  /**
   * Refuses all later requests with `reason` and aborts the running calls. Resolves when they have ended and all sampled tokens are
   * recorded.
   */
  async close(reason: FloeError): Promise<void> {
    this.closedBy = reason;
    const calls = [...this.running];
    for (const call of calls) call.abort(reason);
    await Promise.allSettled(calls.map((call) => call.outcome));
  }

  private refuseWhenClosed(): void {
    if (this.closedBy !== null) throw this.closedBy;
    this.spec.admit?.();
  }

  private prepared(received: CanonicalRequest): PreparedRequest {
    const { memory, record } = this.deps;
    const request = withPreviousResponse(received, (id) => record.sentReply(id));
    const images = record.images.hold(request.messages);
    const { thread, messages, claimedCompletions } = request;
    const texts = memory.request(thread, images.messages, request.tools);
    const recorded = recordedRequest(request, texts, effectiveSampling(this.spec, request, this.nextIndex));
    const claimed = (index: number): string | undefined => claimedCompletions?.get(messages[index] as ChatMessage);
    const match = record.turns.find({ thread, ...recorded }, claimed);
    return { request, images, pending: { thread, request: recorded, match } };
  }

  /** Reserves space for a request in the record. Returns a function that releases it and the images. Throws when the request is refused. */
  private reserve(recorded: CompletionRequest, held: HeldImages): () => void {
    const { images, limit } = this.deps.record;
    try {
      const release = limit.reserve(recorded, images.unrecorded(held));
      return () => {
        release();
        images.release(held);
      };
    } catch (error) {
      images.release(held);
      throw error;
    }
  }

  private watchEnd(call: Call, digest: string, callKind: CallKind): void {
    const { reply, parts } = call;
    const onEnded = (completion: Completion | null, failure: FloeError | null, isTurn: boolean): void => {
      this.deps.failures.callEnded(parts.request, failure);
      reportEnd(this.deps, parts, completion, failure);
      this.running.delete(call);
      this.spec.onActivity?.();
      this.turnLimit.callEnded(callKind, isTurn);
    };
    call.outcome.then(
      (completion) => onEnded(completion, null, true),
      (error: unknown) => {
        const failure = asFloeError(error);
        // A call whose client disconnected counts as a turn when a part of the reply was streamed, because that part may be all that the
        // client needed.
        onEnded(null, failure, failure.code === 'cancelled' && reply?.message != null);
        this.repeated.addFailure(digest, call);
      },
    );
  }
}
