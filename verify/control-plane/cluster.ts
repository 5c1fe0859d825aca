import { CommitRules } from './commit-rules.ts';
import { History } from './history.ts';
import { MemoryDatabase } from './memory-store/database.ts';
import type { RowChange } from './memory-store/state.ts';
import { type Host, Network, RELIABLE_NETWORK } from './network.ts';
import type { Plan } from './plan.ts';
import type { SeededRandom } from './random.ts';
import { SimEngines } from './sim-engines.ts';
import { type BlobFiles, RELIABLE_DISK, type SimDatabase, SimDisk } from './sim-store.ts';
import { Timeline } from './timeline.ts';

/** How the simulated inference engine, which the agents of all nodes call, behaves at the moment. */
type EngineState = 'healthy' | 'failing' | 'hanging';

/** The state that all parts of one simulated cluster share: virtual time, network, storage, the engine and the checks. */
export class SimCluster {
  readonly plan: Plan;
  readonly random: SeededRandom;
  readonly timeline: Timeline;
  readonly network: Network;
  readonly database: SimDatabase;
  readonly blobFiles: BlobFiles = { blobs: new Map(), putFailureRate: 0 };
  readonly history: History;
  readonly rules: CommitRules;
  engine: EngineState = 'healthy';
  /** The engines among which nodes choose; `null` when the plan has no engine pool. */
  readonly engines: SimEngines | null;
  /** Probability that a message which one server broadcasts to the other servers through the database is lost. */
  announcementLossRate = 0;
  /** Offset of each host's wall clock from virtual time in ms, by host name. A host that is not in the map has an offset of 0. */
  readonly wallOffsetMs = new Map<string, number>();
  /** Whether fault injection has ended. */
  faultsEnded = false;
  private lastId = 0;

  constructor(plan: Plan, random: SeededRandom) {
    this.plan = plan;
    this.engines = plan.engines === 0 ? null : new SimEngines(plan.engines);
    this.timeline = new Timeline(plan.maxEvents);
    this.random = random;
    this.network = new Network(this.timeline, random.fork());
    this.history = new History(this.timeline);
    const onCommit = (changes: readonly RowChange[]): void => this.rules.check(changes);
    const disk = new SimDisk(this.timeline, random.fork(), onCommit, plan.syncMs);
    this.database = { rows: new MemoryDatabase(disk), disk, isReachable: true };
    this.rules = new CommitRules(this.timeline, this.database.rows.state, this.history, plan);
  }

  /** Returns an id that sorts by creation time, as the ids that floe generates do. */
  newId(prefix: string): string {
    this.lastId++;
    return `${prefix}_${String(this.lastId).padStart(6, '0')}`;
  }

  host(name: string): Host {
    return { name, process: null };
  }

  /** Ends fault injection: from now on the network, the database, the blob store and the engine work without faults. */
  endFaults(): void {
    this.faultsEnded = true;
    this.network.faults = RELIABLE_NETWORK;
    this.network.heal();
    this.database.isReachable = true;
    this.database.disk.faults = RELIABLE_DISK;
    this.blobFiles.putFailureRate = 0;
    this.announcementLossRate = 0;
    this.engine = 'healthy';
    this.timeline.record('cluster', 'has no faults from here on');
  }
}
