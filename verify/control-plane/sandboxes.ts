import type { Lease } from '../../src/schema/index.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

type Sandbox = {
  readonly life: SimProcess;
  readonly sessionId: string;
  readonly epoch: number;
  readonly node: string;
  readonly startedMs: number;
};

/** The sandboxes of one world: what a leak would leave behind. */
export class Sandboxes {
  private readonly timeline: Timeline;
  private readonly running = new Map<string, Sandbox>();

  constructor(timeline: Timeline) {
    this.timeline = timeline;
  }

  get count(): number {
    return this.running.size;
  }

  list(): Sandbox[] {
    return [...this.running.values()];
  }

  start(life: SimProcess, place: { readonly nodeId: string }, lease: Lease): void {
    const key = `${lease.session_id}/${lease.epoch}`;
    const other = this.running.get(key);
    if (other !== undefined) {
      this.timeline.violate('one holder', `${key} runs on ${other.life.name} and is started on ${life.name}`);
    }
    this.timeline.note(life.name, `sandbox of ${key} starts`);
    const startedMs = this.timeline.nowMs;
    const { session_id: sessionId, epoch } = lease;
    this.running.set(key, { life, sessionId, epoch, node: place.nodeId, startedMs });
  }

  end(life: SimProcess, lease: Lease): void {
    const key = `${lease.session_id}/${lease.epoch}`;
    if (this.running.get(key)?.life === life) this.running.delete(key);
  }

  endAllOf(life: SimProcess): void {
    for (const [key, sandbox] of this.running) if (sandbox.life === life) this.running.delete(key);
  }
}
