import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { checkAgainstLedger, type LedgerEntry } from '@floe-rl/sim';
import { z } from 'zod';

/**
 * Tokens as a trainer of another ecosystem gets them. `ids`, `mask` (1 for trained tokens) and `logprobs` have the same length. With a
 * `completion_id` the sequence is one model call, otherwise a whole trace.
 */
const sequenceSchema = z.object({
  ids: z.array(z.int()),
  mask: z.array(z.int().min(0).max(1)),
  logprobs: z.array(z.number()),
  completion_id: z.string().optional(),
});
type Sequence = z.output<typeof sequenceSchema>;

/** What one interface returned for one row. Further fields depend on the interface. */
export const deliverySchema = z.looseObject({
  face: z.string(),
  row: z.string(),
  session_id: z.string().optional(),
  reward: z.number().nullable().optional(),
  /** Number of decimals to which the interface rounds log-probabilities; `null` or absent when it does not. */
  decimals: z.int().nullable().optional(),
  /** Share of the session's trained tokens that the interface delivers; absent when it delivers all. */
  delivered_fraction: z.number().optional(),
  sequences: z.array(sequenceSchema).optional(),
  /** Why nothing was delivered, where this machine cannot run the interface. */
  skipped: z.string().optional(),
});
export type Delivery = z.output<typeof deliverySchema>;

/**
 * Compares the tokens and the reward of a delivery with the session's result and with the ledger of the engine that sampled the tokens.
 * Returns what differs.
 */
export function differences(delivery: Delivery, result: SessionResult, ledger: readonly LedgerEntry[]): string[] {
  const { trajectory, reward } = result;
  const sequences = delivery.sequences ?? [];
  if (delivery.reward !== reward) return [`the reward is ${delivery.reward}, not ${reward}`];
  if (trajectory === null) return ['the session has no trajectory'];
  if (sequences.some(({ ids, mask, logprobs }) => ids.length !== mask.length || ids.length !== logprobs.length)) {
    return ['a sequence has arrays of different lengths'];
  }
  if (result.policy.use !== 'train') return untrainedDifferences(sequences, trajectory.traces);
  const traces: Trace[] = [];
  for (const sequence of sequences) {
    const trace = claimedTrace(sequence, trajectory.traces, delivery.decimals ?? null);
    if (typeof trace === 'string') return [trace];
    traces.push(trace);
  }
  const trained = traces.reduce((sum, { loss_mask }) => sum + loss_mask.filter((bit) => bit === 1).length, 0);
  const expected = Math.round(result.trainable_tokens * (delivery.delivered_fraction ?? 1));
  if (trained !== expected) return [`${trained} tokens are trained, not ${expected}`];
  const audit = { ...trajectory.audit, tokens: { ...trajectory.audit.tokens, trained } };
  const claimed = { session_id: result.session_id, trajectory: { ...trajectory, traces, audit } };
  const report = checkAgainstLedger([claimed], ledger, 'processed');
  const inexact = trained - report.exact_context_tokens;
  return [
    ...report.mismatches.map(({ what, detail }) => `${what}: ${detail}`),
    ...(inexact === 0 ? [] : [`${inexact} tokens follow another context than the one in which they were sampled`]),
  ];
}

/**
 * Checks the sequences of a sample whose policy forbids to train it. Their ids must be ids of the session's traces, and no token may be
 * trained.
 */
function untrainedDifferences(sequences: readonly Sequence[], traces: readonly Trace[]): string[] {
  if (sequences.length === 0) return ['there are no tokens'];
  return sequences.flatMap(({ ids, mask }) => [
    ...(traces.some((trace) => startsWith(idsOf(trace), ids)) ? [] : ['ids: they are not those of a trace']),
    ...(mask.includes(1) ? ['mask: tokens are trained that must not be'] : []),
  ]);
}

/**
 * Returns the trace that a sequence comes from, with the tokens of the sequence. Returns a text with the reason when it fits none of the
 * session's traces.
 */
function claimedTrace(sequence: Sequence, traces: readonly Trace[], decimals: number | null): Trace | string {
  const { ids, mask, logprobs, completion_id: completionId } = sequence;
  const trace =
    completionId === undefined
      ? (traces.find((one) => startsWith(idsOf(one), ids)) ?? traces.find((one) => idsOf(one).length === ids.length))
      : traces.find((one) => one.completion_ids.includes(completionId));
  if (trace === undefined) return `no trace of the session is ${completionId ?? `${ids.length} tokens long`}`;
  const start = completionId === undefined ? trace.prompt_ids.length : mask.indexOf(1);
  if (mask.slice(0, start).includes(1)) return 'tokens of a prompt are trained';
  const response = { response_ids: ids.slice(start), loss_mask: mask.slice(start) };
  const exact = decimals === null ? logprobs.slice(start) : restored(logprobs.slice(start), trace, decimals);
  if (exact === null) return `log-probabilities differ by more than their rounding to ${decimals} decimals`;
  const claimed = { ...trace, prompt_ids: ids.slice(0, start), ...response, response_logprobs: exact };
  if (completionId === undefined) return claimed;
  const version = trace.version_spans[0]?.version ?? null;
  const spans = [{ version, start: 0, end: response.response_ids.length }];
  return { ...claimed, completion_ids: [completionId], version_spans: spans };
}

/** Returns the exact log-probabilities of a trace; `null` when one of them does not round to the given value. */
function restored(rounded: readonly number[], trace: Trace, decimals: number): number[] | null {
  const tolerance = 0.5001 * 10 ** -decimals;
  const exact = trace.response_logprobs;
  return rounded.every((value, at) => Math.abs(value - (exact[at] ?? Number.NaN)) <= tolerance) ? exact : null;
}

function idsOf({ prompt_ids, response_ids }: Trace): number[] {
  return [...prompt_ids, ...response_ids];
}

function startsWith(ids: readonly number[], beginning: readonly number[]): boolean {
  return beginning.length <= ids.length && beginning.every((id, index) => id === ids[index]);
}

/** Returns copies of a delivery with trained tokens, each with one defect, by the name of the defect. */
export function sabotaged(delivery: Delivery): Readonly<Record<string, Delivery>> {
  const sequences = delivery.sequences ?? [];
  const broken = sequences.findIndex(({ mask }) => mask.includes(1));
  const changed = (change: (sequence: Sequence, firstTrained: number) => Partial<Sequence>): Delivery => ({
    ...delivery,
    sequences: sequences.map((one, index) =>
      index === broken ? { ...one, ...change(one, one.mask.indexOf(1)) } : one,
    ),
  });
  return {
    'a changed id': changed(({ ids }, at) => ({ ids: ids.with(at, (ids[at] ?? 0) + 1) })),
    'a changed id of the context': changed(({ ids }, at) => ({ ids: ids.with(at - 1, (ids[at - 1] ?? 0) + 1) })),
    'a changed log-probability': changed(({ logprobs }, at) => ({
      logprobs: logprobs.with(at, (logprobs[at] ?? 0) - 1e-3),
    })),
    'an untrained token': changed(({ mask }, at) => ({ mask: mask.with(at, 0) })),
    'a trained token of the context': changed(({ mask }, at) => ({ mask: mask.with(at - 1, 1) })),
    'another reward': { ...delivery, reward: (delivery.reward ?? 0) + 1 },
  };
}
