import type { Clock } from '@floe-rl/core';
import type { EngineInfo, Heartbeat } from '@floe-rl/core/schema';

type Report = Heartbeat['engines'];

/**
 * Time in milliseconds per engine between two reports that differ in the calls in flight alone. The state of 200 engines has about 150 kB,
 * which a thousand nodes cannot report with every heartbeat.
 */
const COUNTERS_MS_PER_ENGINE = 150;

/** Remembers which state of a node's engines the server has, so that heartbeats repeat it only when it has changed. */
export class SentEngines {
  private readonly clock: Clock;
  /** The state that the server has, without counters, and the time when it was sent; `null` when this process has sent none. */
  private known: { readonly text: string; readonly atMs: number } | null = null;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /**
   * Returns the report to send: without the state of each engine when the server has it, apart from counters that are recent enough. `sent`
   * must be called when the server has answered the heartbeat.
   */
  shortened(report: Report): { readonly engines: Report; readonly sent: () => void } {
    if (report === null || report.info === null) return { engines: report, sent: () => {} };
    const nowMs = this.clock.monotonicMs();
    const text = JSON.stringify(report.info.map(withoutCounters));
    const isRecent = this.known?.text === text && nowMs - this.known.atMs < COUNTERS_MS_PER_ENGINE * report.info.length;
    if (isRecent) return { engines: { ...report, info: null }, sent: () => {} };
    return {
      engines: report,
      sent: () => {
        this.known = { text, atMs: nowMs };
      },
    };
  }

  /** Lets the next heartbeat report everything, as after a registration. */
  forget(): void {
    this.known = null;
  }
}

/** Returns the state without the fields that change with the calls and the load of the engine. */
function withoutCounters({ inflight: _, adaptive: __, held_back_ms: ___, ...state }: EngineInfo): object {
  return state;
}
