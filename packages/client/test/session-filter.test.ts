import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { NewFactRow } from '../../server/src/store/index.ts';
import { Workbench } from '../../server/test/rollout/workbench.ts';
import { factRow } from '../../server/test/store/store-rows.ts';
import type { FloeClient, SessionFilter } from '../src/index.ts';
import { filterQuery } from '../src/session-filter.ts';

let bench: Workbench;
let client: FloeClient;
beforeEach(async () => {
  bench = await Workbench.create();
  const opened = await bench.open();
  client = await (await bench.server({}, opened)).client();
  const rows: Partial<NewFactRow>[] = [
    { task_id: 'a', reward: 1, version: '7', ended_ms: 1000 },
    { task_id: 'b', reward: 0, version: null, outcome: 'agent_error', unusable: 'agent_error', ended_ms: 2000 },
    { task_id: 'a', reward: 0.5, version: '8', ended_ms: 3000 },
  ];
  await opened.store.transaction(async ({ facts }) => {
    for (const [i, row] of rows.entries()) await facts.add(factRow(`s${i}`, row));
  });
});
afterEach(() => bench.dispose());

async function all<T>(list: AsyncIterable<T>): Promise<T[]> {
  const entries: T[] = [];
  for await (const entry of list) entries.push(entry);
  return entries;
}

const idsOf = async (filter: SessionFilter): Promise<string[]> =>
  (await all(client.endedSessions(filter, { order: 'oldest' }))).map((one) => one.session_id);

describe('a filter of ended sessions', () => {
  it('selects by one value, by several, and by none', async () => {
    expect(await idsOf({})).toEqual(['s0', 's1', 's2']);
    expect(await idsOf({ version: '7' })).toEqual(['s0']);
    expect(await idsOf({ version: ['8', null] })).toEqual(['s1', 's2']);
    expect(await idsOf({ outcome: 'completed', minReward: 0.6 })).toEqual(['s0']);
    expect(await idsOf({ usable: false })).toEqual(['s1']);
    expect(await idsOf({ since: new Date(1500), until: new Date(3000) })).toEqual(['s1']);
  });

  it('has a query parameter for each field', () => {
    const filter: Required<SessionFilter> = {
      task: 't',
      trainer: 't',
      harness: 'h',
      agent: 'a',
      source: 's',
      split: 's',
      outcome: 'completed',
      unusable: null,
      version: 'v',
      dialect: 'd',
      engine: 'e',
      node: 'n',
      measure: 'tool:bash',
      text: 'hello',
      usable: true,
      minReward: 0,
      maxReward: 1,
      minTurns: 0,
      maxTurns: 1,
      minTokens: 0,
      maxTokens: 1,
      minSeconds: 0,
      maxSeconds: 1,
      since: new Date(0),
      until: new Date(1),
    };
    const query = filterQuery(filter);
    expect(Object.keys(query)).toHaveLength(Object.keys(filter).length);
    expect(Object.values(query)).not.toContain(undefined);
    expect(query).toMatchObject({ unusable: 'none', since: '1970-01-01T00:00:00.000Z', max_seconds: 1 });
  });
});

describe('FloeClient', () => {
  it('reads the pages of a list one after the other', async () => {
    const rewards = (await all(client.endedSessions({}, { order: '-reward', pageSize: 1 }))).map((one) => one.reward);
    expect(rewards).toEqual([1, 0.5, 0]);
    const groups = await all(client.groups({}, { pageSize: 1 }));
    expect(groups.map(({ task_id, sessions, is_degenerate }) => [task_id, sessions, is_degenerate])).toEqual([
      ['a', 2, false],
      ['b', 1, false],
    ]);
  });

  it('sums ended sessions, and shows how their values are distributed', async () => {
    expect(await client.sessionTotals()).toMatchObject([{ by: {}, sessions: 3, usable: 2, reward_mean: 0.5 }]);
    const byVersion = await client.sessionTotals(['outcome', 'version'], { task: 'a' });
    expect(byVersion.map(({ by }) => by)).toEqual([
      { outcome: 'completed', version: '7' },
      { outcome: 'completed', version: '8' },
    ]);
    const { bins, without } = await client.sessionHistogram('reward', { usable: true }, { bins: 2 });
    expect([bins.map(({ sessions }) => sessions), without]).toEqual([[1, 1], 0]);
  });

  it('throws the error of a filter that the server refuses', async () => {
    const refused = client.sessionTotals([], { minReward: 2, maxReward: 1 });
    await expect(refused).rejects.toMatchObject({ code: 'schema_violation' });
  });
});
