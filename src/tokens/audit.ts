import { FloeError } from '../core/errors.ts';
import type { Audit, DialectName, DriftClass, LinkKind } from '../schema/index.ts';
import type { BuiltTrace, TrainedSpan } from './builders/builder.ts';
import type { Completion } from './completion.ts';
import { expertRowBytes } from './expert-rows.ts';
import type { GraphNode, TokenGraph } from './graph.ts';
import { checkSteps, checkTrace } from './trace-check.ts';

/**
 * Token counts of the session's completions with one dialect and one engine. `exact` is the number of trained tokens that follow, in their
 * trace, exactly the ids after which they were sampled.
 */
export type AuditTally = {
  readonly dialect: DialectName;
  readonly engineId: string;
  sampled: number;
  trained: number;
  exact: number;
  readonly excluded: Record<string, number>;
  readonly links: Record<LinkKind, number>;
  readonly drift: Partial<Record<DriftClass, number>>;
};

export type AuditReport = { readonly audit: Audit; readonly tallies: readonly AuditTally[] };

/**
 * Classifies every sampled token as trained or excluded and counts both. It uses only the completions and the finished traces, so that an
 * error of the builder is noticed. For each trained span it compares ids, log-probabilities, versions and routed experts with the
 * completion that the span names, and the ids before the span with those after which it was sampled. A completion without ids (capture
 * mode `text`) counts with the number of tokens that its engine reported.
 *
 * Throws `audit_failed`, with the numbers, when a completion or a trace contradicts itself; when a token is trained differently from how
 * it was sampled, trained twice, neither trained nor excluded, or both; or when the builder marks a context as exact that is not.
 */
export function auditTraces(
  graph: TokenGraph,
  traces: readonly BuiltTrace[],
  excluded: ReadonlyMap<string, string>,
): AuditReport {
  const ledger = new Map<string, Entry>();
  for (const node of graph.nodes) ledger.set(node.completion.completionId, entryOf(node));
  checkSteps(traces);
  let masked = 0;
  traces.forEach((trace, index) => {
    const checked = checkTrace(trace, index, (id) => ledger.get(id)?.node.completion);
    masked += checked.masked;
    trace.spans.forEach((span, at) => {
      const entry = ledger.get(span.completionId);
      if (entry !== undefined) markTrained(entry, span, checked.exact[at] === true, index);
    });
  });
  for (const id of excluded.keys()) {
    if (!ledger.has(id)) throw failed(`${id} is excluded, but was never recorded`, { completion_id: id });
  }
  const tallies = new Tallies();
  const completions = { recorded: ledger.size, trained: 0, excluded: {} };
  for (const entry of ledger.values()) addCompletion(entry, excluded, tallies.of(entry.node.completion), completions);
  const audit = sumOf(tallies.all(), completions);
  const { sampled, trained } = audit.tokens;
  const excludedTokens = Object.values(audit.tokens.excluded).reduce((sum, tokens) => sum + tokens, 0);
  if (sampled !== trained + excludedTokens || trained !== masked) {
    throw failed('the token sums do not hold', { sampled, trained, excluded: excludedTokens, mask: masked });
  }
  return { audit, tallies: tallies.all() };
}

/**
 * A completion and what is trained of it. `trainedAt` has one element per response position, which is 1 once a span trains that position;
 * `trained` and `exact` are numbers of tokens.
 */
type Entry = { readonly node: GraphNode; readonly trainedAt: Uint8Array; trained: number; exact: number };

function entryOf(node: GraphNode): Entry {
  const { completion } = node;
  const { completionId, responseIds, responseLogprobs, versionSpans } = completion;
  const length = responseIds.length;
  const facts = { completion_id: completionId, ids: length };
  if (responseLogprobs.length !== length) {
    throw failed(`completion ${completionId} has ids and logprobs of different length`, {
      ...facts,
      logprobs: responseLogprobs.length,
    });
  }
  if (completion.capture.mode === 'text' && length > 0) {
    throw failed(`completion ${completionId} has ids, although its engine reports none`, facts);
  }
  const end = versionSpans.reduce((at, span) => (span.start === at && span.end >= at ? span.end : Number.NaN), 0);
  if (end !== length) {
    throw failed(`the version spans of completion ${completionId} do not cover its response`, {
      ...facts,
      version_spans: versionSpans,
    });
  }
  for (let at = 0; at < length; at++) {
    if (!Number.isFinite(responseLogprobs[at])) {
      throw failed(`completion ${completionId} has a logprob that is not a finite number at ${at}`, {
        ...facts,
        position: at,
      });
    }
  }
  checkExperts(completion);
  return { node, trainedAt: new Uint8Array(length), trained: 0, exact: 0 };
}

function checkExperts({ completionId, promptIds, responseIds, routedExperts }: Completion): void {
  if (routedExperts === null) return;
  const { shape, start, data } = routedExperts;
  const positions = promptIds.length + responseIds.length;
  if (data.length !== shape[0] * expertRowBytes(routedExperts) || start + shape[0] > Math.max(positions - 1, 0)) {
    throw failed(`the routed experts of completion ${completionId} are not those of its tokens`, {
      completion_id: completionId,
      positions,
      shape,
      start,
      bytes: data.length,
    });
  }
}

/**
 * Marks the response positions of a span as trained. `exact` is whether the span follows the context in which it was sampled; `index` is
 * the trace's number. Throws `audit_failed` when a position is trained twice.
 */
function markTrained(entry: Entry, { completionId, offset, length }: TrainedSpan, exact: boolean, index: number): void {
  const { trainedAt } = entry;
  for (let at = offset; at < offset + length; at++) {
    if (trainedAt[at] !== 0) {
      throw failed(`position ${at} of ${completionId} is trained twice`, { trace: index, completion_id: completionId });
    }
    trainedAt[at] = 1;
  }
  entry.trained += length;
  if (exact) entry.exact += length;
}

/**
 * Adds a completion's tokens to `tally` and the completion to `completions`. Throws `audit_failed` unless the completion is trained as a
 * whole or excluded as a whole.
 */
function addCompletion(
  { node, trained, exact }: Entry,
  excluded: ReadonlyMap<string, string>,
  tally: AuditTally,
  completions: Audit['completions'],
): void {
  const { completion } = node;
  const ids = completion.responseIds.length;
  const reason = excluded.get(completion.completionId);
  const sampled = completion.capture.mode === 'text' ? completion.usage.completion_tokens : ids;
  tally.sampled += sampled;
  tally.trained += trained;
  tally.exact += exact;
  tally.links[node.link]++;
  if (node.drift !== null) tally.drift[node.drift] = (tally.drift[node.drift] ?? 0) + 1;
  if (reason !== undefined && trained === 0) {
    tally.excluded[reason] = (tally.excluded[reason] ?? 0) + sampled;
    completions.excluded[reason] = (completions.excluded[reason] ?? 0) + 1;
  } else if (reason === undefined && trained === ids && ids > 0) {
    completions.trained++;
  } else {
    const { completionId } = completion;
    throw failed(`${trained} of the ${ids} tokens of ${completionId} are trained, ${reason ?? 'nothing'} is excluded`, {
      completion_id: completionId,
      sampled: ids,
      trained,
      excluded: reason ?? null,
    });
  }
}

class Tallies {
  /** Token counts by the name of the dialect and the id of the engine, joined by a space. */
  private readonly byOrigin = new Map<string, AuditTally>();

  /** Returns the counts of the completion's dialect and engine. The first call for a pair creates them with zeros. */
  of({ dialect, engineId }: Completion): AuditTally {
    const origin = `${dialect} ${engineId}`;
    const known = this.byOrigin.get(origin);
    if (known !== undefined) return known;
    const fresh = { dialect, engineId, sampled: 0, trained: 0, exact: 0, excluded: {}, links: noLinks(), drift: {} };
    this.byOrigin.set(origin, fresh);
    return fresh;
  }

  all(): AuditTally[] {
    return [...this.byOrigin.values()];
  }
}

function sumOf(tallies: readonly AuditTally[], completions: Audit['completions']): Audit {
  const tokens = { sampled: 0, trained: 0, excluded: {} };
  const links = noLinks();
  const drift = {};
  let exact = 0;
  for (const tally of tallies) {
    tokens.sampled += tally.sampled;
    tokens.trained += tally.trained;
    exact += tally.exact;
    addAll(tokens.excluded, tally.excluded);
    addAll(links, tally.links);
    addAll(drift, tally.drift);
  }
  return {
    tokens,
    completions,
    links,
    drift,
    exact_context_share: tokens.trained === 0 ? null : exact / tokens.trained,
  };
}

function addAll(sums: Record<string, number>, counts: Readonly<Record<string, number>>): void {
  for (const [name, count] of Object.entries(counts)) sums[name] = (sums[name] ?? 0) + count;
}

function noLinks(): Record<LinkKind, number> {
  return { exact: 0, rerendered: 0, fork: 0, root: 0 };
}

function failed(message: string, details: Record<string, unknown>): FloeError {
  return new FloeError('audit_failed', `audit: ${message}`, details);
}
