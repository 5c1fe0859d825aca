import type { StoreTables } from '../store.ts';
import { SqlAliases } from './aliases.ts';
import { SqlBatches } from './batches.ts';
import { SqlCallbacks } from './callbacks.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';
import { SqlEngines } from './engines.ts';
import { SqlFacts } from './facts.ts';
import { SqlNodes } from './nodes.ts';
import { SqlResults } from './results.ts';
import { SqlSessions } from './sessions.ts';
import { SqlTasks, SqlTombstones } from './tasks.ts';
import { SqlDurations, SqlServiceTime } from './times.ts';

/** Creates the objects for all tables over one connection, which must be in a transaction. */
export function tablesOver(db: QueryBuilder, flavor: SqlFlavor): StoreTables {
  return {
    tasks: new SqlTasks(db, flavor),
    sessions: new SqlSessions(db, flavor),
    results: new SqlResults(db, flavor),
    nodes: new SqlNodes(db, flavor),
    callbacks: new SqlCallbacks(db, flavor),
    tombstones: new SqlTombstones(db, flavor),
    engines: new SqlEngines(db, flavor),
    serviceTime: new SqlServiceTime(db, flavor),
    durations: new SqlDurations(db, flavor),
    aliases: new SqlAliases(db),
    batches: new SqlBatches(db, flavor),
    facts: new SqlFacts(db, flavor),
  };
}
