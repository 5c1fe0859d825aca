import type { EngineDirectory, EngineSpec } from '../../schema/index.ts';
import type { EngineStateRow, StoreTables } from '../../store/index.ts';

/** What nodes are told: the engines that were registered, and what holds for all. */
export async function engineDirectory(tables: StoreTables): Promise<EngineDirectory> {
  const state = await tables.engines.state();
  const rows = await tables.engines.list();
  return { ...state, removed: removedOf(state), engines: rows.map((row) => JSON.parse(row.spec) as EngineSpec) };
}

export async function enginesRevision(tables: StoreTables): Promise<number> {
  return (await tables.engines.state()).revision;
}

export function removedOf(state: EngineStateRow): string[] {
  return JSON.parse(state.removed) as string[];
}
