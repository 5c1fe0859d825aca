import type {
  EngineDirectory,
  EngineInfo,
  EngineSpec,
  EnginesStatus,
  EngineView,
  Heartbeat,
} from '@floe-rl/core/schema';
import type { EngineStateRow, NodeRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { isHealthy } from '../nodes/nodes.ts';

/**
 * Counts of a node's engines. `known` counts all engines of the node, and `healthy` the engines that respond. `full` counts the healthy
 * engines that have as many calls in progress as their limit allows.
 */
export type EngineCounts = { readonly known: number; readonly healthy: number; readonly full: number };

/** A node's report on its engines as the node's row stores it: with counts of engines instead of the state of each engine. */
export type EngineReport = Omit<NonNullable<Heartbeat['engines']>, 'info'> & { readonly engines: EngineCounts };

type ReportedEngines = EngineReport & { readonly info: readonly EngineInfo[] };

/** Returns the engine directory that nodes receive: the registered engines, and the settings that apply to all engines. */
export async function readEngineDirectory(tables: StoreTables): Promise<EngineDirectory> {
  const state = await tables.engines.state();
  const rows = await tables.engines.list();
  return { ...state, removed: removedIds(state), engines: rows.map((row) => JSON.parse(row.spec) as EngineSpec) };
}

/** Returns the revision of the engine directory, which increases by one with each change. */
export async function enginesRevision(tables: StoreTables): Promise<number> {
  return (await tables.engines.state()).revision;
}

/** Returns the ids of the engines that were removed through the API. Nodes must not use them even if their own configuration lists them. */
export function removedIds(state: EngineStateRow): string[] {
  return JSON.parse(state.removed) as string[];
}

/** Returns what a node reported of its engines in its latest heartbeat; `null` when it has reported nothing yet. */
export function engineReportOf(row: NodeRow): EngineReport | null {
  return row.engines === null ? null : (JSON.parse(row.engines) as EngineReport);
}

/** Returns the report to store for a heartbeat. A report without the state of each engine keeps the counts of the earlier report. */
export function reportToStore(
  { info, ...report }: NonNullable<Heartbeat['engines']>,
  earlier: EngineReport | null,
): EngineReport {
  return { ...report, engines: info === null ? (earlier?.engines ?? countEngines([])) : countEngines(info) };
}

export function countEngines(info: readonly EngineInfo[]): EngineCounts {
  const healthy = info.filter((engine) => engine.healthy);
  const full = healthy.filter((engine) => engine.inflight >= (engine.max_concurrency ?? Number.POSITIVE_INFINITY));
  return { known: info.length, healthy: healthy.length, full: full.length };
}

/** Returns what each node reported of its engines, with the state of each engine, by node id. Nodes that reported nothing are left out. */
export async function reportedEngines(
  tables: StoreTables,
  rows: readonly NodeRow[],
): Promise<ReadonlyMap<string, ReportedEngines>> {
  const infos = await tables.nodes.engineInfo();
  return new Map(
    rows.flatMap((row): [string, ReportedEngines][] => {
      const report = engineReportOf(row);
      const info = JSON.parse(infos.get(row.node_id) ?? '[]') as EngineInfo[];
      return report === null ? [] : [[row.node_id, { ...report, info }]];
    }),
  );
}

/** Returns every engine that is registered or that a healthy node reports, with its state on each node. */
export async function enginesStatus(context: RolloutContext): Promise<EnginesStatus> {
  return context.store.read(async (tables) => {
    const directory = await readEngineDirectory(tables);
    const nodes = (await tables.nodes.list()).filter((row) => isHealthy(context, row));
    const views = new Map<string, EngineView>();
    for (const spec of directory.engines) {
      const { engine_id = '', kind, base_url, pool } = spec;
      views.set(engine_id, { engine_id, source: 'registered', kind, base_url, pool, nodes: [] });
    }
    const reports = await reportedEngines(tables, nodes);
    for (const row of nodes) {
      const reported = reports.get(row.node_id) ?? null;
      const infos = new Map((reported?.info ?? []).map((info) => [info.engine_id, info]));
      for (const { engine_id, kind, base_url, pool } of infos.values()) {
        if (!views.has(engine_id)) views.set(engine_id, { engine_id, source: 'node', kind, base_url, pool, nodes: [] });
      }
      for (const view of views.values()) {
        const info = infos.get(view.engine_id) ?? null;
        const onNode = engineOnNode(row.node_id, view, { reported, info, revision: directory.revision });
        if (onNode !== null) view.nodes.push(onNode);
      }
    }
    return { ...directory, engines: [...views.values()] };
  });
}

type OnNode = {
  readonly reported: ReportedEngines | null;
  /** The engine's state in the report; `null` when the report does not list the engine. */
  readonly info: EngineInfo | null;
  readonly revision: number;
};

/** Returns the state of one engine on one node; `null` when the engine is configured on another node only. */
function engineOnNode(
  nodeId: string,
  view: EngineView,
  { reported, info, revision }: OnNode,
): EngineView['nodes'][number] | null {
  const problem = reported?.problems.find((one) => one.engine_id === view.engine_id)?.message ?? null;
  if (info === null && view.source === 'node') return null;
  const isPending = info === null || (reported?.revision ?? -1) < revision;
  const state = problem !== null ? 'failed' : isPending ? 'pending' : 'ready';
  return { node_id: nodeId, state, problem, info };
}
