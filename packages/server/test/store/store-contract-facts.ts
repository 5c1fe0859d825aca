import fc from 'fast-check';
import { expect, it } from 'vitest';
import { factsTable } from '../../../../verify/control-plane/memory-store/facts.ts';
import { MemoryState } from '../../../../verify/control-plane/memory-store/state.ts';
import type { FactTable } from '../../src/store/facts.ts';
import type {
  FactFilter,
  FactGroupColumn,
  FactOrder,
  FactPosition,
  FactRow,
  Measure,
  MeasureTotals,
  NewFactRow,
  Store,
} from '../../src/store/index.ts';
import { addSessions, factRow, taskRow } from './store-rows.ts';

const HOUR_MS = 3_600_000;
const EVERY: FactFilter = { values: {}, ranges: {}, usable: null, sinceMs: null, untilMs: null };
const NEWEST: FactOrder = { by: 'fact_no', descending: true };
const AMOUNTS = { count: 0, failures: 0, sum: 0, square_sum: 0 };
const KINDS = ['tool', 'reward'] as const;
const NUMBERS = ['reward', 'turns', 'sampled_tokens', 'total_ms'] as const;
const GROUPINGS: readonly FactGroupColumn[] = [
  'hour_ms',
  'trainer',
  'harness',
  'agent',
  'source',
  'split',
  'outcome',
  'unusable',
  'version',
  'dialect',
  'engine',
  'node_id',
  'task_id',
];

const label = fc.constantFrom('a', 'b', 'c', null);
const ms = fc.option(fc.constantFrom(1.5, 20, 300.25));

const someMeasure: fc.Arbitrary<Measure> = fc.record({
  kind: fc.constantFrom('tool', 'reward', 'drift'),
  name: fc.constantFrom('bash', 'te"s\\t', '0'),
  bin: fc.constantFrom(-1, 0, 7),
  count: fc.nat({ max: 2 ** 40 }),
  failures: fc.nat({ max: 3 }),
  sum: fc.constantFrom(0, -0.25, 12.5),
  square_sum: fc.constantFrom(0, 0.0625),
});

/** Facts of few distinct values, so that filters and groups meet several of them. Halves and quarters are summed exactly. */
const someFacts: fc.Arbitrary<Partial<NewFactRow>> = fc.record({
  task_id: fc.constantFrom('t0', 't1', 't2'),
  trainer: fc.constantFrom('a', 'b'),
  harness: fc.constantFrom('shell', 'floe'),
  agent: label,
  source: label,
  split: label,
  outcome: fc.constantFrom('completed', 'agent_error'),
  unusable: fc.constantFrom(null, 'agent_error', 'no_reward'),
  reward: fc.option(fc.constantFrom(-1, 0, 0.25, 1)),
  version: label,
  dialect: label,
  engine: label,
  node_id: label,
  turns: fc.nat({ max: 4 }),
  sampled_tokens: fc.nat({ max: 2 ** 40 }),
  trained_tokens: fc.nat({ max: 2 ** 40 }),
  queued_ms: ms,
  total_ms: ms,
  engine_ms: ms,
  sandbox_ms: ms,
  measures: fc.array(someMeasure, { maxLength: 4 }),
  ended_ms: fc
    .integer({ min: 10 * HOUR_MS - 3, max: 10 * HOUR_MS + 3 })
    .chain((at) => fc.constantFrom(at, at + HOUR_MS, at + 2 * HOUR_MS)),
});

const subset = (values: readonly (string | null)[]) => fc.subarray([...values], { minLength: 1 });
const atTime = fc.option(
  fc
    .integer({ min: 9, max: 13 })
    .chain((hour) => fc.constantFrom(hour * HOUR_MS, hour * HOUR_MS - 2, hour * HOUR_MS + 1)),
);

const someFilter: fc.Arbitrary<FactFilter> = fc.record({
  values: fc.oneof(
    fc.record(
      {
        trainer: subset(['a', 'b']),
        source: subset(['a', 'b', null]),
        version: subset(['a', null]),
        dialect: subset(['a', null]),
        engine: subset(['b', null]),
      },
      { requiredKeys: [] },
    ),
    fc.record(
      {
        task_id: subset(['t0', 't1']),
        agent: subset(['a', null]),
        outcome: subset(['completed', 'agent_error']),
        unusable: subset(['agent_error', null]),
        harness: subset(['shell', 'floe']),
      },
      { requiredKeys: [] },
    ),
  ),
  ranges: fc.oneof(
    { weight: 2, arbitrary: fc.constant({}) },
    {
      weight: 1,
      arbitrary: fc.record(
        {
          reward: fc.record({ min: fc.constantFrom(-1, 0.2), max: fc.constant(0.5) }, { requiredKeys: [] }),
          turns: fc.record({ min: fc.nat({ max: 2 }), max: fc.constantFrom(3, 4) }, { requiredKeys: [] }),
          total_ms: fc.record({ min: fc.constant(20) }),
        },
        { requiredKeys: [] },
      ),
    },
  ),
  usable: fc.constantFrom(null, true, false),
  measures: fc.option(
    fc.array(fc.record({ kind: fc.constantFrom('tool', 'reward'), name: fc.constantFrom('bash', 'te"s\\t') }), {
      minLength: 1,
      maxLength: 2,
    }),
    { nil: undefined, freq: 1 },
  ),
  sinceMs: atTime,
  untilMs: atTime,
});

/** Adds facts to an empty database, then calls `check`. The rows have the numbers that the database would give them. */
async function addFacts(store: Store, rows: readonly Partial<NewFactRow>[]): Promise<void> {
  await store.transaction(async ({ facts }) => {
    for (const [i, row] of rows.entries()) await facts.add(factRow(`s${i}`, row));
  });
}

async function removeAll(store: Store, taskIds: readonly string[]): Promise<void> {
  await store.transaction(async (tables) => {
    for (const id of taskIds) {
      await tables.tasks.insert(taskRow(id, { ended_ms: 1, status: 'completed' }));
      const facts = await tables.facts.list({ ...EVERY, values: { task_id: [id] } }, NEWEST, null, 1_000);
      const ids = facts.map((row) => row.session_id);
      await addSessions(tables, id, ids);
    }
    await tables.tasks.removeEnded(2, 1_000);
  });
}

function positionOf(row: FactRow, order: FactOrder): FactPosition {
  return { factNo: row.fact_no, value: order.by === 'fact_no' ? null : row[order.by] };
}

/** Reads all pages of a list. */
async function readPages(store: Store, filter: FactFilter, order: FactOrder, limit: number): Promise<FactRow[]> {
  const read: FactRow[] = [];
  for (let after: FactPosition | null = null; ; ) {
    const from: FactPosition | null = after;
    const page = await store.read(({ facts }) => facts.list(filter, order, from, limit));
    read.push(...page);
    const last = page.at(-1);
    if (last === undefined || page.length < limit) return read;
    after = positionOf(last, order);
  }
}

/** Defines the tests of the facts of ended sessions, which every implementation of `Store` must pass. */
export function factTests(store: () => Store): void {
  it('returns the first versions of the usable sessions of tasks', async () => {
    await store().transaction(async ({ facts }) => {
      await facts.add(factRow('s0', { task_id: 't0', first_version: 'v1', version: 'v2' }));
      await facts.add(factRow('s1', { task_id: 't1' }));
      await facts.add(factRow('s2', { task_id: 't0', first_version: 'v3', unusable: 'no_reward' }));
      await facts.add(factRow('s3', { task_id: 't2', first_version: 'v1' }));
    });
    expect(await store().read(({ facts }) => facts.firstVersions(['t1', 't0', 'none']))).toEqual([
      { task_id: 't0', first_version: 'v1' },
      { task_id: 't1', first_version: null },
    ]);
  });

  it('keeps every column of the facts of a session, and refuses second facts of it', async () => {
    const row = factRow('s1', { agent: 'coder', source: 'gsm8k', version: '7', reward: -0.5, sampled_tokens: 2 ** 40 });
    await store().transaction(({ facts }) => facts.add(row));
    const [stored] = await store().read(({ facts }) => facts.list(EVERY, NEWEST, null, 9));
    const { measures: _, ...columns } = row;
    expect(stored).toEqual({ ...columns, fact_no: 1 });
    await expect(store().transaction(({ facts }) => facts.add(row))).rejects.toThrow();
  });

  it('sums the facts of an hour, and keeps the sums while they are folded', async () => {
    await addFacts(store(), [
      { reward: 1, turns: 2, queued_ms: 5, total_ms: 10 },
      { reward: null, unusable: 'no_reward', turns: 4, queued_ms: null, total_ms: null },
      { reward: 0.5, turns: 1, queued_ms: 1, total_ms: 20, ended_ms: HOUR_MS + 1 },
    ]);
    const expected = [
      { by: { hour_ms: 0 }, sessions: 2, usable: 1, rewards: 1, reward_sum: 1, turns: 6, timed: 1, total_ms: 10 },
      {
        by: { hour_ms: HOUR_MS },
        sessions: 1,
        usable: 1,
        rewards: 1,
        reward_square_sum: 0.25,
        queued: 1,
        queued_ms: 1,
      },
    ];
    const totals = () => store().read(({ facts }) => facts.totals(EVERY, ['hour_ms'], 9));
    expect(await totals()).toMatchObject(expected);
    for (let folded = 1; folded <= 4; folded++) {
      await store().transaction(({ facts }) => facts.fold(1));
      expect(await totals()).toMatchObject(expected);
    }
    expect(await store().read(({ facts }) => facts.unfolded(9))).toBe(0);
    expect(await store().transaction(({ facts }) => facts.fold(9))).toBe(0);
  });

  it('sums measures by kind, name and bin, from the totals and from facts', async () => {
    const call = { kind: 'tool', name: 'bash', bin: 3, count: 2, failures: 1, sum: 0.5, square_sum: 0 } as const;
    const part = { kind: 'reward', name: 'tests', bin: -1, count: 1, failures: 0, sum: 0.5, square_sum: 0.25 } as const;
    await addFacts(store(), [
      { node_id: 'n1', measures: [call, part] },
      { node_id: 'n2', measures: [call, { ...call, bin: 4 }] },
    ]);
    await store().transaction(({ facts }) => facts.fold(1));
    await store().read(async ({ facts }) => {
      expect(await facts.measures(EVERY, ['reward'], [], 9)).toEqual({
        measures: [{ ...part, by: {} }],
        isPartial: false,
      });
      const { measures: tools } = await facts.measures(EVERY, ['tool'], ['hour_ms'], 9);
      expect([...tools].sort((a, b) => a.bin - b.bin)).toEqual([
        { ...call, by: { hour_ms: 0 }, count: 4, failures: 2, sum: 1 },
        { ...call, by: { hour_ms: 0 }, bin: 4 },
      ]);
      const ofNode = { ...EVERY, values: { node_id: ['n1'] } };
      expect((await facts.measures(ofNode, ['tool'], [], 9)).measures).toEqual([{ ...call, by: {} }]);
      expect((await facts.measures(EVERY, ['hint'], [], 9)).measures).toEqual([]);
    });
  });

  it('reads the measures of the newest facts when more match than may be read', async () => {
    const ofRun = (count: number): Measure => ({ ...AMOUNTS, kind: 'tool', name: 'bash', bin: 1, count });
    await addFacts(store(), [{ measures: [ofRun(1)] }, { measures: [ofRun(10)] }, { measures: [ofRun(100)] }]);
    const ofTasks = { ...EVERY, values: { task_id: ['t'] } };
    await store().read(async ({ facts }) => {
      const { measures, isPartial } = await facts.measures(ofTasks, ['tool'], [], 2);
      expect([110, 111]).toContain(measures[0]?.count);
      expect(isPartial).toBe(measures[0]?.count === 110);
      expect((await facts.measures(ofTasks, ['tool'], [], 3)).isPartial).toBe(false);
    });
  });

  it('sums nothing to nothing', async () => {
    await store().read(async ({ facts }) => {
      expect(await facts.totals(EVERY, [], 9)).toEqual([]);
      expect(await facts.count(EVERY, 9)).toBe(0);
      expect(await facts.spread(EVERY, 'reward')).toEqual({ min: null, max: null, valued: 0, without: 0 });
      expect(await facts.groups(EVERY, null, 9)).toEqual([]);
    });
  });

  it('finds sessions by words and phrases, together with other filters, until they are removed', async () => {
    const words = {
      s0: 'the agent wrote a patch for café',
      s1: 'a patch the agent wrote',
      s2: '',
    };
    const found = async (phrases: readonly string[], filter = EVERY): Promise<string[]> => {
      const selected = { ...filter, phrases };
      const rows = await store().read(({ facts }) =>
        facts.list(selected, { by: 'fact_no', descending: false }, null, 9),
      );
      expect(await store().read(({ facts }) => facts.count(selected, 100))).toBe(rows.length);
      const totals = await store().read(({ facts }) => facts.totals(selected, [], 9));
      expect(totals.reduce((sum, one) => sum + one.sessions, 0)).toBe(rows.length);
      return rows.map((row) => row.session_id);
    };
    await store().transaction(async ({ facts }) => {
      for (const [id, text] of Object.entries(words)) await facts.add(factRow(id, { task_id: id }), text);
    });
    expect(await found(['patch'])).toEqual(['s0', 's1']);
    expect(await found(['patch', 'café'])).toEqual(['s0']);
    expect(await found(['agent wrote'])).toEqual(['s0', 's1']);
    expect(await found(['wrote agent'])).toEqual([]);
    expect(await found(['wrote a patch'])).toEqual(['s0']);
    expect(await found(['pat'])).toEqual([]);
    expect(await found(['patch'], { ...EVERY, values: { task_id: ['s1'] } })).toEqual(['s1']);
    await removeAll(store(), ['s0']);
    expect(await found(['patch'])).toEqual(['s1']);
  });

  it('keeps no words of a transaction that fails', async () => {
    const failing = store().transaction(async ({ facts }) => {
      await facts.add(factRow('s1'), 'patch');
      throw new Error('it fails');
    });
    await expect(failing).rejects.toThrow('it fails');
    await store().transaction(({ facts }) => facts.add(factRow('s2'), 'other'));
    const selected = { ...EVERY, phrases: ['patch'] };
    expect(await store().read(({ facts }) => facts.list(selected, NEWEST, null, 9))).toEqual([]);
  });

  it('removes facts with their task, and subtracts those that were folded from the totals', async () => {
    await addFacts(store(), [
      { task_id: 'old', reward: 0.1 },
      { task_id: 'kept', reward: 0.5 },
      { task_id: 'old', reward: 0.3, version: 'v2' },
    ]);
    await store().transaction(({ facts }) => facts.fold(2));
    await removeAll(store(), ['old']);
    await store().read(async ({ facts }) => {
      expect((await facts.list(EVERY, NEWEST, null, 9)).map((row) => row.session_id)).toEqual(['s1']);
      const totals = await facts.totals(EVERY, ['version'], 9);
      expect(totals).toMatchObject([{ by: { version: null }, sessions: 1, rewards: 1, turns: 1 }]);
      expect(totals[0]?.reward_sum).toBeCloseTo(0.5, 9);
    });
    // The database must not assign the number of a removed fact once more, because a fact with this number would count as part of the totals.
    await store().transaction(({ facts }) => facts.add(factRow('late')));
    expect(await store().read(({ facts }) => facts.count(EVERY, 9))).toBe(2);
  });

  it('does not count facts when too many would have to be read, except those of tasks and of the totals', async () => {
    await addFacts(store(), [{ task_id: 't0', turns: 3 }, {}, {}]);
    await store().read(async ({ facts }) => {
      const byTurns = { ...EVERY, ranges: { turns: { min: 2 } } };
      expect(await facts.count(byTurns, 3)).toBe(1);
      expect([1, null]).toContain(await facts.count(byTurns, 2));
      expect(await facts.count({ ...byTurns, values: { task_id: ['t0'] } }, 1)).toBe(1);
      expect(await facts.count({ ...EVERY, values: { trainer: ['default'] } }, 1)).toBe(3);
    });
  });

  it('returns the newest group first, and of a group only the facts that match', async () => {
    await addFacts(store(), [
      { task_id: 'a', reward: 1, ended_ms: 5 },
      { task_id: 'b', reward: 0.5, unusable: 'agent_error' },
      { task_id: 'b', reward: 0, ended_ms: 7 },
      { task_id: 'a', reward: null, ended_ms: 9 },
    ]);
    await store().read(async ({ facts }) => {
      const [newest, ...others] = await facts.groups(EVERY, null, 1);
      expect(newest).toMatchObject({ task_id: 'a', fact_no: 4, sessions: 2, rewards: 1, reward_sum: 1, ended_ms: 9 });
      expect(others).toEqual([]);
      const rest = await facts.groups(EVERY, 4, 9);
      expect(rest).toMatchObject([{ task_id: 'b', usable: 1, reward_max: 0.5, usable_reward_max: 0 }]);
      const rewarded = await facts.groups({ ...EVERY, ranges: { reward: { min: 0 } } }, null, 9);
      expect(rewarded.map(({ task_id, sessions }) => [task_id, sessions])).toEqual([
        ['b', 2],
        ['a', 1],
      ]);
    });
  });

  it('lists, counts, sums and groups random facts as a plain computation does, whatever was folded and removed', async () => {
    let round = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(someFacts, { maxLength: 25 }),
        fc.array(someFilter, { minLength: 1, maxLength: 4 }),
        fc.subarray([...GROUPINGS], { maxLength: 3 }),
        fc.record({ by: fc.constantFrom('fact_no', ...NUMBERS), descending: fc.boolean() }),
        fc.record({
          folds: fc.array(fc.integer({ min: 1, max: 20 }), { maxLength: 2 }),
          removed: fc.option(fc.constantFrom('t0', 't1')),
        }),
        async (rows, filters, by, order, { folds, removed }) => {
          const prefix = `r${round++}-`;
          try {
            const own = rowsOf(rows, prefix);
            await store().transaction(async ({ facts }) => {
              for (const row of own) await facts.add(row);
              for (const limit of folds) await facts.fold(limit);
            });
            if (removed !== null) await removeAll(store(), [`${prefix}${removed}`]);
            const kept = own.filter((row) => row.task_id !== `${prefix}${removed}`);
            const expected = await modelOf(store(), kept);
            for (const some of filters) await compare(store(), expected, ofTasks(some, prefix), order, by);
          } finally {
            // Removes all facts before the next round. The removal subtracts them from the totals until the totals are empty.
            await removeAll(
              store(),
              ['t0', 't1', 't2'].map((id) => `${prefix}${id}`),
            );
          }
          expect(await store().read(({ facts }) => facts.totals(EVERY, ['hour_ms', 'source'], 9))).toEqual([]);
          expect((await store().read(({ facts }) => facts.measures(EVERY, KINDS, [], 9))).measures).toEqual([]);
        },
      ),
      { numRuns: 40 },
    );
  });
}

/** Returns rows whose ids have the prefix of a round. All rows of a task have the trainer, harness and source of its first row. */
function rowsOf(rows: readonly Partial<NewFactRow>[], prefix: string): NewFactRow[] {
  return rows.map((row, i) => {
    const first = rows.find(({ task_id }) => task_id === row.task_id) ?? row;
    const { trainer = 'a', harness = 'shell', source = null } = first;
    return factRow(`${prefix}s${i}`, { ...row, trainer, harness, source, task_id: `${prefix}${row.task_id}` });
  });
}

/** Returns the filter with the prefix of a round before its task ids. */
function ofTasks(filter: FactFilter, prefix: string): FactFilter {
  const { task_id: tasks, ...values } = filter.values;
  if (tasks === undefined) return filter;
  return { ...filter, values: { ...values, task_id: tasks.map((id) => `${prefix}${id}`) } };
}

async function compare(
  store: Store,
  expected: FactTable,
  filter: FactFilter,
  order: FactOrder,
  by: readonly FactGroupColumn[],
): Promise<void> {
  expect(await readPages(store, filter, order, 4)).toEqual(await expected.list(filter, order, null, 100));
  await store.read(async ({ facts }) => {
    expect(await facts.count(filter, 1e9)).toBe(await expected.count(filter, 1e9));
    expect(await facts.totals(filter, by, 100)).toEqual(await expected.totals(filter, by, 100));
    const measured = await facts.measures(filter, KINDS, by, 1000);
    const others = await expected.measures(filter, KINDS, by, 1000);
    expect([...measured.measures].sort(inAnyOrder)).toEqual([...others.measures].sort(inAnyOrder));
    expect(await facts.groups(filter, null, 9)).toEqual(await expected.groups(filter, null, 9));
    for (const column of NUMBERS) {
      expect(await facts.spread(filter, column)).toEqual(await expected.spread(filter, column));
      const intervals = { from: -0.5, width: 0.75, bins: 4 };
      const counts = await expected.histogram(filter, column, intervals);
      expect(await facts.histogram(filter, column, intervals)).toEqual(counts);
    }
  });
}

function inAnyOrder(a: MeasureTotals, b: MeasureTotals): number {
  const key = ({ by, kind, name, bin }: MeasureTotals): string => JSON.stringify([by, kind, name, bin]);
  return key(a) < key(b) ? -1 : 1;
}

/** Returns the facts in memory, with the numbers that the store gave them. */
async function modelOf(store: Store, rows: readonly NewFactRow[]): Promise<FactTable> {
  const stored = await store.read(({ facts }) => facts.list(EVERY, NEWEST, null, 1000));
  const numbers = new Map(stored.map((row) => [row.session_id, row.fact_no]));
  expect(numbers.size).toBe(rows.length);
  const state = new MemoryState();
  for (const row of rows) state.facts.put(row.session_id, { ...row, fact_no: numbers.get(row.session_id) ?? -1 });
  return factsTable(state);
}
