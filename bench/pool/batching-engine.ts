import { VirtualClock } from '@floe-rl/core';
import type { EngineInfo, EngineSpec } from '@floe-rl/core/schema';
import type { Engine, GenerateReply, GenerateRequest } from '#capture/engines/engine';
import { PrefixCache } from '#sim/prefix-cache';

/**
 * Durations of the parts of an engine step. They resemble an 8B model on one accelerator: about 100 tokens per second for one reply, 3,000
 * for 100 concurrent replies, and 20,000 prompt tokens per second.
 */
const STEP = { baseMs: 9, perReplyMs: 0.25, perPromptTokenMs: 0.05 };
/** Maximum number of prompt tokens that an engine computes in one step, as in vLLM's chunked prefill. */
const PROMPT_CHUNK = 2_048;
/** Maximum number of concurrent replies of one engine, like vLLM's `max_num_seqs`. */
const MAX_REPLIES = 128;
/** Capacity of each engine's prefix cache in blocks of 16 tokens, that is, about 400,000 tokens. */
const CACHE_BLOCKS = 24_576;

const BLOCK_TOKENS = 16;

/**
 * Advances simulated time from event to event. When an event resolved a promise, the continuations of this promise run before the next
 * event.
 */
export class Timeline {
  readonly clock = new VirtualClock(0);
  private hasResolved = false;

  /** Calls `callback` after `delayMs` of simulated time. The callback returns whether it resolved a promise. */
  schedule(delayMs: number, callback: () => boolean): void {
    this.clock.schedule(delayMs, () => {
      if (callback()) this.hasResolved = true;
    });
  }

  /** Resolves after `delayMs` of simulated time. */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.schedule(delayMs, () => {
        resolve();
        return true;
      });
    });
  }

  async run(untilMs: number): Promise<void> {
    while (this.clock.fireNext(untilMs)) {
      if (this.hasResolved) await settled();
      this.hasResolved = false;
    }
  }
}

export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export type Counters = {
  readonly calls: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly sampledTokens: number;
  readonly preemptions: number;
};

/** A model call that the simulated engine has queued or is processing. */
type RunningCall = {
  readonly ids: Int32Array;
  readonly request: GenerateRequest;
  readonly resolve: (reply: GenerateReply) => void;
  tokensLeft: number;
  /** Number of prompt tokens that are neither in the prefix cache nor computed yet. */
  uncomputed: number;
  isSampling: boolean;
  /** Number of tokens sampled so far. */
  sampled: number;
};

export class BatchingEngine implements Engine {
  private readonly spec: EngineSpec;
  private readonly timeline: Timeline;
  private readonly speed: number;
  private readonly cache: PrefixCache;
  /** Number of tokens that fit into the cache of running replies; infinite for an engine that never preempts. */
  private readonly kvTokens: number;
  private readonly waiting: RunningCall[] = [];
  private running: RunningCall[] = [];
  private isStepping = false;
  private calls = 0;
  private promptTokens = 0;
  private cachedTokens = 0;
  private sampledTokens = 0;
  private preemptions = 0;

  constructor(spec: EngineSpec, timeline: Timeline, speed: number, kvBlocks: number | null = null) {
    this.cache = new PrefixCache(kvBlocks ?? CACHE_BLOCKS);
    this.kvTokens = kvBlocks === null ? Number.POSITIVE_INFINITY : kvBlocks * BLOCK_TOKENS;
    this.spec = spec;
    this.timeline = timeline;
    this.speed = speed;
  }

  info(): EngineInfo {
    return {
      engine_id: this.spec.engine_id ?? '',
      kind: 'vllm',
      base_url: this.spec.base_url,
      pool: this.spec.pool,
      model: 'bench',
      server_version: null,
      max_model_len: null,
      logprobs_mode: 'processed',
      policy_version: null,
      healthy: true,
      streaming: false,
      inflight: this.running.length + this.waiting.length,
      max_concurrency: null,
      capabilities: {
        token_ids: true,
        token_input: 'generate',
        version_spans: false,
        pause: false,
        abort: false,
        cache_salt: false,
        notes: [],
        template: {
          close_ids: [],
          call_end: { ids: [], each: null },
          tail_render: false,
          thinking: { tool_results: 'unknown', user_message: 'unknown' },
          fingerprint: null,
        },
      },
    };
  }

  get counters(): Counters {
    const { calls, promptTokens, cachedTokens, sampledTokens, preemptions } = this;
    return { calls, promptTokens, cachedTokens, sampledTokens, preemptions };
  }

  generate(request: GenerateRequest): Promise<GenerateReply> {
    const ids = request.prompt?.ids ?? new Int32Array();
    return new Promise((resolve) => {
      this.waiting.push({
        ids,
        request,
        resolve,
        tokensLeft: request.maxTokens ?? 0,
        uncomputed: 0,
        isSampling: false,
        sampled: 0,
      });
      this.step();
    });
  }

  setPolicyVersion(): void {}

  policyVersion(): Promise<string | null> {
    return Promise.resolve(null);
  }

  weightsMayHaveChanged(): void {}

  async close(): Promise<void> {}

  async metrics(): Promise<string> {
    return [
      `vllm:kv_cache_usage_perc ${Math.min(1, this.heldTokens() / this.kvTokens)}`,
      `vllm:num_requests_running ${this.running.length}`,
      `vllm:num_requests_waiting ${this.waiting.length}`,
      `vllm:num_preemptions_total ${this.preemptions}`,
    ].join('\n');
  }

  countTokens(): Promise<never> {
    return unused();
  }

  render(): Promise<never> {
    return unused();
  }

  detokenize(): Promise<never> {
    return unused();
  }

  pause(): Promise<never> {
    return unused();
  }

  resume(): Promise<never> {
    return unused();
  }

  private step(): void {
    if (this.isStepping) return;
    this.admitWaiting();
    if (this.running.length === 0) return;
    this.isStepping = true;
    let budget = PROMPT_CHUNK;
    let replies = 0;
    for (const call of this.running) {
      if (call.uncomputed === 0) {
        call.isSampling = true;
        replies++;
        continue;
      }
      const chunk = Math.min(budget, call.uncomputed);
      call.uncomputed -= chunk;
      budget -= chunk;
    }
    const promptTokens = PROMPT_CHUNK - budget;
    const ms = STEP.baseMs + STEP.perReplyMs * replies + STEP.perPromptTokenMs * promptTokens;
    this.timeline.schedule(ms / this.speed, () => this.finishStep());
  }

  private admitWaiting(): void {
    while (this.running.length < MAX_REPLIES) {
      const [call] = this.waiting;
      if (call === undefined || this.heldTokens() + call.ids.length + call.sampled > this.kvTokens) return;
      this.waiting.shift();
      const { cachedTokens } = this.cache.admit(call.ids, '', '');
      this.calls++;
      this.promptTokens += call.ids.length;
      this.cachedTokens += cachedTokens;
      call.uncomputed = call.ids.length + call.sampled - cachedTokens;
      this.running.push(call);
    }
  }

  /** Ends a step: adds one token to every running reply. Returns whether a reply has ended. */
  private finishStep(): boolean {
    let hasEnded = false;
    for (const call of this.running) {
      if (!call.isSampling) continue;
      call.tokensLeft--;
      call.sampled++;
      this.sampledTokens++;
      if (call.tokensLeft > 0) continue;
      hasEnded = true;
      call.resolve(this.replyTo(call));
    }
    this.running = this.running.filter((call) => call.tokensLeft > 0);
    this.preempt();
    this.isStepping = false;
    this.step();
    return hasEnded;
  }

  /** Puts the newest replies back into the queue until the others fit into the cache. */
  private preempt(): void {
    while (this.heldTokens() > this.kvTokens && this.running.length > 1) {
      const call = this.running.pop();
      if (call === undefined) return;
      call.isSampling = false;
      this.waiting.unshift(call);
      this.preemptions++;
    }
  }

  /** Returns the number of tokens of all running calls, prompts and replies. */
  private heldTokens(): number {
    return this.running.reduce((sum, { ids, sampled }) => sum + ids.length + sampled, 0);
  }

  private replyTo({ ids, request: { maxTokens, seed } }: RunningCall): GenerateReply {
    const count = maxTokens ?? 0;
    const responseIds = Int32Array.from({ length: count }, (_, i) => (seed ?? 0) + i);
    // Adds the sampled tokens to the prefix cache as well, because the prompt of the next turn contains them.
    this.cache.admit(joined(ids, responseIds), '', '');
    return {
      promptIds: ids,
      responseIds,
      responseLogprobs: new Float32Array(count),
      versionSpans: [{ version: null, start: 0, end: count }],
      routedExperts: null,
      logprobsMode: 'processed',
      message: { role: 'assistant', content: '' },
      finishReason: 'stop',
      stop: null,
      usage: { prompt_tokens: ids.length, completion_tokens: count, cached_tokens: null },
    };
  }
}

function unused(): never {
  throw new Error('this bench makes no such call');
}

export function joined(...parts: readonly Int32Array[]): Int32Array {
  const all = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
