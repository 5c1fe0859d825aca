import { z } from 'zod';
import { hashText, uniform } from './random.ts';

/** Names of the faults that can be injected. docs/sim-faults.md describes the effect of each on a client. */
export const FAULT_KINDS = [
  'http_400_context',
  'http_429',
  'http_500',
  'http_503',
  'reset_before',
  'reset_mid',
  'stall',
  'missing_ids',
  'logprobs_length',
  'logprob_nan',
  'logprob_null',
  'logprob_positive',
  'usage_mismatch',
  'foreign_ids',
  'error_body_200',
  'garbage',
  'malformed_tool_call',
  'abort',
  'stream_lost_ids',
  'duplicate_call_ids',
  'chunk_split',
  'model_changed',
  'version_changed',
  'tokenizer_mismatch',
  'off_by_one_logprobs',
  'echo_other_prompt',
  'dies_mid_stream',
  'slow',
] as const;
export type FaultKind = (typeof FAULT_KINDS)[number];

/**
 * Faults that hit calls which render or tokenize text. These calls are counted separately from generation calls, which all other faults
 * hit.
 */
const TOKENIZING_KINDS: ReadonlySet<FaultKind> = new Set(['tokenizer_mismatch']);

/** Whether a call samples a reply (`generation`) or only turns text into ids (`tokenizing`). */
export type CallScope = 'generation' | 'tokenizing';

/** One injected fault and the conditions for the calls that it hits. A call must meet every condition that is given. */
export const faultSchema = z.strictObject({
  kind: z.enum(FAULT_KINDS),
  on_calls: z
    .array(z.int().min(1))
    .min(1)
    .optional()
    .describe('numbers of the calls that it hits, counted from 1 since the fault was set'),
  probability: z
    .number()
    .gt(0)
    .max(1)
    .optional()
    .describe('probability of hitting each call, drawn from the server seed'),
  times: z.int().min(1).optional().describe('maximum number of calls that it hits'),
  session_id: z.string().optional().describe('hits only calls with this X-Session-ID'),
  after_tokens: z
    .int()
    .min(0)
    .default(2)
    .describe('for reset_mid, dies_mid_stream, stall, abort and version_changed: reply length at which it happens'),
  factor: z.number().gt(0).default(4).describe('for slow: all delays of the call are multiplied by it'),
  down_calls: z.int().min(0).default(3).describe('for dies_mid_stream: connections refused afterwards'),
});
export type Fault = z.infer<typeof faultSchema>;
export type FaultInput = z.input<typeof faultSchema>;

/** Schema of the body of `POST /__sim/faults`. */
export const faultListSchema = z.strictObject({ faults: z.array(faultSchema) });

/** The injected faults that hit one call. */
export type FaultPlan = { readonly hits: readonly Fault[]; has(kind: FaultKind): boolean };

/** Decides which calls each injected fault hits. The same seed, faults and order of calls give the same decisions. */
export class FaultInjector {
  private readonly seed: number;
  private faults: { readonly fault: Fault; fired: number }[] = [];
  private calls: Record<CallScope, number> = { generation: 0, tokenizing: 0 };

  constructor(seed: number, faults: readonly Fault[] = []) {
    this.seed = seed;
    this.set(faults);
  }

  /** Replaces all injected faults and sets the number of counted calls to 0. */
  set(faults: readonly Fault[]): void {
    this.faults = faults.map((fault) => ({ fault, fired: 0 }));
    this.calls = { generation: 0, tokenizing: 0 };
  }

  /** The faults in effect, each with the number of calls that it has hit. */
  list(): readonly (Fault & { readonly fired: number })[] {
    return this.faults.map(({ fault, fired }) => ({ ...fault, fired }));
  }

  /** Counts one call and returns the faults that hit it. `sessionId` is `null` when the caller sent no session id. */
  plan(sessionId: string | null, scope: CallScope = 'generation'): FaultPlan {
    const call = ++this.calls[scope];
    const hits: Fault[] = [];
    for (const [index, state] of this.faults.entries()) {
      const { fault } = state;
      if (TOKENIZING_KINDS.has(fault.kind) !== (scope === 'tokenizing')) continue;
      if (fault.times !== undefined && state.fired >= fault.times) continue;
      if (fault.session_id !== undefined && fault.session_id !== sessionId) continue;
      if (fault.on_calls !== undefined && !fault.on_calls.includes(call)) continue;
      if (
        fault.probability !== undefined &&
        uniform(this.seed, hashText(fault.kind), index, call) >= fault.probability
      ) {
        continue;
      }
      state.fired++;
      hits.push(fault);
    }
    return { hits, has: (kind) => hits.some((fault) => fault.kind === kind) };
  }
}
