import type { ChatMessage, ChatTool, CompletionRecord, Trace, Trajectory } from '@floe-rl/core/schema';

/** One model call of a session, complete with the parts that its record shares with earlier records. */
export type SessionCall = {
  readonly record: CompletionRecord;
  /** All messages of the request. */
  readonly messages: readonly ChatMessage[];
  /** Number of these messages that the base of the record has too, with its reply. */
  readonly known: number;
  readonly tools: readonly ChatTool[];
  /** Number of token ids of the prompt, and how many of them come from the prompt and the reply of the record's base. */
  readonly promptLength: number;
  readonly keptIds: number;
  readonly training: CallTraining;
};

/** Whether the tokens of a reply are trained. `mask` has 1 for each trained token. */
export type CallTraining =
  | { readonly trace: string; readonly reward: number | null; readonly mask: readonly number[] }
  | { readonly trace: null; readonly why: string };

/** Restores whole requests from records, which hold only differences from earlier records. A record with an unknown base is used as it is. */
export function callsOf(records: readonly CompletionRecord[], trajectory: Trajectory | null): SessionCall[] {
  const calls = new Map<string, SessionCall>();
  const trained = trainedReplies(records, trajectory);
  for (const record of [...records].sort((a, b) => a.index - b.index)) {
    const base = record.request.base === null ? undefined : calls.get(record.request.base);
    const messages = [...(base?.messages.slice(0, record.request.keep) ?? []), ...record.request.messages];
    calls.set(record.completion_id, {
      record,
      messages,
      known: knownMessages(messages, base),
      tools: record.request.tools ?? base?.tools ?? [],
      promptLength: record.prompt.keep + record.prompt.ids.length,
      keptIds: record.prompt.keep,
      training: trained.get(record.completion_id) ?? { trace: null, why: whyExcluded(record, trajectory) },
    });
  }
  return [...calls.values()];
}

/** The messages of the base and its reply need not be shown once more. */
function knownMessages(messages: readonly ChatMessage[], base: SessionCall | undefined): number {
  if (base === undefined) return 0;
  let known = 0;
  while (known < base.messages.length && messages[known] === base.messages[known]) known++;
  return known === base.messages.length && messages[known]?.role === 'assistant' ? known + 1 : known;
}

/** Finds the reply of each completion in its trace. */
function trainedReplies(
  records: readonly CompletionRecord[],
  trajectory: Trajectory | null,
): ReadonlyMap<string, CallTraining> {
  const byId = new Map(records.map((record) => [record.completion_id, record]));
  const found = new Map<string, CallTraining>();
  for (const trace of trajectory?.traces ?? []) {
    let from = 0;
    for (const id of trace.completion_ids) {
      const ids = byId.get(id)?.response_ids;
      if (ids === undefined) continue;
      const at = positionOf(trace, ids, from);
      if (at < 0) continue;
      from = at + ids.length;
      found.set(id, { trace: trace.trace_id, reward: trace.reward, mask: trace.loss_mask.slice(at, from) });
    }
  }
  return found;
}

/**
 * Returns where a reply is in a trace, from a position on; -1 when it is not there. A tool may have repeated the reply, so a place with
 * trained tokens is preferred to an earlier place without.
 */
function positionOf({ response_ids: all, loss_mask: mask }: Trace, ids: readonly number[], from: number): number {
  let first = -1;
  for (let at = from; at + ids.length <= all.length; at++) {
    if (!ids.every((id, index) => all[at + index] === id)) continue;
    if (ids.some((_, index) => mask[at + index] === 1)) return at;
    if (first < 0) first = at;
  }
  return first;
}

function whyExcluded(record: CompletionRecord, trajectory: Trajectory | null): string {
  if (record.call_kind === 'untrained') return 'the agent excluded it';
  if (record.auxiliary) return `it is an auxiliary call (${record.call_kind})`;
  if (record.abandoned) return 'the agent abandoned the reply';
  if (record.undelivered) return 'the reply did not reach the agent';
  if (record.finish_reason === 'abort') return 'the engine broke the reply off';
  return trajectory === null ? 'the session has no trajectory' : 'no trace contains it';
}
