import { isDeepStrictEqual } from 'node:util';
import { isoNow } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { engineIdOf } from '../../core/ids.ts';
import type {
  EngineChange,
  EngineInfo,
  EngineSpec,
  EnginesStatus,
  EngineView,
  Heartbeat,
  PauseMode,
} from '../../schema/index.ts';
import type { EngineStateRow, NodeRow, StoreTables } from '../../store/index.ts';
import { change, type Effects, type RolloutContext } from '../context.ts';
import { isHealthy } from '../nodes/nodes.ts';
import { engineDirectory, removedOf } from './directory.ts';

/** What a node told of its engines in its latest heartbeat. */
type Told = NonNullable<Heartbeat['engines']>;

/** A change that is in the store; nodes carry it out when they hear of it. */
export type CommittedChange = { readonly revision: number; readonly engineIds: readonly string[] };

/** Every engine that is registered or that a node has, and where it can be used. */
export async function enginesStatus(context: RolloutContext): Promise<EnginesStatus> {
  return context.store.read(async (tables) => {
    const directory = await engineDirectory(tables);
    const nodes = (await tables.nodes.list()).filter((row) => isHealthy(context, row));
    const views = new Map<string, EngineView>();
    for (const spec of directory.engines) {
      const { engine_id = '', kind, base_url, pool } = spec;
      views.set(engine_id, { engine_id, source: 'registered', kind, base_url, pool, nodes: [] });
    }
    for (const row of nodes) {
      const told = toldBy(row);
      for (const info of told?.info ?? []) {
        const { engine_id, kind, base_url, pool } = info;
        if (!views.has(engine_id)) views.set(engine_id, { engine_id, source: 'node', kind, base_url, pool, nodes: [] });
      }
      for (const view of views.values()) {
        const onNode = engineOnNode(row.node_id, view, told, directory.revision);
        if (onNode !== null) view.nodes.push(onNode);
      }
    }
    return { ...directory, engines: [...views.values()] };
  });
}

/**
 * Registers an engine at every node. The same spec again changes nothing. Throws `conflict` when the id is that of another spec,
 * unless that is to be replaced.
 */
export async function registerEngine(
  context: RolloutContext,
  asked: EngineSpec,
  replace = false,
): Promise<CommittedChange> {
  const spec = { ...asked, engine_id: asked.engine_id ?? engineIdOf(asked.base_url) };
  const { engine_id } = spec;
  return changeEngines(context, async (tables, state) => {
    const known = (await tables.engines.list()).find((row) => row.engine_id === engine_id);
    if (known !== undefined) {
      if (isDeepStrictEqual(JSON.parse(known.spec), spec)) return { revision: state.revision, engineIds: [engine_id] };
      if (!replace) {
        const message = `engine ${engine_id} is registered otherwise; replace or remove it, or choose another engine_id`;
        throw new FloeError('conflict', message, { engine_id });
      }
    }
    await tables.engines.put({ engine_id, spec: JSON.stringify(spec), registered_at: isoNow(context.clock) });
    const removed = removedOf(state).filter((id) => id !== engine_id);
    const { revision } = await tables.engines.advance({ removed: JSON.stringify(removed) });
    return { revision, engineIds: [engine_id] };
  });
}

/** Removes one engine, or all when `engineId` is null; those of the nodes' own as well. Throws `not_found` for an id that nobody has. */
export async function removeEngines(context: RolloutContext, engineId: string | null): Promise<CommittedChange> {
  return changeEngines(context, async (tables, state) => {
    const registered = (await tables.engines.list()).map((row) => row.engine_id);
    const onNodes = (await tables.nodes.list()).flatMap((row) => toldBy(row)?.info ?? []).map((info) => info.engine_id);
    const known = [...new Set([...registered, ...onNodes])];
    const gone = engineId === null ? known : known.filter((id) => id === engineId);
    if (engineId !== null && gone.length === 0) {
      throw new FloeError('not_found', `there is no engine ${engineId}`, { engine_id: engineId });
    }
    for (const id of gone) await tables.engines.remove(id);
    const removed = new Set([...removedOf(state), ...gone]);
    const { revision } = await tables.engines.advance({ removed: JSON.stringify([...removed]) });
    return { revision, engineIds: gone };
  });
}

/** Closes every pool for new calls. Pausing again changes how. */
export async function pauseEngines(
  context: RolloutContext,
  mode: PauseMode,
  whilePaused: 'hold' | 'reject',
): Promise<CommittedChange> {
  return advance(context, { paused: mode, while_paused: whilePaused });
}

export async function resumeEngines(context: RolloutContext): Promise<CommittedChange> {
  return advance(context, { paused: null });
}

/** Names the weights that engines sample with from now on, where they do not tell themselves. */
export async function setPolicyVersion(context: RolloutContext, version: string): Promise<CommittedChange> {
  return advance(context, { policy_version: version });
}

/** Waits up to `waitMs` for every healthy node to carry the change out, and says which have. */
export async function settled(
  context: RolloutContext,
  { revision, engineIds }: CommittedChange,
  waitMs: number,
  gone: AbortSignal,
): Promise<EngineChange> {
  let latest: EngineChange = { revision, engine_ids: [...engineIds], done: [], pending: [], problems: [] };
  await context.wakeups.poll('engines', waitMs, gone, async () => {
    const rows = await context.store.read((tables) => tables.nodes.list());
    const nodes = rows.filter((row) => isHealthy(context, row));
    const has = (row: NodeRow): boolean => (toldBy(row)?.revision ?? -1) >= revision;
    const done = nodes.filter(has);
    latest = {
      ...latest,
      done: done.map((row) => row.node_id),
      pending: nodes.filter((row) => !has(row)).map((row) => row.node_id),
      problems: done.flatMap((row) => problemsOf(row, engineIds)),
    };
    return latest.pending.length === 0 ? latest : undefined;
  });
  return latest;
}

async function advance(
  context: RolloutContext,
  patch: Parameters<StoreTables['engines']['advance']>[0],
): Promise<CommittedChange> {
  return changeEngines(context, async (tables) => {
    const { revision } = await tables.engines.advance(patch);
    return { revision, engineIds: [] };
  });
}

/** One change follows the other, and every node hears of it at once. */
async function changeEngines(
  context: RolloutContext,
  work: (tables: StoreTables, state: EngineStateRow) => Promise<CommittedChange>,
): Promise<CommittedChange> {
  return change(context, async (tables, effects: Effects) => {
    const committed = await work(tables, await tables.engines.lock());
    for (const row of await tables.nodes.list()) effects.topics.add(`node:${row.node_id}`);
    return committed;
  });
}

function problemsOf(row: NodeRow, engineIds: readonly string[]): EngineChange['problems'] {
  const problems = toldBy(row)?.problems ?? [];
  const named = problems.filter(({ engine_id }) => engineIds.length === 0 || engineIds.includes(engine_id));
  return named.map((problem) => ({ node_id: row.node_id, ...problem }));
}

function engineOnNode(
  nodeId: string,
  view: EngineView,
  told: Told | null,
  revision: number,
): EngineView['nodes'][number] | null {
  const info: EngineInfo | null = told?.info.find((one) => one.engine_id === view.engine_id) ?? null;
  const problem = told?.problems.find((one) => one.engine_id === view.engine_id)?.message ?? null;
  if (info === null && view.source === 'node') return null;
  const state = problem !== null ? 'failed' : info === null || (told?.revision ?? -1) < revision ? 'pending' : 'ready';
  return { node_id: nodeId, state, problem, info };
}

/** What a node told of its engines in its latest heartbeat; null: nothing yet. */
export function toldBy(row: NodeRow): Told | null {
  return row.engines === null ? null : (JSON.parse(row.engines) as Told);
}
