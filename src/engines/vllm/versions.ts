import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';

/**
 * How old the known version may be before a reply makes the adapter ask again. It bounds the calls for versions to ten per
 * second whatever the load, and the window in which an update can go unnoticed to this long.
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
  private readonly ask: VersionSource;
  private known: string | null = null;
  private askedAtMs = Number.NEGATIVE_INFINITY;
  private pending: Promise<string | null> | null = null;
  private absent = false;

  constructor(clock: Clock, ask: VersionSource) {
    this.clock = clock;
    this.ask = ask;
  }

  /** As last heard. */
  get last(): string | null {
    return this.known;
  }

  /** Null: unknown. Never rejects: an engine that cannot tell its version can still be sampled from. */
  current(): Promise<string | null> {
    if (this.absent || this.clock.monotonicMs() - this.askedAtMs < FRESH_MS) return Promise.resolve(this.known);
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
      const reply = await this.ask();
      if (reply.status === 404 || reply.status === 405) this.absent = true;
      if (reply.status !== 200) return null;
      const version = weightInfoSchema.parse(JSON.parse(reply.body.toString('utf8'))).weight_version;
      return version === null || version === undefined ? null : String(version);
    } catch {
      return null;
    }
  }
}
