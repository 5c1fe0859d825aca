import { z } from 'zod';
import type { Clock } from '../core/clock.ts';

/**
 * Maximum age of the version that a call is assumed to begin with. An outdated one differs from the version after the reply, and
 * the reply then has no version instead of a wrong one.
 */
const MAX_AGE_MS = 100;

const weightInfoSchema = z.looseObject({ weight_version: z.union([z.string(), z.int()]).nullish() });

/** Requests the weights' version from the server. Status 404 or 405 means that the server has no such endpoint. */
type VersionSource = () => Promise<{ readonly status: number; readonly body: Buffer }>;

/**
 * The policy version that an engine reports, requested when it is needed and cached for {@link MAX_AGE_MS}. An engine that reports
 * none runs the {@link assign}ed one; an engine without the endpoint is not requested again.
 */
export class EngineVersions {
  private readonly clock: Clock;
  private readonly source: VersionSource;
  private latest: string | null = null;
  /** The version set from outside, for servers that do not report one. */
  private assigned: string | null = null;
  private requestedAtMs = Number.NEGATIVE_INFINITY;
  private pending: Promise<string | null> | null = null;
  /** A request that begins when the pending one has ended. */
  private next: Promise<string | null> | null = null;
  private hasNoEndpoint = false;
  /** Whether the server has reported a version, so that the assigned one no longer counts. */
  private hasReported = false;

  constructor(clock: Clock, source: VersionSource) {
    this.clock = clock;
    this.source = source;
  }

  /** The last known version; `null` when unknown. */
  get last(): string | null {
    return this.latest;
  }

  /** Sets the version of the weights, used while the server does not report one. */
  assign(version: string): void {
    this.assigned = version;
    if (!this.hasReported) this.latest = version;
  }

  /** `null` when unknown. Never rejects: an engine that cannot report its version can still be sampled from. */
  current(): Promise<string | null> {
    if (this.hasNoEndpoint || this.clock.monotonicMs() - this.requestedAtMs < MAX_AGE_MS) {
      return Promise.resolve(this.latest);
    }
    return this.request();
  }

  /**
   * The version of now or later, `null` when unknown: a pending request may have been answered before a weight update, so its result
   * does not count. Replies that end concurrently share one request.
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
