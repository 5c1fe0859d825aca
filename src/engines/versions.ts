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
 * A server without `/weight_info`, or that has no version, runs what it was {@link name}d; the former is not asked again.
 */
export class EngineVersions {
  private readonly clock: Clock;
  private readonly source: VersionSource;
  private known: string | null = null;
  /** Given from outside, for servers that do not tell. */
  private given: string | null = null;
  private askedAtMs = Number.NEGATIVE_INFINITY;
  private pending: Promise<string | null> | null = null;
  /** Asked for while another request is under way; begins when that one has ended. */
  private next: Promise<string | null> | null = null;
  private absent = false;
  /** The server has told a version of its own, so that what was given no longer counts. */
  private tells = false;

  constructor(clock: Clock, source: VersionSource) {
    this.clock = clock;
    this.source = source;
  }

  /** As last heard. */
  get last(): string | null {
    return this.known;
  }

  /** From now on the weights are known by this name, where the server does not tell its own. */
  name(version: string): void {
    this.given = version;
    if (!this.tells) this.known = version;
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
      if (reply.status === 404 || reply.status === 405) {
        this.absent = true;
        return this.given;
      }
      if (reply.status !== 200) return null;
      const version = weightInfoSchema.parse(JSON.parse(reply.body.toString('utf8'))).weight_version;
      if (version === null || version === undefined) return this.tells ? null : this.given;
      this.tells = true;
      return String(version);
    } catch {
      return null;
    }
  }
}
