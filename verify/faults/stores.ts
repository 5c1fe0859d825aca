import type { JsonOption } from '../../tools/json-option.ts';
import { refuseUnknown } from '../runner/options.ts';
import type { Progress } from '../runner/progress.ts';
import { conclude } from '../runner/report.ts';
import { type PostgresCluster, startPostgres, whyNoPostgres } from '../services/postgres-cluster.ts';
import { FINDING_KINDS, type FindingKind } from './traffic.ts';

const STORES = ['sqlite', 'postgres'];

/**
 * Calls `run` with each named store (`sqlite`, `postgres`), one after the other, and starts a PostgreSQL server for the second. Returns the
 * reports by store; `null` for PostgreSQL where it is not available. Throws `bad_request` for another name.
 */
export async function withStores<Report>(
  { program, stores, progress }: { readonly program: string; readonly stores: readonly string[]; progress: Progress },
  run: (store: string, postgres: PostgresCluster | null) => Promise<Report>,
): Promise<Record<string, Report | null>> {
  refuseUnknown('store', stores, STORES);
  const reports: Record<string, Report | null> = {};
  for (const store of stores) {
    const missing = store === 'postgres' ? whyNoPostgres() : null;
    if (missing !== null) progress.print(`${program} ${store}: skipped: ${missing}`);
    const postgres = store === 'postgres' && missing === null ? await startPostgres() : null;
    try {
      reports[store] = missing === null ? await run(store, postgres) : null;
    } finally {
      await postgres?.stop();
    }
  }
  return reports;
}

/**
 * Ends a program that tests stores and has already printed one line of text for each store. It failed when a store has a finding of any kind.
 */
export function concludeStores(
  stores: Readonly<Record<string, Readonly<Record<FindingKind, number>> | null>>,
  json: JsonOption,
): void {
  const reports = Object.values(stores);
  const isPassed = reports.every((report) => FINDING_KINDS.every((kind) => (report?.[kind] ?? 0) === 0));
  conclude({ line: null, keys: { stores }, isPassed, json });
}
