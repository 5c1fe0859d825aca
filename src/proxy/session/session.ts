import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import { newId } from '../../core/ids.ts';
import { NO_SPAN, type Span } from '../../core/tracing.ts';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { CallNames, ReplyListener } from '../../engines/engine.ts';
import type { EnginePool } from '../../engines/pool.ts';
import type { ChatMessage, Sampling, TaskEngine } from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { Reading } from '../http/body.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { type Asked, Prompting, promptOf } from '../prompt/prompt-builder.ts';
import type { Suffixes } from '../prompt/suffix-renderer.ts';
import { Echoes } from './abandoned-replies.ts';
import { Call, type CallParts } from './call.ts';
import { completionOf, engineRequestOf, refuseCostlyWishes, samplingOf } from './engine-request.ts';
import type { CallObserver } from './observer.ts';
import { continued, handedOut } from './previous-response.ts';
import type { Relay } from './relay.ts';
import { refuseModel } from './request-limits.ts';
import { TurnMemory } from './request-memory.ts';
import { TurnLimit } from './turn-limit.ts';

/** Calls of one session at a time. Harnesses run a handful of sub-agents; a loop in the sandbox could open thousands. */
const MAX_RUNNING_CALLS = 64;

export type ProxySessionSpec = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly sampleIndex: number;
  /** Opens the proxy for this attempt and nothing else; never used again. */
  readonly key: string;
  /** Where to listen for this session alone; null: only the TCP listener. */
  readonly socketPath: string | null;
  /** The name that the harness is told; what the model list shows. */
  readonly modelName: string;
  /** Other names that requests may use; `*` allows any. Default: none. */
  readonly modelAliases?: readonly string[];
  readonly sampling: Sampling;
  /** Which engines sample it, and how they are prompted. */
  readonly engine: TaskEngine;
  /** Completions of kind `main` that the session may have; null or absent: any number. */
  readonly maxTurns?: number | null;
  /** Called once, when a request beyond {@link maxTurns} was refused. Must not throw. */
  readonly onTurnLimit?: () => void;
  /** After every recorded completion. Must not throw. */
  readonly onProgress?: (turns: number, sampledTokens: number) => void;
  /** When a model call begins, streams or ends. Must not throw. */
  readonly onActivity?: () => void;
  /** What its model calls are part of; default: nothing. */
  readonly span?: Span;
  /** Called before each model call, which it refuses by throwing. */
  readonly admit?: () => void;
};

/** One attempt as the gateway sees it. */
export interface ProxySession {
  readonly sessionId: string;
  readonly attempt: number;
  /** Recorded completions in the order in which their requests arrived. */
  completions(): readonly Completion[];
  /** Model calls that were answered. */
  readonly turns: number;
  readonly sampledTokens: number;
  /** Requests of any kind that carried the key. */
  readonly requests: number;
  /** Why the last model call failed; null when the last one succeeded. */
  readonly lastError: FloeError | null;
  /** Model calls that an engine is working on. */
  readonly runningCalls: number;
  /**
   * Ends the session: later requests are answered 410, engine calls are aborted, and everything that was sampled is
   * recorded when this resolves. May be called twice.
   */
  close(): Promise<void>;
}

export type SessionDeps = {
  readonly clock: Clock;
  readonly engines: EnginePool;
  readonly journal: CompletionJournal;
  readonly suffixes: Suffixes;
  readonly abandonGraceMs: number;
  readonly observer?: CallObserver | undefined;
};

/** The calls of one attempt: what was asked, what is running, what was recorded. */
export class SessionCalls {
  readonly spec: ProxySessionSpec;
  requests = 0;
  readonly reading = new Reading();
  sampledTokens = 0;
  lastError: FloeError | null = null;
  private readonly deps: SessionDeps;
  private readonly recorded: Completion[] = [];
  private readonly byId = new Map<string, Completion>();
  /** The latest call of each request body. */
  private readonly byBody = new Map<string, Call>();
  private readonly running = new Set<Call>();
  private readonly echoes = new Echoes();
  private readonly memory = new TurnMemory();
  private readonly prompting: Prompting;
  private readonly turnLimit: TurnLimit;
  private counting = 0;
  private nextIndex = 0;
  private closedBy: FloeError | null = null;

  constructor(spec: ProxySessionSpec, deps: SessionDeps) {
    this.spec = spec;
    this.deps = deps;
    const { engines, suffixes } = deps;
    this.prompting = new Prompting(spec.engine, engines, suffixes, (id) => this.byId.get(id) ?? null);
    this.turnLimit = new TurnLimit(spec.maxTurns ?? null, () => spec.onTurnLimit?.());
  }

  get turns(): number {
    return this.recorded.length;
  }

  get runningCalls(): number {
    return this.running.size;
  }

  completions(): readonly Completion[] {
    return [...this.recorded].sort((a, b) => a.index - b.index);
  }

  /** The completion of that id whose reply the session handed out; null when it handed out none. */
  handedOut(completionId: string): Completion | null {
    return handedOut(this.byId.get(completionId));
  }

  /**
   * The call that a repeated request joins: one that is still running, or whose reply no client ever got. Null: the request
   * is new, or asks for a new sample of one that was answered.
   */
  findRepeat(digest: string): Call | null {
    const call = this.byBody.get(digest);
    if (call === undefined || (!call.running && call.delivered)) return null;
    return call;
  }

  /**
   * Starts a generation. Throws `session_closed`, `overloaded`, `not_found` for another model, `turn_limit`, or `schema_violation`
   * when it goes on from a completion that there is not.
   */
  begin(digest: string, dialect: Dialect, asked: CanonicalRequest): Call {
    this.refuseWhenClosed();
    this.refuseModel(asked.model);
    refuseCostlyWishes(asked);
    this.turnLimit.refuse(asked.callKind);
    if (this.running.size >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} model calls running`);
    }
    const { clock, abandonGraceMs } = this.deps;
    const request = continued(asked, (id) => this.handedOut(id));
    const index = this.nextIndex++;
    const recorded = this.requestOf(request, samplingOf(this.spec, request, index));
    const parts: CallParts = {
      completionId: newId('cpl', clock),
      index,
      arrivedMs: clock.monotonicMs(),
      timestampMs: clock.nowMs(),
      dialect,
      // Only what is shared between turns is kept.
      request: withoutTurnRefs({ ...request, messages: recorded.messages, tools: recorded.tools }),
    };
    const place = this.placeOf(request, recorded);
    const earlier = this.byBody.get(digest)?.completion;
    if (earlier) this.echoes.repeated(earlier);
    this.echoes.seen(recorded.messages, this.recorded);
    for (const used of this.prompting.use(place)) this.echoes.carried(used);
    const span = this.spanOf(parts);
    const call = new Call(parts, clock, abandonGraceMs, (signal, relay) => this.run(parts, place, span, signal, relay));
    this.track(digest, call, span);
    return call;
  }

  async countTokens(asked: CanonicalRequest, signal: AbortSignal): Promise<number> {
    this.refuseWhenClosed();
    // A count may leave the model out.
    if (asked.model !== '') this.refuseModel(asked.model);
    if (this.counting >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} prompts being counted`);
    }
    const id = newId('cnt', this.deps.clock);
    const request = continued(asked, (completionId) => this.handedOut(completionId));
    const recorded = this.requestOf(request, samplingOf(this.spec, request, this.nextIndex));
    const place = this.placeOf(request, recorded);
    this.counting++;
    try {
      const built = await this.prompting.count(this.namesOf(id), place, signal);
      if (built !== null) return built;
      const texts = this.prompting.texts(place);
      return await this.deps.engines.countTokens(
        engineRequestOf(id, this.spec, request, recorded, texts, null),
        signal,
      );
    } finally {
      this.counting--;
    }
  }

  /** Throws `not_found` for a model that the session does not have. */
  refuseModel(model: string): void {
    refuseModel(model, this.spec.modelName, this.spec.modelAliases ?? []);
  }

  /** Remembered for the judgement of the run; a client that went away is not a failure. */
  failed(error: FloeError): void {
    if (error.code !== 'cancelled' && error.code !== 'session_closed') this.lastError = error;
  }

  refuseWhenClosed(): void {
    if (this.closedBy !== null) throw this.closedBy;
    this.spec.admit?.();
  }

  /** Aborts what runs and waits until all of it has ended. */
  async close(): Promise<void> {
    this.closedBy ??= new FloeError('session_closed', 'the session of this key has ended');
    const calls = [...this.running];
    for (const call of calls) call.abort(this.closedBy);
    await Promise.allSettled(calls.map((call) => call.outcome));
  }

  private track(digest: string, call: Call, span: Span): void {
    const { callKind } = call.parts.request;
    const { relay } = call;
    this.byBody.set(digest, call);
    this.running.add(call);
    this.turnLimit.begun(callKind);
    this.spec.onActivity?.();
    const ended = (answered: boolean): void => {
      this.running.delete(call);
      this.spec.onActivity?.();
      this.turnLimit.ended(callKind, answered);
    };
    call.outcome.then(
      (completion) => {
        this.lastError = null;
        this.tell(call.parts, completion, null, span);
        ended(true);
      },
      (error: unknown) => {
        const failure = asFloeError(error);
        this.failed(failure);
        this.tell(call.parts, null, failure, span);
        // What was relayed before the client went away may be all that it wanted.
        ended(failure.code === 'cancelled' && relay?.message != null);
        if (this.byBody.get(digest) === call) this.byBody.delete(digest);
      },
    );
  }

  /** Says how a call ended, to whom it concerns. */
  private tell(parts: CallParts, completion: Completion | null, error: FloeError | null, span: Span): void {
    const failedAt = error?.details.engine_id;
    const engineId = completion?.engineId ?? (typeof failedAt === 'string' ? failedAt : null);
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

  private async run(
    parts: CallParts,
    place: Asked,
    { traceparent }: Span,
    signal: AbortSignal,
    relay: Relay | null,
  ): Promise<Completion> {
    const { completionId } = parts;
    const { request: recorded, thread } = place;
    const question = await this.prompting.question({ ...this.namesOf(completionId), traceparent }, place, signal);
    const prompt = question.built?.prompt ?? null;
    const asked = engineRequestOf(completionId, this.spec, parts.request, recorded, question.texts, prompt);
    const answer = await this.deps.engines.generate({ ...asked, traceparent, listener: this.listener(relay) }, signal);
    const { reply, engineId } = answer;
    const promptIds = prompt === null ? this.memory.prompt(thread, reply.promptIds) : promptOf(prompt, reply, engineId);
    const totalMs = this.deps.clock.monotonicMs() - parts.arrivedMs;
    const capture = this.prompting.captureOf(question, reply);
    const completion = completionOf(this.spec, parts, recorded, answer, capture, promptIds, totalMs);
    await this.deps.journal.append(completion, this.recorded);
    this.recorded.push(completion);
    this.byId.set(completionId, completion);
    this.prompting.add(completion, place, question);
    this.sampledTokens += completion.responseIds.length;
    this.spec.onProgress?.(this.turns, this.sampledTokens);
    if (completion.finishReason === 'abort') {
      throw new FloeError('engine_error', `engine ${answer.engineId} broke off the reply`, {
        engine_id: answer.engineId,
      });
    }
    return completion;
  }

  private listener(relay: Relay | null): ReplyListener | undefined {
    const { onActivity } = this.spec;
    if (relay === null || onActivity === undefined) return relay ?? undefined;
    return {
      started: (promptTokens) => {
        onActivity();
        relay.started(promptTokens);
      },
      delta: (delta) => {
        onActivity();
        relay.delta(delta);
      },
    };
  }

  private placeOf(request: CanonicalRequest, recorded: CompletionRequest): Asked {
    const { messages, claimedCompletions, thread } = request;
    return this.prompting.find(thread, recorded, (index) => claimedCompletions?.get(messages[index] as ChatMessage));
  }

  private namesOf(completionId: string): CallNames {
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

/** They are of the harness's own copies of messages, which are not kept. */
function withoutTurnRefs(request: CanonicalRequest): CanonicalRequest {
  const { claimedCompletions: _, ...rest } = request;
  return rest;
}
