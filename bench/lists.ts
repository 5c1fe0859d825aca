// Measures requests for lists and sums of ended sessions, over HTTP, and the cost of the end of a session that they cause. The floor is a
// request for the server's health, which reads nothing.
//
//   npm run bench -- lists [--sessions N] [--database sqlite|postgres] [--json]
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { systemClock } from '@floe-rl/core';
import { openStore } from '@floe-rl/server';
import { createRolloutServer } from '#server/rollout/index';
import { wholeNumber } from '../tools/whole-number.ts';
import { startPostgres } from '../verify/services/postgres-cluster.ts';
import { addEndedSessions, FIRST_END_MS } from './ended-sessions.ts';
import { median, printReport, type ReportRow } from './report.ts';

const { values: options } = parseArgs({
  options: {
    sessions: { type: 'string', default: '100000' },
    database: { type: 'string', default: 'sqlite' },
    json: { type: 'boolean', default: false },
  },
});
const SESSIONS = wholeNumber('sessions', options.sessions);
const ROUNDS = 7;
const LAST_END_MS = FIRST_END_MS + SESSIONS * 1000;

const iso = (ms: number): string => new Date(ms).toISOString();

const DAY = `since=${iso(LAST_END_MS - 24 * 3_600_000 - 1_234_567)}`;
const REQUESTS: readonly (readonly [name: string, path: string])[] = [
  ['list, newest', '/sessions'],
  ['list, one outcome', '/sessions?outcome=agent_timeout'],
  ['list, an outcome that no session has', '/sessions?outcome=infra_error'],
  ['list, ordered by reward', '/sessions?order=-reward'],
  [
    'list, five filters, ordered',
    '/sessions?usable=true&source=dataset-1,dataset-2&min_turns=10&max_seconds=200&node=node-3&order=-tokens',
  ],
  ['list, a policy version', `/sessions?version=${Math.floor(SESSIONS / 2048)}`],
  ['totals', '/sessions/totals'],
  ['totals by outcome and version', '/sessions/totals?by=outcome,version'],
  ['totals by hour, of the last day', `/sessions/totals?by=hour&${DAY}`],
  ['totals by source, usable', '/sessions/totals?by=source&usable=true'],
  ['totals by node', '/sessions/totals?by=node'],
  [
    'totals by split, five filters',
    '/sessions/totals?by=split&usable=true&source=dataset-1&min_turns=10&min_reward=0.5',
  ],
  [
    'measures of fidelity by harness, dialect and engine',
    '/sessions/measures?of=link,drift,rendered&by=harness,dialect,engine',
  ],
  ['measures of tools', '/sessions/measures?of=tool'],
  ['measures of tools by hour', '/sessions/measures?of=tool&by=hour'],
  ['measures of tools, of one node', '/sessions/measures?of=tool&node=node-3'],
  ['measures of rewards by source and version', '/sessions/measures?of=reward&by=source,version'],
  ['measures of tools, min_turns', '/sessions/measures?of=tool&min_turns=2'],
  ['histogram of rewards', '/sessions/histogram?of=reward'],
  ['histogram of tokens, of the last day', `/sessions/histogram?of=tokens&${DAY}`],
  ['groups, newest', '/groups'],
  ['groups of one source, min_reward', '/groups?source=dataset-5&min_reward=0.9'],
];

async function measure(url: string, path: string): Promise<number> {
  const times: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const startedMs = systemClock.monotonicMs();
    const reply = await fetch(`${url}${path}`);
    const body = await reply.text();
    times.push(systemClock.monotonicMs() - startedMs);
    if (!reply.ok) throw new Error(`${path}: ${body}`);
  }
  return Math.round((median(times) ?? 0) * 100) / 100;
}

const dir = await mkdtemp(join(tmpdir(), 'floe-bench-lists-'));
const cluster = options.database === 'postgres' ? await startPostgres() : null;
const database = (await cluster?.createDatabase()) ?? null;
const { store, blobs } = await openStore({ dir, database, blobs: null, clock: systemClock });
const server = await createRolloutServer({ port: 0 }, { store, blobs, clock: systemClock, validateTask: () => {} });
try {
  const addMs = await addEndedSessions(store, SESSIONS);
  const { url } = await server.listen();
  const figures: Record<string, number> = { add_us: Math.round(addMs * 1000) };
  const rows: ReportRow[] = [['µs per added fact', figures.add_us ?? 0]];
  const floorMs = await measure(url, '/health');
  figures.floor_ms = floorMs;
  rows.push(['floor: a request that reads nothing, ms', floorMs]);
  for (const [name, path] of REQUESTS) {
    const ms = await measure(url, path);
    figures[name] = ms;
    rows.push([`${name}, over the floor`, Math.round(ms / floorMs), `${ms} ms`]);
  }
  printReport(`${SESSIONS} ended sessions in ${options.database}`, rows, figures);
} finally {
  await server.close();
  await store.close();
  await cluster?.stop();
  await rm(dir, { recursive: true, force: true });
}
