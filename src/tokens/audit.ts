import { FloeError } from '../core/errors.ts';
import type { Audit, LinkKind, VersionSpan } from '../schema/index.ts';
import type { BuiltTrace, TrainedSpan } from './builders/builder.ts';
import type { Completion } from './completion.ts';
import type { TokenGraph } from './graph.ts';
import { bytesOf, sameIds } from './sequence.ts';

/**
 * Counts what became of every sampled token, from the completions and the finished traces alone: nothing that a builder
 * worked out on its way is taken over. For each trained run it compares ids, log-probabilities and versions with the
 * completion that the run names, and the ids before it with those that it was sampled after.
 *
 * Throws `audit_failed`, with the numbers, when a completion or a trace contradicts itself, a token is trained that was
 * not sampled so, a token is trained twice, is neither trained nor excluded, or is both, or a claimed context is wrong.
 */
export function auditTraces(
  graph: TokenGraph,
  traces: readonly BuiltTrace[],
  excluded: ReadonlyMap<string, string>,
): Audit {
  const ledger = new Map<string, Entry>();
  for (const { completion } of graph.nodes) ledger.set(completion.completionId, entryOf(completion));
  let exactTokens = 0;
  traces.forEach((trace, index) => {
    checkColumns(trace, index);
    for (const span of trace.spans) exactTokens += checkSpan(trace, index, span, ledger);
  });
  const audit = settle(ledger, excluded, countLinks(graph), countDrift(graph));
  const { sampled, trained } = audit.tokens;
  const excludedTokens = sumOf(audit.tokens.excluded);
  const maskTokens = traces.reduce((sum, trace) => sum + countTrained(trace.lossMask), 0);
  if (sampled !== trained + excludedTokens || trained !== maskTokens) {
    throw failed('the token sums do not hold', { sampled, trained, excluded: excludedTokens, mask: maskTokens });
  }
  return { ...audit, exact_context_share: trained === 0 ? null : exactTokens / trained };
}

/** A completion and which of its positions are trained. */
type Entry = { readonly completion: Completion; readonly trainedAt: Uint8Array; trained: number };

function entryOf(completion: Completion): Entry {
  const { completionId, responseIds, responseLogprobs, versionSpans } = completion;
  const length = responseIds.length;
  if (responseLogprobs.length !== length) {
    throw failed(`completion ${completionId} has ids and logprobs of different length`, {
      completion_id: completionId,
      ids: length,
      logprobs: responseLogprobs.length,
    });
  }
  const end = versionSpans.reduce((at, span) => (span.start === at && span.end >= at ? span.end : Number.NaN), 0);
  if (end !== length) {
    throw failed(`the version spans of completion ${completionId} do not cover its response`, {
      completion_id: completionId,
      ids: length,
      version_spans: versionSpans,
    });
  }
  const bad = responseLogprobs.findIndex((logprob) => !Number.isFinite(logprob));
  if (bad >= 0) {
    throw failed(`completion ${completionId} has a logprob that is not a finite number at ${bad}`, {
      completion_id: completionId,
      position: bad,
    });
  }
  return { completion, trainedAt: new Uint8Array(length), trained: 0 };
}

function checkColumns(trace: BuiltTrace, index: number): void {
  const { ids, promptLength, lossMask, logprobs, spans } = trace;
  const length = ids.length - promptLength;
  if (promptLength < 0 || lossMask.length !== length || logprobs.length !== length) {
    throw failed(`the columns of trace ${index} differ in length`, {
      trace: index,
      ids: length,
      loss_mask: lossMask.length,
      logprobs: logprobs.length,
    });
  }
  let end = 0;
  for (const span of spans) {
    if (span.start < end || span.length < 1)
      throw failed(`the spans of trace ${index} overlap`, { trace: index, span });
    checkContext(trace, index, end, span.start);
    end = span.start + span.length;
    const trained = end <= length ? countTrained(lossMask.subarray(span.start, end)) : 0;
    if (trained !== span.length) {
      throw failed(`trace ${index} does not train a span that it names`, { trace: index, span, trained });
    }
  }
  checkContext(trace, index, end, length);
  const versioned = trace.versionSpans.reduce((sum, span) => sum + span.end - span.start, 0);
  const named = spans.reduce((sum, span) => sum + span.length, 0);
  if (versioned !== named) throw failed(`the version spans of trace ${index} miss`, { trace: index, versioned, named });
}

/** Positions that no span names: mask and logprob must be 0. */
function checkContext(trace: BuiltTrace, index: number, from: number, to: number): void {
  for (let at = from; at < to; at++) {
    if (trace.lossMask[at] !== 0 || trace.logprobs[at] !== 0) {
      throw failed(`trace ${index} trains position ${at}, which was not sampled`, { trace: index, position: at });
    }
  }
}

/** Returns how many of the span's tokens stand in the context that they were sampled in. */
function checkSpan(trace: BuiltTrace, index: number, span: TrainedSpan, ledger: ReadonlyMap<string, Entry>): number {
  const facts = { trace: index, span };
  const entry = ledger.get(span.completionId);
  if (entry === undefined) throw failed(`trace ${index} trains a completion that was never recorded`, facts);
  const { completion, trainedAt } = entry;
  const at = trace.promptLength + span.start;
  const { responseIds, responseLogprobs } = completion;
  if (span.offset < 0 || !sameIds(trace.ids, at, responseIds, span.offset, span.length)) {
    throw failed(`trace ${index} has other ids than ${span.completionId} was sampled with`, facts);
  }
  const logprobs = bytesOf(trace.logprobs.subarray(span.start, span.start + span.length));
  if (!logprobs.equals(bytesOf(responseLogprobs.subarray(span.offset, span.offset + span.length)))) {
    throw failed(`trace ${index} has other logprobs than ${span.completionId} was sampled with`, facts);
  }
  checkVersions(trace.versionSpans, completion.versionSpans, span, index);
  for (let i = span.offset; i < span.offset + span.length; i++) {
    if (trainedAt[i] !== 0) throw failed(`position ${i} of ${span.completionId} is trained twice`, facts);
    trainedAt[i] = 1;
  }
  entry.trained += span.length;
  const exact = isExactContext(trace, span, completion);
  if (span.exactContext && !exact) {
    throw failed(`trace ${index} claims a context that ${span.completionId} was not sampled in`, facts);
  }
  return exact ? span.length : 0;
}

function isExactContext(trace: BuiltTrace, span: TrainedSpan, completion: Completion): boolean {
  const before = trace.promptLength + span.start;
  const { promptIds, responseIds } = completion;
  if (before !== promptIds.length + span.offset) return false;
  return (
    sameIds(trace.ids, 0, promptIds, 0, promptIds.length) &&
    sameIds(trace.ids, promptIds.length, responseIds, 0, span.offset)
  );
}

function checkVersions(
  traced: readonly VersionSpan[],
  sampled: readonly VersionSpan[],
  span: TrainedSpan,
  index: number,
): void {
  const shift = span.start - span.offset;
  const end = span.start + span.length;
  for (const { version, start: from, end: to } of sampled) {
    const start = Math.max(from + shift, span.start);
    const stop = Math.min(to + shift, end);
    let covered = 0;
    for (const other of traced) {
      if (other.version === version) covered += Math.max(0, Math.min(other.end, stop) - Math.max(other.start, start));
    }
    if (covered !== Math.max(0, stop - start)) {
      throw failed(`trace ${index} names other versions than ${span.completionId} was sampled with`, {
        trace: index,
        span,
        version,
        tokens: stop - start,
        covered,
      });
    }
  }
}

function settle(
  ledger: ReadonlyMap<string, Entry>,
  excluded: ReadonlyMap<string, string>,
  links: Audit['links'],
  drift: Audit['drift'],
): Audit {
  const tokens = { sampled: 0, trained: 0, excluded: {} as Record<string, number> };
  const completions = { recorded: ledger.size, trained: 0, excluded: {} as Record<string, number> };
  for (const id of excluded.keys()) {
    if (!ledger.has(id)) throw failed(`${id} is excluded, but was never recorded`, { completion_id: id });
  }
  for (const [id, { completion, trained }] of ledger) {
    const sampled = completion.responseIds.length;
    const reason = excluded.get(id);
    tokens.sampled += sampled;
    tokens.trained += trained;
    if (reason !== undefined && trained === 0) {
      tokens.excluded[reason] = (tokens.excluded[reason] ?? 0) + sampled;
      completions.excluded[reason] = (completions.excluded[reason] ?? 0) + 1;
    } else if (reason === undefined && trained === sampled && sampled > 0) {
      completions.trained++;
    } else {
      throw failed(`${trained} of the ${sampled} tokens of ${id} are trained, ${reason ?? 'nothing'} is excluded`, {
        completion_id: id,
        sampled,
        trained,
        excluded: reason ?? null,
      });
    }
  }
  return { tokens, completions, links, drift, exact_context_share: null };
}

function countLinks(graph: TokenGraph): Record<LinkKind, number> {
  const links: Record<LinkKind, number> = { exact: 0, rerendered: 0, fork: 0, root: 0 };
  for (const node of graph.nodes) links[node.link]++;
  return links;
}

function countDrift(graph: TokenGraph): Audit['drift'] {
  const drift: Audit['drift'] = {};
  for (const node of graph.nodes) if (node.drift !== null) drift[node.drift] = (drift[node.drift] ?? 0) + 1;
  return drift;
}

function countTrained(mask: Uint8Array): number {
  let count = 0;
  for (let i = 0; i < mask.length; i++) count += mask[i] as number;
  return count;
}

function sumOf(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

function failed(message: string, details: Record<string, unknown>): FloeError {
  return new FloeError('audit_failed', `audit: ${message}`, details);
}
