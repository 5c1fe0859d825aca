import type { FinishReason, VersionSpan } from '../schema/index.ts';
import type { Constraint } from './constraint.ts';
import type { LedgerEntry, PromptForm } from './ledger.ts';
import type { NextToken, Policy, ReplyWalk } from './policy.ts';
import { uniform } from './random.ts';
import { draw, hasPenalties, processed, type SamplerParams } from './sampler.ts';
import { VisibleText } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';
import type { Weights } from './weights.ts';

export type SamplingParams = SamplerParams & {
  /** Most tokens of the reply; already bounded by the context length. */
  readonly maxTokens: number;
  readonly stop: readonly string[];
  readonly stopTokenIds: readonly number[];
  readonly ignoreEos: boolean;
  readonly includeStop: boolean;
  readonly skipSpecial: boolean;
  /** Null: the server's own seed and a counter. */
  readonly seed: number | null;
  /** What the reply's form must be; null: whatever the policy writes. */
  readonly constraint: Constraint | null;
};

export type GenerateCall = {
  /** Without a prefix such as `chatcmpl-`; what an abort names. */
  readonly requestId: string;
  readonly choice: number;
  /** Path of the route that it came by. */
  readonly endpoint: string;
  readonly promptForm: PromptForm;
  readonly sessionId: string | null;
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  /** How many alternatives to report per token. */
  readonly topCount: number;
  readonly cacheSalt: string;
  /** Most tokens per event; null: as many as are ready. */
  readonly eventTokens: number | null;
  readonly signal: AbortSignal;
  readonly faults: CallFaults;
};

/** Injected misbehaviour that the sampling itself carries out. */
export type CallFaults = {
  readonly names: readonly string[];
  readonly malformedCalls: boolean;
  /** Reply length at which the engine aborts the call by itself; null: never. */
  readonly abortAt: number | null;
  /** Reply length at which nothing more comes; null: never. */
  readonly stallAt: number | null;
  /** Reply length at which other weights are put in effect without a word; null: never. */
  readonly swapAt: number | null;
  /** All delays are multiplied by it. */
  readonly slowFactor: number;
};

export const NO_FAULTS: CallFaults = {
  names: [],
  malformedCalls: false,
  abortAt: null,
  stallAt: null,
  swapAt: null,
  slowFactor: 1,
};

export type Alternative = { readonly id: number; readonly raw: number; readonly processed: number };

export type SampledToken = Alternative & {
  readonly version: string;
  /** The most likely candidates by raw probability, best first; as many as asked for and possible. */
  readonly top: readonly Alternative[];
};

export type Finish = { readonly reason: Exclude<FinishReason, 'tool_calls'>; readonly stop: string | number | null };

const NO_TOP: readonly Alternative[] = [];

/** One reply being sampled, token by token. Knows nothing of time, slots or wire formats. */
export class Run {
  readonly call: GenerateCall;
  readonly text: VisibleText;
  readonly tokens: SampledToken[] = [];
  readonly controller = new AbortController();
  /** Goes on although the engine is paused, since the pause waits for it. */
  exempt = false;
  finish: Finish | null = null;
  private readonly vocabulary: Vocabulary;
  private readonly walk: ReplyWalk;
  private readonly randomKey: readonly number[];
  private readonly promptSet: ReadonlySet<number>;
  private readonly counts = new Map<number, number>();
  private readonly startedMs: number;

  /** `randomKey` decides the draws when the call brings no seed. */
  constructor(
    call: GenerateCall,
    parts: {
      readonly vocabulary: Vocabulary;
      readonly policy: Policy;
      readonly randomKey: readonly number[];
      readonly nowMs: number;
    },
  ) {
    this.call = call;
    this.vocabulary = parts.vocabulary;
    this.startedMs = parts.nowMs;
    this.walk = parts.policy.begin(call.promptIds, call.faults.malformedCalls, call.params.constraint);
    this.text = new VisibleText(parts.vocabulary, call.params);
    this.randomKey = call.params.seed === null ? parts.randomKey : seedKey(call.params.seed, call.choice);
    this.promptSet = hasPenalties(call.params) ? new Set(call.promptIds) : new Set();
  }

  /** Samples one token with `weights`, and sets `finish` when it ends the reply. */
  step(weights: Weights): SampledToken {
    const { params } = this.call;
    const next = this.walk.next(weights);
    const logps = processed(next, params, { prompt: this.promptSet, counts: this.counts });
    const picked = logps.length === 1 ? 0 : draw(logps, params, uniform(...this.randomKey, this.tokens.length));
    const id = next.ids[picked] as number;
    const token = {
      id,
      raw: next.logps[picked] as number,
      processed: logps[picked] as number,
      version: weights.version,
      top: this.call.topCount > 0 ? alternatives(next, logps, this.call.topCount) : NO_TOP,
    };
    this.walk.advance(id);
    this.tokens.push(token);
    if (hasPenalties(params)) this.counts.set(id, (this.counts.get(id) ?? 0) + 1);
    this.finish = this.finishAfter(id);
    return token;
  }

  /** The ledger's entry; `finish` must be set. */
  entry(nowMs: number): Omit<LedgerEntry, 'sequence'> {
    const finish = this.finish ?? { reason: 'abort', stop: null };
    return {
      request_id: this.call.requestId,
      choice: this.call.choice,
      endpoint: this.call.endpoint,
      prompt_form: this.call.promptForm,
      session_id: this.call.sessionId,
      scenario: this.walk.reply.scenario,
      rule: this.walk.reply.rule,
      prompt_ids: this.call.promptIds,
      response_ids: this.tokens.map(({ id }) => id),
      raw_logprobs: this.tokens.map(({ raw }) => raw),
      processed_logprobs: this.tokens.map((token) => token.processed),
      version_spans: versionSpans(this.tokens),
      params: this.call.params,
      finish_reason: finish.reason,
      stop_reason: finish.stop,
      aborted_at: finish.reason === 'abort' ? this.tokens.length : null,
      faults: this.call.faults.names,
      started_ms: this.startedMs,
      ended_ms: nowMs,
    };
  }

  /** What the engine's rules say after `id`: end of turn, stop id, stop string, length. The end's own text stays hidden. */
  private finishAfter(id: number): Finish | null {
    const { params, faults } = this.call;
    const { imEnd, endOfText } = this.vocabulary.special;
    if (!params.ignoreEos && (id === imEnd || id === endOfText)) return { reason: 'stop', stop: null };
    if (params.stopTokenIds.includes(id)) {
      if (params.includeStop) this.text.push(id);
      return { reason: 'stop', stop: id };
    }
    this.text.push(id);
    if (this.text.stop !== null) return { reason: 'stop', stop: this.text.stop };
    if (this.tokens.length >= params.maxTokens) return { reason: 'length', stop: null };
    return faults.abortAt !== null && this.tokens.length >= faults.abortAt ? { reason: 'abort', stop: null } : null;
  }
}

/** A seed of any size as 32-bit halves, and the choice, so that the choices of one request differ. */
function seedKey(seed: number, choice: number): readonly number[] {
  return [seed | 0, Math.floor(seed / 2 ** 32) | 0, choice];
}

function alternatives(next: NextToken, logps: readonly number[], count: number): readonly Alternative[] {
  return next.ids
    .map((id, index) => ({ id, raw: next.logps[index] as number, processed: logps[index] as number }))
    .filter((_, index) => next.permitted?.[index] ?? true)
    .sort((a, b) => b.raw - a.raw)
    .slice(0, count);
}

/** Stretches of one version over the reply's positions, in order and without gaps. */
export function versionSpans(tokens: readonly { readonly version: string }[]): VersionSpan[] {
  const spans: VersionSpan[] = [];
  for (const [index, { version }] of tokens.entries()) {
    const last = spans.at(-1);
    if (last?.version === version) last.end = index + 1;
    else spans.push({ version, start: index, end: index + 1 });
  }
  return spans;
}
