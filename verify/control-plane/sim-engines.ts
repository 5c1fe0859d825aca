import { type Candidate, type ChoicePolicy, choicePolicy } from '#capture/engines/pool/choice-policies';
import type { SimProcess } from './sim-process.ts';

type Engine = Candidate & { inflight: number };

/** The inference engines of a cluster. Each node chooses among all engines. Like a real node, it counts only the calls of its own sessions. */
export class SimEngines {
  /** Number of calls in flight on each engine, of all nodes together. */
  private readonly inflight: number[];

  constructor(count: number) {
    this.inflight = Array.from({ length: count }, () => 0);
  }

  /** Returns the object that chooses engines for one node process. The process's calls end when the process is killed. */
  chooserOf(process: SimProcess): EngineChooser {
    return new EngineChooser(process, this.inflight);
  }

  /** The number of calls on the busiest engine divided by the mean of all engines; `null` while there are fewer than `least` calls. */
  imbalance(least: number): number | null {
    const calls = this.inflight.reduce((sum, count) => sum + count, 0);
    return calls < least ? null : (Math.max(...this.inflight) * this.inflight.length) / calls;
  }
}

/** Chooses an engine for each call of one node. */
export class EngineChooser {
  private readonly policy: ChoicePolicy = choicePolicy('least_in_flight');
  private readonly engines: readonly Engine[];
  private readonly inflight: number[];

  constructor(process: SimProcess, inflight: number[]) {
    this.inflight = inflight;
    this.engines = inflight.map((_, i) => ({ id: String(i), distance: 3, inflight: 0 }));
    for (const engine of this.engines) this.policy.joined(engine);
    process.onKill(() => {
      for (const engine of this.engines) this.count(engine, -engine.inflight);
    });
  }

  /** Starts a call of the session on the engine that the policy picks. The returned function ends the call. */
  begin(sessionId: string): () => void {
    const engine = this.policy.pick(sessionId, this.engines);
    this.policy.assigned(sessionId, engine);
    this.count(engine, 1);
    return () => this.count(engine, -1);
  }

  private count(engine: Engine, change: number): void {
    engine.inflight += change;
    const index = Number(engine.id);
    this.inflight[index] = (this.inflight[index] ?? 0) + change;
  }
}
