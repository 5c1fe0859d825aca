import { FloeError } from '@floe-rl/core';
import type { Audit, DialectName, DriftClass, LinkKind } from '@floe-rl/core/schema';
import type { BuiltTrace, TrainedSpan } from './builders/builder.ts';
import type { Completion } from './completion.ts';
import { marksOfSession } from './context-marks.ts';
import { expertRowBytes } from './expert-rows.ts';
import type { GraphNode, TokenGraph } from './graph.ts';
import { checkSteps, checkTrace } from './trace-check.ts';

/**
 * Token counts of a session's completions with one dialect and one engine. `exact` is the number of trained tokens with an exact context:
 * the ids before such a token in its trace are exactly the ids after which it was sampled. `constrained` is the
 * number of trained tokens that were sampled under a constraint.
 */
export type AuditTally = {
  readonly dialect: DialectName;
  readonly engineId: string;
  sampled: number;
  trained: number;
  exact: number;
  constrained: number;
  readonly excluded: Record<string, number>;
  readonly links: Record<LinkKind, number>;
  readonly drift: Partial<Record<DriftClass, number>>;
};

export type AuditReport = { readonly audit: Audit; readonly tallies: readonly AuditTally[] };

/**
 * Classifies every sampled token as trained or excluded and counts both. It uses only the completions and the finished traces, so that it
 * detects errors of the builder. For each trained span of a trace, it compares the ids, log-probabilities, versions and routed experts with
 * the completion that the span names. It also compares the ids before the span with the ids that the span was sampled after. For a completion
 * without ids (capture mode `text`), the number of tokens that its engine reported is counted.
 *
 * Throws `audit_failed`, with the numbers, in these cases:
 * - A completion or a trace contradicts itself.
 * - A trained token differs from the sampled token.
 * - A token is trained twice.
 * - A token is neither trained nor excluded, or both.
 * - The builder wrongly marks a context as exact.
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
  const audit = sumOf(tallies.all(), completions, graph);
  const { sampled, trained } = audit.tokens;
  const excludedTokens = Object.values(audit.tokens.excluded).reduce((sum, tokens) => sum + tokens, 0);
  if (sampled !== trained + excludedTokens || trained !== masked) {
    throw failed('the token sums do not hold', { sampled, trained, excluded: excludedTokens, mask: masked });
  }
  return { audit, tallies: tallies.all() };
}

/**
 * A completion and its trained tokens. `trainedAt` has one element per response position, which is 1 once a span trains that position.
 * `trained` is the number of trained tokens. `exact` is the number of trained tokens with an exact context.
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
 * Marks the response positions of a span as trained. `exact` is whether the span follows the context in which it was sampled. `index` is
 * the index of the trace, for the error message. Throws `audit_failed` when a position is trained twice.
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
 * Adds the counts of one completion to `tally` and `completions`. Throws `audit_failed` unless all of the completion's tokens are trained
 * or the whole completion is excluded.
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
  if (completion.request.constraint !== null) tally.constrained += trained;
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
  /** Maps the dialect name and the engine id of completions, joined by a space, to their token counts. */
  private readonly byOrigin = new Map<string, AuditTally>();

  /** Returns the counts for the completion's dialect and engine. The first call for such a pair creates them with zeros. */
  of({ dialect, engineId }: Completion): AuditTally {
    const origin = `${dialect} ${engineId}`;
    const known = this.byOrigin.get(origin);
    if (known !== undefined) return known;
    const none = { sampled: 0, trained: 0, exact: 0, constrained: 0 };
    const fresh = { dialect, engineId, ...none, excluded: {}, links: noLinks(), drift: {} };
    this.byOrigin.set(origin, fresh);
    return fresh;
  }

  all(): AuditTally[] {
    return [...this.byOrigin.values()];
  }
}

function sumOf(tallies: readonly AuditTally[], completions: Audit['completions'], graph: TokenGraph): Audit {
  const marks = marksOfSession(graph);
  const tokens = { sampled: 0, trained: 0, excluded: {}, constrained: 0 };
  const links = noLinks();
  const drift = {};
  let exact = 0;
  for (const tally of tallies) {
    tokens.sampled += tally.sampled;
    tokens.trained += tally.trained;
    tokens.constrained += tally.constrained;
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
    context_images: marks.images,
    rendered_for_images: graph.nodes.filter(({ completion }) => completion.capture.rendered_because === 'images')
      .length,
    context_special_tokens: marks.specialTokens,
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
