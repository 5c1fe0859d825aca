import type { Clock } from '@floe-rl/core';
import type { VersionSpan } from '@floe-rl/core/schema';
import { z } from 'zod';

/**
 * Maximum age in milliseconds of a cached policy version that is used as the version at the start of a call. If the weights have changed since
 * it was cached, the reply was sampled with another version. The reply is then recorded without a version rather than with a wrong one.
 */
const MAX_AGE_MS = 100;

const weightInfoSchema = z.looseObject({ weight_version: z.union([z.string(), z.int()]).nullish() });

/** Function that requests the version of the weights from the server. Status 404 or 405 means that the server has no such endpoint. */
type VersionSource = () => Promise<{ readonly status: number; readonly body: Buffer }>;

/** The answer to a request for the version. `failed` means that no answer arrived, so that nothing is known about the current weights. */
type Reading = { readonly version: string | null; readonly failed: boolean };

/** The policy versions that a reply and its server report. */
export type ReportedVersions = {
  /** Number of tokens that the call sampled. */
  readonly count: number;
  /** Version spans that the reply contains, which cover `count` tokens; `null` when it contains none. */
  readonly spans: readonly VersionSpan[] | null;
  /** The version at the end of the reply, if the reply contains it; absent or `null` when the server has to be asked. */
  readonly end?: string | null;
};

/** Returns the version spans to record for one reply. See {@link EngineVersions.beginReply}. */
export type ReplyVersions = (reported: ReportedVersions) => Promise<VersionSpan[]>;

/**
 * Tracks the policy version that an engine reports. The version is requested when it is needed and cached for {@link MAX_AGE_MS}. For an
 * engine that reports no version, the version passed to {@link assign} is used. A server without the version endpoint gets only one
 * request.
 */
export class EngineVersions {
  private readonly clock: Clock;
  private readonly source: VersionSource | null;
  private latest: string | null = null;
  /** The version passed to {@link assign}, which is used for servers that report no version; `null` before the first call of `assign`. */
  private assigned: string | null = null;
  private requestedAtMs = Number.NEGATIVE_INFINITY;
  /** The version request under way, and the value of {@link changes} when it was sent. */
  private pending: { readonly reading: Promise<Reading>; readonly changes: number } | null = null;
  /** A version request that starts when the pending one has ended; `null` when none is queued. */
  private next: Promise<Reading> | null = null;
  private hasNoEndpoint: boolean;
  /** Whether the server has reported a version. From then on, the version passed to {@link assign} is ignored. */
  private hasReported = false;
  /** Number of times that the weights have changed or may have changed, as far as this class was informed. */
  private changes = 0;

  /** `source` is `null` for a server that never reports a version. */
  constructor(clock: Clock, source: VersionSource | null) {
    this.clock = clock;
    this.source = source;
    this.hasNoEndpoint = source === null;
  }

  /** The policy version that was last read or assigned; `null` when it is unknown. */
  get last(): string | null {
    return this.latest;
  }

  /** Sets the policy version that is used while the server does not report one. */
  assign(version: string): void {
    if (version === this.assigned) return;
    this.assigned = version;
    if (!this.hasReported) this.latest = version;
    this.mayHaveChanged();
  }

  /**
   * Records that the weights may have changed: the cached version is not used any more. A reply under way is recorded without a version if
   * the server reports none, because its tokens may have been sampled before and after the change.
   */
  mayHaveChanged(): void {
    this.changes++;
    this.requestedAtMs = Number.NEGATIVE_INFINITY;
  }

  /** Whether {@link current} would resolve with {@link last}, so that the caller need not wait for it. */
  get isCurrent(): boolean {
    return this.hasNoEndpoint || this.clock.monotonicMs() - this.requestedAtMs < MAX_AGE_MS;
  }

  /**
   * Resolves with the version of the weights, at most {@link MAX_AGE_MS} old and requested after the latest {@link mayHaveChanged};
   * `null` when it is unknown. When the server does not answer, it resolves with the version that was last known. Never rejects, because
   * an engine that cannot report its version can still be sampled from.
   */
  async current(): Promise<string | null> {
    if (this.isCurrent) return this.latest;
    const isUsable = this.pending === null || this.pending.changes === this.changes;
    const { version, failed } = await (isUsable ? this.request() : this.requestAfterPending());
    return failed ? this.latest : version;
  }

  /**
   * Reads the policy version after a reply has ended; `null` when it is unknown. The result of a request that is already pending is not
   * used, because the server may have answered it before a weight update. Replies that end concurrently share one request.
   */
  async afterReply(): Promise<string | null> {
    if (this.hasNoEndpoint) return this.latest;
    return (await (this.pending === null ? this.request() : this.requestAfterPending())).version;
  }

  /**
   * Begins to track the versions of one reply when its call is sent. `before` is the version that {@link current} returned for this call; it
   * is also the salt of the prefix cache. The returned function is called when the reply has ended, and returns the reply's version spans.
   *
   * If the reported spans begin with a version other than `before`, the reply is recorded without a version. Its context may have been
   * computed by the weights before the change.
   *
   * If no spans are reported, the reply gets the version `before` when two conditions hold. First, the version after the reply equals
   * `before`. Second, the server itself reports its version, or no weight update was announced during the reply. Otherwise the reply is
   * recorded without a version.
   */
  beginReply(before: string | null): ReplyVersions {
    const { changes } = this;
    return async ({ count, spans, end = null }) => {
      if (count === 0) return [];
      const unknown = [{ version: null, start: 0, end: count }];
      // If no span has a version, the server's weights were not given one.
      if (spans?.some(({ version }) => version !== null) === true) {
        this.learn(spans.at(-1)?.version ?? null);
        return spans[0]?.version === before ? [...spans] : unknown;
      }
      if (end !== null) this.learn(end);
      const after = end ?? (await this.afterReply());
      const isSettled = this.hasReported || changes === this.changes;
      return after === before && isSettled ? [{ version: before, start: 0, end: count }] : unknown;
    };
  }

  /**
   * Takes note of a version that a reply contains. It does not become the current version if the server can be asked, because replies can
   * arrive in another order than they were sampled in.
   */
  private learn(version: string | null): void {
    if (version === null) return;
    this.hasReported = true;
    if (version === this.latest) return;
    if (this.hasNoEndpoint) this.latest = version;
    this.mayHaveChanged();
  }

  private request(): Promise<Reading> {
    if (this.pending !== null) return this.pending.reading;
    const reading = this.refresh().finally(() => {
      this.pending = null;
    });
    this.pending = { reading, changes: this.changes };
    return reading;
  }

  private requestAfterPending(): Promise<Reading> {
    this.next ??= (this.pending?.reading ?? Promise.resolve()).then(() => {
      this.next = null;
      return this.request();
    });
    return this.next;
  }

  private async refresh(): Promise<Reading> {
    const { changes } = this;
    const sentAtMs = this.clock.monotonicMs();
    const reading = await this.read();
    if (!reading.failed) this.latest = reading.version;
    if (changes === this.changes) this.requestedAtMs = sentAtMs;
    return reading;
  }

  private async read(): Promise<Reading> {
    const failure = { version: null, failed: true };
    try {
      const reply = await this.source?.();
      if (reply === undefined || reply.status === 404 || reply.status === 405) {
        this.hasNoEndpoint = true;
        return { version: this.hasReported ? this.latest : this.assigned, failed: false };
      }
      if (reply.status !== 200) return failure;
      const version = weightInfoSchema.parse(JSON.parse(reply.body.toString('utf8'))).weight_version;
      if (version === null || version === undefined || version === '') {
        return { version: this.hasReported ? null : this.assigned, failed: false };
      }
      this.hasReported = true;
      return { version: String(version), failed: false };
    } catch {
      return failure;
    }
  }
}
