import { FloeError } from '@floe-rl/core';
import type { ConstrainedSpan, ConstraintKind, VersionSpan } from '@floe-rl/core/schema';
import type { BuiltTrace, StepPosition, TrainedSpan } from './builders/builder.ts';
import type { Completion } from './completion.ts';
import { expertRowBytes } from './expert-rows.ts';
import { bytesOf, sameIds } from './sequence.ts';

export type CheckedTrace = {
  /** Number of trained response positions of the trace, which have mask 1. */
  readonly masked: number;
  /**
   * For each trained span of the trace, whether its context is exact: the ids before the span in the trace are exactly the ids after which
   * its tokens were sampled.
   */
  readonly exact: readonly boolean[];
};

/**
 * Compares a finished trace with the completions that its trained spans name. Throws `audit_failed` when the trace's columns (ids, mask,
 * logprobs and others) contradict each other. Also throws it when the id, log-probability, version, constraint or routed experts of a trained
 * token differ from the sampled ones.
 */
export function checkTrace(
  trace: BuiltTrace,
  index: number,
  completionOf: (completionId: string) => Completion | undefined,
): CheckedTrace {
  checkColumns(trace, index);
  checkVersionColumn(trace, index);
  checkConstrainedColumn(trace, index);
  checkExpertsColumn(trace, index);
  const named = new Set(trace.nodes.map((node) => node.completion.completionId));
  const context = new Context(trace);
  const versions = { spans: trace.versionSpans, at: 0 };
  const constrained = { spans: trace.constrainedSpans, at: 0 };
  const exact = trace.spans.map((span) => {
    const completion = completionOf(span.completionId);
    if (completion === undefined)
      throw failed(`trace ${index} trains a completion that was never recorded`, index, span);
    if (!named.has(span.completionId))
      throw failed(`trace ${index} trains a completion that it does not name`, index, span);
    checkSpan(trace, index, span, completion);
    checkVersions(versions, completion.versionSpans, span, index);
    checkConstraint(constrained, completion.request.constraint, span, index);
    const isExact = context.matches(span, completion);
    if (span.exactContext && !isExact) {
      throw failed(`trace ${index} claims a context that ${span.completionId} was not sampled in`, index, span);
    }
    return isExact;
  });
  return { masked: trace.spans.reduce((sum, span) => sum + span.length, 0), exact };
}

/**
 * Checks the positions of traces that are turns of an episode. Throws `audit_failed` unless the turns of each episode are adjacent and in
 * order, and only its last turn is marked as the last.
 */
export function checkSteps(traces: readonly BuiltTrace[]): void {
  let before: StepPosition | null = null;
  const begun = new Set<number>();
  for (const [index, { step }] of traces.entries()) {
    const expected: boolean =
      before === null || before.last
        ? step === null || (step.turn === 0 && !begun.has(step.episode))
        : step !== null && step.episode === before.episode && step.turn === before.turn + 1;
    if (!expected)
      throw new FloeError('audit_failed', `audit: trace ${index} is not the next step`, { trace: index, step });
    if (step !== null) begun.add(step.episode);
    before = step;
  }
  if (before?.last === false)
    throw new FloeError('audit_failed', 'audit: an episode has no last step', { step: before });
}

/**
 * Checks that a trace's mask and logprobs are as long as its response, and that they are 0 at all positions outside of trained spans.
 * Otherwise throws `audit_failed`.
 */
function checkColumns(trace: BuiltTrace, index: number): void {
  const { ids, promptLength, lossMask, logprobs, spans } = trace;
  const length = ids.length - promptLength;
  if (promptLength < 0 || lossMask.length !== length || logprobs.length !== length) {
    throw new FloeError('audit_failed', `audit: the columns of trace ${index} differ in length`, {
      trace: index,
      ids: length,
      loss_mask: lossMask.length,
      logprobs: logprobs.length,
    });
  }
  let end = 0;
  for (const span of spans) {
    if (span.start < end || span.length < 1) throw failed(`the spans of trace ${index} overlap`, index, span);
    checkContext(trace, index, end, span.start);
    end = span.start + span.length;
    if (end > length) throw failed(`a span of trace ${index} ends after the trace`, index, span);
    for (let at = span.start; at < end; at++) {
      if (lossMask[at] !== 1) throw failed(`trace ${index} does not train a span that it names`, index, span);
    }
  }
  checkContext(trace, index, end, length);
}

/**
 * Checks that mask and logprob are 0 at the positions from `from` to `to`, which no trained span covers. Otherwise throws `audit_failed`.
 */
function checkContext({ lossMask, logprobs }: BuiltTrace, index: number, from: number, to: number): void {
  for (let at = from; at < to; at++) {
    if (lossMask[at] !== 0 || logprobs[at] !== 0) {
      throw new FloeError('audit_failed', `audit: trace ${index} trains position ${at}, which was not sampled`, {
        trace: index,
        position: at,
      });
    }
  }
}

function checkSpan(trace: BuiltTrace, index: number, span: TrainedSpan, completion: Completion): void {
  const { start, offset, length, completionId } = span;
  const { responseIds, responseLogprobs } = completion;
  if (offset < 0 || !sameIds(trace.ids, trace.promptLength + start, responseIds, offset, length)) {
    throw failed(`trace ${index} has other ids than ${completionId} was sampled with`, index, span);
  }
  const logprobs = bytesOf(trace.logprobs.subarray(start, start + length));
  if (!logprobs.equals(bytesOf(responseLogprobs.subarray(offset, offset + length)))) {
    throw failed(`trace ${index} has other logprobs than ${completionId} was sampled with`, index, span);
  }
  checkExperts(trace, index, span, completion);
}

/**
 * Checks that the trace's routed experts at the positions of a trained span equal the routed experts of the completion. The last position of
 * the span is omitted: the experts at that position computed the token after the span, which the completion did not sample.
 */
function checkExperts(trace: BuiltTrace, index: number, span: TrainedSpan, completion: Completion): void {
  const traced = trace.routedExperts;
  if (traced === null || span.length === 1) return;
  const own = completion.routedExperts;
  const same =
    own !== null &&
    own.dtype === traced.dtype &&
    own.shape[1] === traced.shape[1] &&
    own.shape[2] === traced.shape[2] &&
    own.start <= completion.promptIds.length + span.offset;
  if (same) {
    const rowBytes = expertRowBytes(own);
    const at = (trace.promptLength + span.start - traced.start) * rowBytes;
    const from = (completion.promptIds.length + span.offset - own.start) * rowBytes;
    const bytes = (span.length - 1) * rowBytes;
    const inRange = from + bytes <= own.data.length && at + bytes <= traced.data.length && at >= 0;
    if (inRange && traced.data.compare(own.data, from, from + bytes, at, at + bytes) === 0) return;
  }
  throw failed(`trace ${index} has other routed experts than ${span.completionId} was sampled with`, index, span);
}

/**
 * Checks that the trace's routed experts have one row for every position from `start` to the last but one, and that `start` is inside the
 * prompt. Otherwise throws `audit_failed`.
 */
function checkExpertsColumn({ ids, promptLength, routedExperts }: BuiltTrace, index: number): void {
  if (routedExperts === null) return;
  const { shape, start, data } = routedExperts;
  const whole = start + shape[0] === ids.length - 1 && data.length === shape[0] * expertRowBytes(routedExperts);
  if (whole && start >= 0 && start < Math.max(promptLength, 1)) return;
  throw new FloeError('audit_failed', `audit: the routed experts of trace ${index} are not one row for each position`, {
    trace: index,
    ids: ids.length,
    shape,
    start,
    bytes: data.length,
  });
}

/**
 * Checks that the trace's version spans are in order and cover as many tokens as the trained spans. Which tokens they cover is checked by
 * {@link checkVersions}.
 */
function checkVersionColumn({ spans, versionSpans }: BuiltTrace, index: number): void {
  let end = 0;
  let versioned = 0;
  for (const span of versionSpans) {
    if (span.start < end || span.end < span.start) {
      throw new FloeError('audit_failed', `audit: the version spans of trace ${index} overlap`, { trace: index, span });
    }
    end = span.end;
    versioned += span.end - span.start;
  }
  const named = spans.reduce((sum, span) => sum + span.length, 0);
  if (versioned !== named) {
    throw new FloeError('audit_failed', `audit: the version spans of trace ${index} do not cover its trained tokens`, {
      trace: index,
      versioned,
      named,
    });
  }
}

/**
 * Checks the policy versions of one trained span's tokens: the trace's version spans must state for each token the version that sampled it.
 * `traced.at` is the index of the first version span of the trace that may overlap the trained span. This index only increases, because the
 * trained spans are checked in order.
 */
function checkVersions(
  traced: { readonly spans: readonly VersionSpan[]; at: number },
  sampled: readonly VersionSpan[],
  run: TrainedSpan,
  index: number,
): void {
  const shift = run.start - run.offset;
  const runEnd = run.start + run.length;
  const { spans } = traced;
  while (traced.at < spans.length && (spans[traced.at] as VersionSpan).end <= run.start) traced.at++;
  for (const { version, start: from, end: to } of sampled) {
    const start = Math.max(from + shift, run.start);
    const end = Math.min(to + shift, runEnd);
    let covered = 0;
    for (let i = traced.at; i < spans.length; i++) {
      const other = spans[i] as VersionSpan;
      if (other.start >= end) break;
      if (other.version === version) covered += Math.max(0, Math.min(other.end, end) - Math.max(other.start, start));
    }
    if (covered !== Math.max(0, end - start)) {
      throw failed(`trace ${index} names other versions than ${run.completionId} was sampled with`, index, run);
    }
  }
}

/**
 * Checks that the trace's constrained spans are in order, do not overlap and lie within the response. Otherwise throws `audit_failed`.
 */
function checkConstrainedColumn({ ids, promptLength, constrainedSpans }: BuiltTrace, index: number): void {
  let end = 0;
  for (const span of constrainedSpans) {
    if (span.start < end || span.end < span.start || span.end > ids.length - promptLength) {
      const message = `audit: the constrained spans of trace ${index} overlap or end after the trace`;
      throw new FloeError('audit_failed', message, { trace: index, span });
    }
    end = span.end;
  }
}

/**
 * Checks the constraint of a trained span (the span `run`). The trace's constrained spans must name `constraint` for every token of the
 * trained span, and no other constraint. `constraint` is `null` when the tokens were sampled without one; no constrained span may then
 * overlap the trained span. `traced.at` is the index of the first constrained span that may overlap it.
 */
function checkConstraint(
  traced: { readonly spans: readonly ConstrainedSpan[]; at: number },
  constraint: ConstraintKind | null,
  run: TrainedSpan,
  index: number,
): void {
  const { spans } = traced;
  const runEnd = run.start + run.length;
  while (traced.at < spans.length && (spans[traced.at] as ConstrainedSpan).end <= run.start) traced.at++;
  let same = 0;
  let other = 0;
  for (let i = traced.at; i < spans.length; i++) {
    const span = spans[i] as ConstrainedSpan;
    if (span.start >= runEnd) break;
    const overlap = Math.min(span.end, runEnd) - Math.max(span.start, run.start);
    if (span.constraint === constraint) same += overlap;
    else other += overlap;
  }
  if (other > 0 || same !== (constraint === null ? 0 : run.length)) {
    throw failed(`trace ${index} names another constraint than ${run.completionId} was sampled under`, index, run);
  }
}

/**
 * Checks for each trained span of a trace whether the ids before the span are exactly the ids after which its tokens were sampled. The class
 * keeps the last prompt whose ids were equal to the first ids of the trace. The next prompt usually shares memory with it and is longer, so
 * that only the additional ids are compared.
 */
class Context {
  private readonly trace: BuiltTrace;
  private known: Int32Array = new Int32Array(0);

  constructor(trace: BuiltTrace) {
    this.trace = trace;
  }

  /** Whether the ids of the trace before the span are exactly the ids after which the completion sampled the span. */
  matches(span: TrainedSpan, { promptIds, responseIds }: Completion): boolean {
    const { ids, promptLength } = this.trace;
    if (promptLength + span.start !== promptIds.length + span.offset) return false;
    return this.beginsWith(promptIds) && sameIds(ids, promptIds.length, responseIds, 0, span.offset);
  }

  private beginsWith(prompt: Int32Array): boolean {
    const { known } = this;
    const shared = known.buffer === prompt.buffer && known.byteOffset === prompt.byteOffset;
    const from = shared ? Math.min(known.length, prompt.length) : 0;
    if (!sameIds(this.trace.ids, from, prompt, from, prompt.length - from)) return false;
    this.known = prompt;
    return true;
  }
}

function failed(message: string, trace: number, span: TrainedSpan): FloeError {
  return new FloeError('audit_failed', `audit: ${message}`, { trace, span });
}
