import { type Clock, FloeError } from '@floe-rl/core';
import type { NodeRegistration, RuntimeSpec } from '@floe-rl/core/schema';
import type { HeldSessions, NodeMemory, StoreTables } from '../../store/index.ts';

/** Returns the total and the free memory of a node that holds the sessions `held`; `null` when the node has no limit. */
export function memoryOf(
  { memory_mb: totalMb }: Pick<NodeRegistration, 'memory_mb'>,
  held: HeldSessions,
): NodeMemory | null {
  return totalMb === null ? null : { totalMb, freeMb: totalMb - held.memoryMb };
}

/** Time in milliseconds for which the memory of the largest node is cached, because every submission of a task needs it. */
const REMEMBERED_MS = 1_000;

/** Checks that some node can run the sessions of a task. */
export class NodeSizes {
  private readonly clock: Clock;
  private largestMb = 0;
  private readMs = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /**
   * Throws `unsupported` when no registered node can ever run a session of a task with this runtime, which needs `neededMb` MiB of memory.
   * Draining nodes are ignored. A task is accepted while no node is registered, because nodes may be started later.
   */
  async refuseOversized(tables: StoreTables, runtime: RuntimeSpec | null, neededMb: number): Promise<void> {
    const nowMs = this.clock.monotonicMs();
    if (neededMb <= this.largestMb && nowMs - this.readMs < REMEMBERED_MS) return;
    const rows = (await tables.nodes.list()).filter(({ draining }) => draining === 0);
    const nodes = rows.map(({ registration }) => JSON.parse(registration) as NodeRegistration);
    const limits = nodes.map(({ memory_mb: limit }) => limit ?? Number.POSITIVE_INFINITY);
    const largest = nodes.length === 0 ? Number.POSITIVE_INFINITY : Math.max(...limits);
    this.largestMb = largest;
    this.readMs = nowMs;
    if (neededMb > largest) throw oversized(runtime, neededMb, largest, nodes[limits.indexOf(largest)]?.node_id);
  }
}

function oversized(
  runtime: RuntimeSpec | null,
  neededMb: number,
  largestMb: number,
  nodeId: string | undefined,
): FloeError {
  const ofEvaluator = runtime?.eval_overrides.memory_mb ?? 0;
  const field = ofEvaluator > (runtime?.memory_mb ?? 0) ? 'runtime.eval_overrides.memory_mb' : 'runtime.memory_mb';
  return new FloeError(
    'unsupported',
    `${field}: a session of this task needs ${neededMb} MiB of memory (memory_mb, and with bubblewrap storage_mb for each sandbox), and the ` +
      `largest node, ${nodeId}, has ${largestMb} MiB for sessions; lower ${field} or runtime.storage_mb, or start a node with ` +
      'more memory (--memory-mb)',
    { path: field, needed_mb: neededMb, largest_mb: largestMb, node_id: nodeId },
  );
}
