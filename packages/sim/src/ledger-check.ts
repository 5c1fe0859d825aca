import type { ConstraintKind, SessionResult, Trace, VersionSpan } from '@floe-rl/core/schema';
import type { LedgerEntry } from './ledger.ts';

/** One difference between the samples that a trainer received and the tokens that the engine sampled. */
export type LedgerMismatch = {
  readonly session_id: string;
  /** The trace in which the difference was found; an empty string when the difference concerns the whole session. */
  readonly trace_id: string;
  readonly completion_id: string | null;
  readonly what:
    | 'unknown completion'
    | 'ids'
    | 'logprob'
    | 'version'
    | 'constraint'
    | 'context'
    | 'mask'
    | 'trained twice'
    | 'invented'
    | 'audit';
  readonly detail: string;
};

/** The result of comparing samples with the ledger. Everything matches when `mismatches` is empty. */
export type LedgerReport = {
  readonly sessions: number;
  readonly traces: number;
  /** Number of trained tokens. All of them were compared. */
  readonly trainable_tokens: number;
  /** Number of trained tokens whose context in the trace is exactly the prompt that the engine was given. */
  readonly exact_context_tokens: number;
  /** Number of trained tokens without a policy version; counted only when `unknownVersions` allows such tokens. */
  readonly unknown_version_tokens: number;
  /**
   * Number of prompt tokens of trained completions whose KV cache entries were computed by weights of another version than the version
   * recorded for the completion's first token. Completions whose first token has no recorded version do not count. Each completion with a
   * stale token is a mismatch `context`.
   */
  readonly stale_context_tokens: number;
  readonly mismatches: readonly LedgerMismatch[];
};

/**
 * How the check treats a trained token without a policy version: as a mismatch (the default), or as allowed and counted. Allow such tokens
 * for engines that cannot report which weights sampled each token of a reply during which the weights were updated.
 */
export type LedgerCheckOptions = { readonly unknownVersions?: 'mismatch' | 'allow' };

/**
 * Which of a token's two log-probabilities in the ledger the engine reported to its client: before (`raw`) or after (`processed`) penalties,
 * temperature and cut-offs.
 */
type LedgerLogprobs = 'raw' | 'processed';

/** The part of a session's result that the check compares. */
type CheckedSession = Pick<SessionResult, 'session_id' | 'trajectory'>;

/**
 * Compares every trained token of finished sessions with the engine's ledger. The token's id, its log-probability (as float32) and its policy
 * version must match. The weights of that version must have computed the context of each completion, and the token must be trained exactly
 * once. The trace must name the constraint on each reply's sampling, whether the reply is trained or not. `mode` is the engine's logprobs
 * mode.
 *
 * The check shares no code with the parts of floe that capture completions and build and audit traces, so that it also detects their defects.
 */
export function checkAgainstLedger(
  results: readonly CheckedSession[],
  ledger: readonly LedgerEntry[],
  mode: LedgerLogprobs,
  options: LedgerCheckOptions = {},
): LedgerReport {
  const check = new LedgerCheck(ledger, mode, options.unknownVersions === 'allow');
  for (const result of results) check.session(result);
  return check.report(results.length);
}

class LedgerCheck {
  private readonly byRequest: ReadonlyMap<string, WholeReply>;
  private readonly mode: LedgerLogprobs;
  private readonly mismatches: LedgerMismatch[] = [];
  private readonly trainedIn = new Map<string, string>();
  private traces = 0;
  private tokens = 0;
  private exactTokens = 0;
  private unknownVersions = 0;
  private staleContext = 0;
  private readonly allowsUnknown: boolean;

  constructor(ledger: readonly LedgerEntry[], mode: LedgerLogprobs, allowsUnknown: boolean) {
    this.allowsUnknown = allowsUnknown;
    const byRequest = new Map<string, WholeReply>();
    for (const entry of ledger)
      byRequest.set(entry.request_id, joinContinuation(byRequest.get(entry.request_id), entry));
    this.byRequest = byRequest;
    this.mode = mode;
  }

  session(result: CheckedSession): void {
    const { trajectory } = result;
    if (trajectory === null) return;
    let trained = 0;
    for (const trace of trajectory.traces) trained += this.trace(result.session_id, trace);
    if (trained !== trajectory.audit.tokens.trained) {
      this.add(
        result.session_id,
        '',
        null,
        'audit',
        `${trained} tokens are trained, the audit counts ${trajectory.audit.tokens.trained}`,
      );
    }
  }

  report(sessions: number): LedgerReport {
    return {
      sessions,
      traces: this.traces,
      trainable_tokens: this.tokens,
      exact_context_tokens: this.exactTokens,
      unknown_version_tokens: this.unknownVersions,
      stale_context_tokens: this.staleContext,
      mismatches: this.mismatches,
    };
  }

  /** Compares one trace with the ledger. Returns the number of tokens that the trace trains. */
  private trace(sessionId: string, trace: Trace): number {
    this.traces++;
    const add = (completionId: string | null, what: LedgerMismatch['what'], detail: string): void =>
      this.add(sessionId, trace.trace_id, completionId, what, detail);
    const trained = trace.loss_mask.reduce((sum, bit) => sum + bit, 0);
    this.tokens += trained;
    const versions = versionPerPosition(trace.version_spans, trace.response_ids.length);
    let matched = 0;
    let from = 0;
    for (const completionId of trace.completion_ids) {
      const entry = this.byRequest.get(completionId);
      if (entry === undefined) {
        add(completionId, 'unknown completion', 'the engine did not sample it');
        continue;
      }
      const start = this.startOf(entry, trace, from);
      if (start === null) {
        add(completionId, 'ids', `its ${entry.response_ids.length} ids are not in the trace`);
        continue;
      }
      const end = start + entry.response_ids.length;
      from = end;
      const expected = constraintOf(entry);
      const marked = constraintsIn(trace, start, end);
      if (marked.some((constraint) => constraint !== expected)) {
        add(completionId, 'constraint', `${marked.join()} instead of ${expected}`);
      }
      const bits = new Set(trace.loss_mask.slice(start, end));
      if (bits.size > 1) add(completionId, 'mask', 'only part of it is trained');
      if (!bits.has(1)) continue;
      matched += entry.response_ids.length;
      const earlier = this.trainedIn.get(completionId);
      if (earlier !== undefined) add(completionId, 'trained twice', `also in ${earlier}`);
      this.trainedIn.set(completionId, trace.trace_id);
      this.compare(entry, trace, start, versions, add);
    }
    if (matched !== trained) add(null, 'invented', `${trained} tokens are trained, ${matched} of them were sampled`);
    return trained;
  }

  /**
   * Returns the index in the trace's response at which a completion's reply begins, or `null` when the trace does not contain the reply's
   * ids. The index that follows from the length of the completion's prompt is tried first. When the reply's ids are not there, the trace is
   * searched for them, starting at index `from`.
   */
  private startOf(entry: LedgerEntry, trace: Trace, from: number): number | null {
    const exact = entry.prompt_ids.length - trace.prompt_ids.length;
    if (exact >= from && hasReplyAt(entry, trace, exact)) return exact;
    for (let start = from; start + entry.response_ids.length <= trace.response_ids.length; start++) {
      if (hasReplyAt(entry, trace, start)) return start;
    }
    return null;
  }

  private compare(
    entry: WholeReply,
    trace: Trace,
    start: number,
    versions: readonly (string | null)[],
    add: (completionId: string, what: LedgerMismatch['what'], detail: string) => void,
  ): void {
    const logprobs = this.mode === 'raw' ? entry.raw_logprobs : entry.processed_logprobs;
    const ledgerVersions = versionPerPosition(entry.version_spans, entry.response_ids.length);
    for (let i = 0; i < entry.response_ids.length; i++) {
      const expected = Math.fround(logprobs[i] ?? Number.NaN);
      // A trace holds the shortest decimal number of each float32, so rounding to float32 restores the exact value.
      const actual = Math.fround(trace.response_logprobs[start + i] ?? Number.NaN);
      if (actual !== expected) add(entry.request_id, 'logprob', `token ${i}: ${actual} instead of ${expected}`);
      const version = versions[start + i];
      if (version === null && this.allowsUnknown) {
        this.unknownVersions++;
      } else if (version !== ledgerVersions[i]) {
        add(entry.request_id, 'version', `token ${i}: ${version} instead of ${ledgerVersions[i]}`);
      }
    }
    for (const { from, spans } of entry.contexts)
      this.compareContext(spans, versions[start + from] ?? null, (detail) => add(entry.request_id, 'context', detail));
    if (isExactContext(entry, trace, start)) this.exactTokens += entry.response_ids.length;
  }

  /** Compares the versions that computed the context of a call with the version that is recorded for the call's first token. */
  private compareContext(spans: readonly VersionSpan[], recorded: string | null, add: (detail: string) => void): void {
    if (recorded === null) return;
    const stale = spans.filter(({ version }) => version !== recorded);
    if (stale.length === 0) return;
    const tokens = stale.reduce((sum, { start, end }) => sum + end - start, 0);
    this.staleContext += tokens;
    const others = [...new Set(stale.map(({ version }) => version))].join(', ');
    add(`${tokens} tokens of its context were computed by ${others}, and the reply is recorded as ${recorded}`);
  }

  private add(
    session_id: string,
    trace_id: string,
    completion_id: string | null,
    what: LedgerMismatch['what'],
    detail: string,
  ): void {
    this.mismatches.push({ session_id, trace_id, completion_id, what, detail });
  }
}

/**
 * A reply, which was sampled in one or more calls. `contexts` has for each call the index `from` of its first token in the reply, and the
 * versions that computed the call's context.
 */
type WholeReply = LedgerEntry & {
  readonly contexts: readonly { readonly from: number; readonly spans: readonly VersionSpan[] }[];
};

/**
 * Joins two calls that have the same request id. When the later prompt is exactly the prompt and reply of the earlier, aborted call, the
 * later call continues that reply, and both become one entry. Any other later call replaces the earlier one.
 */
function joinContinuation(earlier: WholeReply | undefined, entry: LedgerEntry): WholeReply {
  const alone = { ...entry, contexts: [{ from: 0, spans: entry.context_spans }] };
  if (earlier === undefined || earlier.aborted_at === null || earlier.response_ids.length === 0) return alone;
  const prefix = [...earlier.prompt_ids, ...earlier.response_ids];
  const continues = entry.prompt_ids.length === prefix.length && prefix.every((id, i) => entry.prompt_ids[i] === id);
  if (!continues) return alone;
  const shift = earlier.response_ids.length;
  return {
    ...entry,
    contexts: [...earlier.contexts, { from: shift, spans: entry.context_spans }],
    prompt_ids: earlier.prompt_ids,
    response_ids: [...earlier.response_ids, ...entry.response_ids],
    raw_logprobs: [...earlier.raw_logprobs, ...entry.raw_logprobs],
    processed_logprobs: [...earlier.processed_logprobs, ...entry.processed_logprobs],
    version_spans: [
      ...earlier.version_spans,
      ...entry.version_spans.map(({ version, start, end }) => ({ version, start: start + shift, end: end + shift })),
    ],
  };
}

/** Returns the kind of the constraint under which the engine sampled a reply; `null` when there was none. */
function constraintOf({ params }: LedgerEntry): ConstraintKind | null {
  const constraint = params.constraint ?? null;
  if (constraint === null) return null;
  return constraint.kind === 'call' ? 'tool_choice' : 'response_format';
}

/** Returns the constraints that a trace names for the response positions from `start` to `end`, one element for each position. */
function constraintsIn({ constrained_spans: spans }: Trace, start: number, end: number): (ConstraintKind | null)[] {
  return Array.from({ length: end - start }, (_, i) => {
    const at = start + i;
    return spans.find((span) => span.start <= at && at < span.end)?.constraint ?? null;
  });
}

function hasReplyAt(entry: LedgerEntry, trace: Trace, start: number): boolean {
  if (start < 0 || start + entry.response_ids.length > trace.response_ids.length) return false;
  return entry.response_ids.every((id, i) => trace.response_ids[start + i] === id);
}

/** Whether the completion's prompt consists of exactly the tokens that precede its reply in the trace. */
function isExactContext(entry: LedgerEntry, trace: Trace, start: number): boolean {
  const promptLength = trace.prompt_ids.length;
  if (entry.prompt_ids.length !== promptLength + start) return false;
  return entry.prompt_ids.every(
    (id, i) => id === (i < promptLength ? trace.prompt_ids[i] : trace.response_ids[i - promptLength]),
  );
}

function versionPerPosition(spans: readonly VersionSpan[], length: number): (string | null)[] {
  const versions = new Array<string | null>(length).fill(null);
  for (const { version, start, end } of spans) versions.fill(version, start, end);
  return versions;
}
