import { z } from 'zod';
import type { Clock } from '../core/clock.ts';

/**
 * How old the version may be that a call is taken to begin with. One that is out of date differs from what the server says
 * behind the reply, which then has no version rather than a wrong one.
 */
const FRESH_MS = 100;

const weightInfoSchema = z.looseObject({ weight_version: z.union([z.string(), z.int()]).nullish() });

/** Asks the server; `absent` when it has no such endpoint. */
export type VersionSource = () => Promise<{ readonly status: number; readonly body: Buffer }>;

/**
 * The policy version that an engine says it runs, read when it is needed and remembered for {@link FRESH_MS}.
 * A server without `/weight_info` has none, and is not asked again.
 */
export class EngineVersions {
  private readonly clock: Clock;
  private readonly source: VersionSource;
  private known: string | null = null;
  private askedAtMs = Number.NEGATIVE_INFINITY;
  private pending: Promise<string | null> | null = null;
  /** Asked for while another request is under way; begins when that one has ended. */
  private next: Promise<string | null> | null = null;
  private absent = false;

  constructor(clock: Clock, source: VersionSource) {
    this.clock = clock;
    this.source = source;
  }

  /** As last heard. */
  get last(): string | null {
    return this.known;
  }

  /** Null: unknown. Never rejects: an engine that cannot tell its version can still be sampled from. */
  current(): Promise<string | null> {
    if (this.absent || this.clock.monotonicMs() - this.askedAtMs < FRESH_MS) return Promise.resolve(this.known);
    return this.ask();
  }

  /**
   * As it is now or later: what the server was asked before may have been answered before an update. Replies that end
   * together share one request.
   */
  afterReply(): Promise<string | null> {
    if (this.absent) return Promise.resolve(this.known);
    if (this.pending === null) return this.ask();
    this.next ??= this.pending.then(() => {
      this.next = null;
      return this.ask();
    });
    return this.next;
  }

  private ask(): Promise<string | null> {
    this.pending ??= this.refresh().finally(() => {
      this.pending = null;
    });
    return this.pending;
  }

  private async refresh(): Promise<string | null> {
    this.known = await this.read();
    this.askedAtMs = this.clock.monotonicMs();
    return this.known;
  }

  private async read(): Promise<string | null> {
    try {
      const reply = await this.source();
      if (reply.status === 404 || reply.status === 405) this.absent = true;
      if (reply.status !== 200) return null;
      const version = weightInfoSchema.parse(JSON.parse(reply.body.toString('utf8'))).weight_version;
      return version === null || version === undefined ? null : String(version);
    } catch {
      return null;
    }
  }
}
