import { createHash } from 'node:crypto';
import type { Clock } from '../core/clock.ts';
import { asFloeError, FloeError } from '../core/errors.ts';
import { newId } from '../core/ids.ts';
import { threadKeyOf } from '../dialects/call-kind.ts';
import type { CallContext, CanonicalRequest, Dialect } from '../dialects/dialect.ts';
import type { GenerateRequest } from '../engines/engine.ts';
import type { EnginePool, PooledReply } from '../engines/pool.ts';
import type { CallKind, Sampling } from '../schema/index.ts';
import type { Completion, CompletionRequest } from '../tokens/completion.ts';
import { Reading } from './body.ts';
import { Call, type CallParts } from './call.ts';
import { Echoes } from './echoes.ts';
import type { CompletionJournal } from './journal.ts';
import { TurnMemory } from './turn-memory.ts';

/** Calls of one session at a time. Harnesses run a handful of sub-agents; a loop in the sandbox could open thousands. */
const MAX_RUNNING_CALLS = 64;

/** Largest `num_samples` of a task: seeds of different calls never coincide with those of another sample. */
const SEED_STRIDE = 100_000;

const TRAINABLE_KINDS: readonly CallKind[] = ['main', 'subagent', 'compaction'];

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
  readonly sampling: Sampling;
  /** After every recorded completion. Must not throw. */
  readonly onProgress?: (turns: number, sampledTokens: number) => void;
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
  readonly abandonGraceMs: number;
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
  /** The latest call of each request body. */
  private readonly byBody = new Map<string, Call>();
  private readonly running = new Set<Call>();
  private readonly echoes = new Echoes();
  private readonly memory = new TurnMemory();
  private counting = 0;
  private nextIndex = 0;
  private closedBy: FloeError | null = null;

  constructor(spec: ProxySessionSpec, deps: SessionDeps) {
    this.spec = spec;
    this.deps = deps;
  }

  get turns(): number {
    return this.recorded.length;
  }

  completions(): readonly Completion[] {
    return [...this.recorded].sort((a, b) => a.index - b.index);
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

  /** Starts a generation. Throws `session_closed` or `overloaded`. */
  begin(digest: string, dialect: Dialect, request: CanonicalRequest): Call {
    this.refuseWhenClosed();
    if (this.running.size >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} model calls running`);
    }
    const { clock, abandonGraceMs } = this.deps;
    const index = this.nextIndex++;
    const recorded = this.requestOf(request, this.samplingOf(request, index));
    const parts: CallParts = {
      completionId: newId('cpl', clock),
      index,
      arrivedMs: clock.monotonicMs(),
      dialect,
      // Only what is shared between turns is kept.
      request: { ...request, messages: recorded.messages, tools: recorded.tools },
    };
    const earlier = this.byBody.get(digest)?.completion;
    if (earlier) this.echoes.repeated(earlier);
    this.echoes.seen(recorded.messages, this.recorded);
    const call = new Call(parts, clock, abandonGraceMs, (signal) => this.run(parts, recorded, signal));
    this.byBody.set(digest, call);
    this.running.add(call);
    call.outcome.then(
      () => {
        this.lastError = null;
        this.running.delete(call);
      },
      (error: unknown) => {
        this.failed(asFloeError(error));
        this.running.delete(call);
        if (this.byBody.get(digest) === call) this.byBody.delete(digest);
      },
    );
    return call;
  }

  async countTokens(request: CanonicalRequest, signal: AbortSignal): Promise<number> {
    this.refuseWhenClosed();
    if (this.counting >= MAX_RUNNING_CALLS) {
      throw new FloeError('overloaded', `the session has ${MAX_RUNNING_CALLS} prompts being counted`);
    }
    const id = newId('cnt', this.deps.clock);
    const recorded = this.requestOf(request, this.samplingOf(request, this.nextIndex));
    this.counting++;
    try {
      return await this.deps.engines.countTokens(this.engineRequest(id, request, recorded), signal);
    } finally {
      this.counting--;
    }
  }

  /** Remembered for the judgement of the run; a client that went away is not a failure. */
  failed(error: FloeError): void {
    if (error.code !== 'cancelled' && error.code !== 'session_closed') this.lastError = error;
  }

  refuseWhenClosed(): void {
    if (this.closedBy !== null) throw this.closedBy;
  }

  /** Aborts what runs and waits until all of it has ended. */
  async close(): Promise<void> {
    this.closedBy ??= new FloeError('session_closed', 'the session of this key has ended');
    const calls = [...this.running];
    for (const call of calls) call.abort(this.closedBy);
    await Promise.allSettled(calls.map((call) => call.outcome));
  }

  private async run(parts: CallParts, recorded: CompletionRequest, signal: AbortSignal): Promise<Completion> {
    const timestampMs = this.deps.clock.nowMs();
    const asked = this.engineRequest(parts.completionId, parts.request, recorded);
    const answer = await this.deps.engines.generate(asked, signal);
    const completion = this.completionOf(parts, recorded, answer, timestampMs);
    await this.deps.journal.append(completion, this.recorded);
    this.recorded.push(completion);
    this.sampledTokens += completion.responseIds.length;
    this.spec.onProgress?.(this.turns, this.sampledTokens);
    if (completion.finishReason === 'abort') {
      throw new FloeError('engine_error', `engine ${answer.engineId} broke off the reply`, {
        engine_id: answer.engineId,
      });
    }
    return completion;
  }

  private completionOf(
    parts: CallParts,
    request: CompletionRequest,
    answer: PooledReply,
    timestampMs: number,
  ): Completion {
    const { reply, engineId, model, engineMs } = answer;
    // A reply that the engine broke off is what the policy sampled, but no harness gets to see it.
    const brokenOff = reply.finishReason === 'abort';
    return {
      completionId: parts.completionId,
      sessionId: this.spec.sessionId,
      attempt: this.spec.attempt,
      index: parts.index,
      timestampMs,
      dialect: parts.dialect.name,
      callKind: parts.request.callKind,
      thread: parts.request.thread,
      request,
      promptIds: this.memory.prompt(parts.request.thread, reply.promptIds),
      responseIds: reply.responseIds,
      responseLogprobs: reply.responseLogprobs,
      versionSpans: reply.versionSpans,
      message: reply.message,
      finishReason: reply.finishReason,
      stop: reply.stop,
      engineId,
      model,
      usage: reply.usage,
      engineMs,
      totalMs: this.deps.clock.monotonicMs() - parts.arrivedMs,
      abandoned: brokenOff,
      auxiliary: !TRAINABLE_KINDS.includes(parts.request.callKind),
      undelivered: brokenOff,
    };
  }

  private requestOf(request: CanonicalRequest, sampling: Sampling): CompletionRequest {
    return {
      ...this.memory.request(request.thread, request.messages, request.tools),
      samplingAsked: request.samplingAsked,
      sampling,
      adjusted: request.adjusted,
    };
  }

  private engineRequest(id: string, request: CanonicalRequest, recorded: CompletionRequest): GenerateRequest {
    return {
      completionId: id,
      sessionId: this.spec.sessionId,
      messageTexts: recorded.messageTexts,
      tools: recorded.tools,
      toolsText: recorded.toolsText,
      toolChoice: request.toolChoice,
      parallelToolCalls: request.parallelToolCalls,
      sampling: recorded.sampling,
      maxTokens: recorded.sampling.max_tokens,
      stop: request.samplingAsked.stop ?? [],
      responseFormat: request.samplingAsked.response_format ?? null,
      seed: recorded.sampling.seed,
    };
  }

  /**
   * What is in effect: the task's sampling, whatever the harness asks for; of the two bounds the lower one; and a seed of
   * its own for every call: `seed + sample_index` for the first, further apart than there are samples from then on.
   */
  private samplingOf(request: CanonicalRequest, index: number): Sampling {
    const { sampling, sampleIndex } = this.spec;
    const asked = request.samplingAsked.max_tokens ?? null;
    const maxTokens =
      asked === null || sampling.max_tokens === null
        ? (asked ?? sampling.max_tokens)
        : Math.min(asked, sampling.max_tokens);
    const seed = sampling.seed === null ? null : sampling.seed + sampleIndex + index * SEED_STRIDE;
    return { ...sampling, max_tokens: maxTokens, seed };
  }
}

/** What makes two requests the same: dialect, agent thread, what the path says, and body, byte for byte. */
export function digestOf(dialect: Dialect, context: CallContext, body: Buffer): string {
  const { headers, model, stream } = context;
  const outside = JSON.stringify([dialect.name, threadKeyOf(headers), model, stream]);
  return createHash('sha256').update(outside).update(body).digest('base64');
}
