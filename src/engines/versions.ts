import { z } from 'zod';
import type { Clock } from '../core/clock.ts';

/**
 * Longest time that a version read from the server is used as the version at the start of a call. When that version is out of date it
 * differs from the version after the reply, and the reply is then recorded without a version instead of with a wrong one.
 */
const MAX_AGE_MS = 100;

const weightInfoSchema = z.looseObject({ weight_version: z.union([z.string(), z.int()]).nullish() });

/** Function that requests the version of the weights from the server. Status 404 or 405 means that the server has no such endpoint. */
type VersionSource = () => Promise<{ readonly status: number; readonly body: Buffer }>;

/**
 * Tracks the policy version that an engine reports. The version is requested when it is needed and cached for {@link MAX_AGE_MS}. For an
 * engine that reports no version, the version passed to {@link assign} is used; an engine without the endpoint is not asked a second
 * time.
 */
export class EngineVersions {
  private readonly clock: Clock;
  private readonly source: VersionSource;
  private latest: string | null = null;
  /** The version that {@link assign} was called with, for servers that do not report one; `null` before that. */
  private assigned: string | null = null;
  private requestedAtMs = Number.NEGATIVE_INFINITY;
  private pending: Promise<string | null> | null = null;
  /** A request that starts when the pending one has ended; `null` when none is queued. */
  private next: Promise<string | null> | null = null;
  private hasNoEndpoint = false;
  /** Whether the server has reported a version. The assigned version is ignored from then on. */
  private hasReported = false;

  constructor(clock: Clock, source: VersionSource) {
    this.clock = clock;
    this.source = source;
  }

  /** The version that was last read or assigned; `null` when it is unknown. */
  get last(): string | null {
    return this.latest;
  }

  /** Sets the version of the weights that is used while the server does not report one. */
  assign(version: string): void {
    this.assigned = version;
    if (!this.hasReported) this.latest = version;
  }

  /**
   * Resolves with the version of the weights, at most {@link MAX_AGE_MS} old; `null` when it is unknown. Never rejects, because an
   * engine that cannot report its version can still be sampled from.
   */
  current(): Promise<string | null> {
    if (this.hasNoEndpoint || this.clock.monotonicMs() - this.requestedAtMs < MAX_AGE_MS) {
      return Promise.resolve(this.latest);
    }
    return this.request();
  }

  /**
   * Reads the version after a reply has ended; `null` when it is unknown. The result of a request that is already pending does not
   * count, because the server may have answered it before a weight update. Replies that end concurrently share one request.
   */
  afterReply(): Promise<string | null> {
    if (this.hasNoEndpoint) return Promise.resolve(this.latest);
    if (this.pending === null) return this.request();
    this.next ??= this.pending.then(() => {
      this.next = null;
      return this.request();
    });
    return this.next;
  }

  private request(): Promise<string | null> {
    this.pending ??= this.refresh().finally(() => {
      this.pending = null;
    });
    return this.pending;
  }

  private async refresh(): Promise<string | null> {
    this.latest = await this.read();
    this.requestedAtMs = this.clock.monotonicMs();
    return this.latest;
  }

  private async read(): Promise<string | null> {
    try {
      const reply = await this.source();
      if (reply.status === 404 || reply.status === 405) {
        this.hasNoEndpoint = true;
        return this.assigned;
      }
      if (reply.status !== 200) return null;
      const version = weightInfoSchema.parse(JSON.parse(reply.body.toString('utf8'))).weight_version;
      if (version === null || version === undefined) return this.hasReported ? null : this.assigned;
      this.hasReported = true;
      return String(version);
    } catch {
      return null;
    }
  }
}
