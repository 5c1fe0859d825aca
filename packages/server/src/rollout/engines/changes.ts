import { isDeepStrictEqual } from 'node:util';
import { engineIdOf, FloeError, fieldError, isoNow } from '@floe-rl/core';
import { type EngineChange, type EngineSpec, engineKindSchema, type PauseMode } from '@floe-rl/core/schema';
import type { EngineStateRow, NodeRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { isHealthy } from '../nodes/nodes.ts';
import { runTransaction } from '../transaction.ts';
import { engineReportOf, removedIds, reportedEngines } from './directory.ts';

/**
 * A stored change of the engine directory, which is the server's list of registered engines and their settings. A node applies the change
 * when it receives the new directory in reply to a heartbeat.
 */
export type CommittedChange = { readonly revision: number; readonly engineIds: readonly string[] };

/**
 * Registers an engine at every node. Registering the same spec once more changes nothing. Throws `conflict` when another spec has the same
 * id, unless `replace` is set, and `schema_violation` for a kind that neither floe nor a module of the nodes has.
 */
export async function registerEngine(
  context: RolloutContext,
  requested: EngineSpec,
  replace = false,
): Promise<CommittedChange> {
  refuseUnknownKind(requested.kind, context.config.engine_kinds);
  const spec = { ...requested, engine_id: requested.engine_id ?? engineIdOf(requested.base_url) };
  const { engine_id } = spec;
  return changeEngines(context, async (tables, state) => {
    const known = (await tables.engines.list()).find((row) => row.engine_id === engine_id);
    if (known !== undefined) {
      if (isDeepStrictEqual(JSON.parse(known.spec), spec)) return { revision: state.revision, engineIds: [engine_id] };
      if (!replace) {
        const message = `engine ${engine_id} is already registered with other settings; replace or remove it, or choose another engine_id`;
        throw new FloeError('conflict', message, { engine_id });
      }
    }
    await tables.engines.put({ engine_id, spec: JSON.stringify(spec), registered_at: isoNow(context.clock) });
    const removed = removedIds(state).filter((id) => id !== engine_id);
    const { revision } = await tables.engines.advance({ removed: JSON.stringify(removed) });
    return { revision, engineIds: [engine_id] };
  });
}

function refuseUnknownKind(kind: string, modules: readonly string[]): void {
  const known: readonly string[] = [...engineKindSchema.options, ...modules];
  if (known.includes(kind)) return;
  const message = `there is no engine kind ${kind}; there are ${known.join(', ')}. List engine modules of the nodes in engine_kinds of the server`;
  throw fieldError('kind', message, { details: { known } });
}

/**
 * Removes one engine, or all engines when `engineId` is `null`, including those from the nodes' own configuration. Throws `not_found` for
 * an id that is neither registered nor reported by a node.
 */
export async function removeEngines(context: RolloutContext, engineId: string | null): Promise<CommittedChange> {
  return changeEngines(context, async (tables, state) => {
    const registered = (await tables.engines.list()).map((row) => row.engine_id);
    const reports = await reportedEngines(tables, await tables.nodes.list());
    const infos = [...reports.values()].flatMap(({ info }) => info);
    const known = [...new Set([...registered, ...infos.map((info) => info.engine_id)])];
    const removing = engineId === null ? known : known.filter((id) => id === engineId);
    if (engineId !== null && removing.length === 0) {
      throw new FloeError('not_found', `there is no engine ${engineId}`, { engine_id: engineId });
    }
    for (const id of removing) await tables.engines.remove(id);
    const removed = new Set([...removedIds(state), ...removing]);
    const { revision } = await tables.engines.advance({ removed: JSON.stringify([...removed]) });
    return { revision, engineIds: removing };
  });
}

/** Pauses the engines: every pool is closed for new calls. When the engines are already paused, this changes the mode of the pause. */
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

/** Sets the policy version that samples are recorded with from now on. It is used for engines that do not report a version themselves. */
export async function setPolicyVersion(context: RolloutContext, version: string): Promise<CommittedChange> {
  return advance(context, { policy_version: version });
}

/**
 * Waits up to `waitMs` until every healthy node has applied a change of the engines, and returns which nodes have applied it. Returns
 * earlier when `disconnected` is aborted.
 */
export async function waitUntilApplied(
  context: RolloutContext,
  { revision, engineIds }: CommittedChange,
  waitMs: number,
  disconnected: AbortSignal,
): Promise<EngineChange> {
  let latest: EngineChange = { revision, engine_ids: [...engineIds], done: [], pending: [], problems: [] };
  await context.wakeups.poll('engines', waitMs, disconnected, async () => {
    const rows = await context.store.read((tables) => tables.nodes.list());
    const nodes = rows.filter((row) => isHealthy(context, row));
    const hasApplied = (row: NodeRow): boolean => (engineReportOf(row)?.revision ?? -1) >= revision;
    const done = nodes.filter(hasApplied);
    latest = {
      ...latest,
      done: done.map((row) => row.node_id),
      pending: nodes.filter((row) => !hasApplied(row)).map((row) => row.node_id),
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

/**
 * Runs one change of the registered engines or their settings; other changes wait until it is committed. The heartbeat requests that the
 * server holds open are then answered, so that every node receives the change immediately.
 */
async function changeEngines(
  context: RolloutContext,
  work: (tables: StoreTables, state: EngineStateRow) => Promise<CommittedChange>,
): Promise<CommittedChange> {
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const committed = await work(tables, await tables.engines.lock());
    for (const row of await tables.nodes.list()) transaction.wake(`node:${row.node_id}`);
    return committed;
  });
}

function problemsOf(row: NodeRow, engineIds: readonly string[]): EngineChange['problems'] {
  const reported = engineReportOf(row);
  const problems = reported === null ? [] : [...reported.problems, ...reported.unpaused];
  const relevant = problems.filter(({ engine_id }) => engineIds.length === 0 || engineIds.includes(engine_id));
  return relevant.map((problem) => ({ node_id: row.node_id, ...problem }));
}
