import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Measure, NewFactRow, SqliteStore } from '../../../src/store/index.ts';
import { factRow } from '../../store/store-rows.ts';
import { summaryOf, task, Workbench } from '../workbench.ts';

const HOUR_MS = 3_600_000;

let bench: Workbench;
let url: string;
let store: SqliteStore;
beforeEach(async () => {
  bench = await Workbench.create();
  const opened = await bench.open();
  store = opened.store;
  url = await (await bench.server({}, opened)).listen();
});
afterEach(() => bench.dispose());

async function add(rows: readonly Partial<NewFactRow>[]): Promise<void> {
  await store.transaction(async ({ facts }) => {
    for (const [i, row] of rows.entries()) await facts.add(factRow(`s${i}`, row));
  });
}

// biome-ignore lint/suspicious/noExplicitAny: replies are compared with expected values
async function get(path: string): Promise<any> {
  const response = await fetch(`${url}${path}`);
  return response.json();
}

const idsOf = async (query: string): Promise<string[]> =>
  (await get(`/sessions?${query}`)).sessions.map((one: { session_id: string }) => one.session_id);

describe('GET /sessions', () => {
  it('lists ended sessions newest first, with the number of all that match', async () => {
    await add([{ ended_ms: 1_700_000_000_123, agent: 'coder', reward: 0.5 }, { outcome: 'agent_error' }]);
    const { ended_ms: _, measures: _measures, ...rest } = factRow('s0', { agent: 'coder', reward: 0.5 });
    expect(await get('/sessions')).toEqual({
      sessions: [
        expect.objectContaining({ session_id: 's1', outcome: 'agent_error', ended_at: '1970-01-01T00:00:00.000Z' }),
        { ...rest, ended_ms: 1_700_000_000_123, ended_at: '2023-11-14T22:13:20.123Z' },
      ],
      next: null,
      total: 2,
    });
  });

  it('lists a session that was just delivered', async () => {
    const running = await bench.server();
    const client = await running.client();
    const node = await running.node();
    await client.submit(task({ metadata: { data_source: 'gsm8k' } }));
    const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
    if (lease === undefined) throw new Error('nothing was leased');
    await node.deliverResult({ summary: summaryOf(lease), trajectory: null, completions: null, artifacts: null });
    const listed = await (await fetch(`${await running.listen()}/sessions?source=gsm8k&usable=true`)).json();
    expect(listed).toMatchObject({ sessions: [{ session_id: lease.session_id, reward: 1 }], total: 1 });
  });

  it.each([
    ['task=t1', ['s1']],
    ['trainer=alice,bob', ['s2', 's1']],
    ['harness=floe', ['s1']],
    ['agent=coder', ['s1']],
    ['agent=none', ['s3', 's2', 's0']],
    ['source=gsm8k,none', ['s3', 's2', 's0']],
    ['split=test', ['s2']],
    ['outcome=agent_error,completed', ['s3', 's2', 's1', 's0']],
    ['unusable=agent_error', ['s2']],
    ['unusable=none&outcome=completed', ['s3', 's1', 's0']],
    ['version=8', ['s1']],
    ['node=n1', ['s3']],
    ['usable=false', ['s2']],
    ['usable=true&trainer=alice', ['s1']],
    ['min_reward=0.5', ['s1', 's0']],
    ['max_reward=0.5', ['s0']],
    ['min_turns=2&max_turns=2.5', ['s1']],
    ['min_tokens=100', ['s2']],
    ['max_tokens=99&min_turns=1.5', ['s1']],
    ['min_seconds=1.5&max_seconds=1.5', ['s2']],
    ['since=3600', ['s3']],
    ['until=1970-01-01T02:00:00%2B01:00', ['s2', 's1', 's0']],
    ['since=1970-01-01T00:59:59Z&until=3601', ['s3']],
  ])('selects sessions by %s', async (query, expected) => {
    await add([
      { reward: 0.5 },
      {
        task_id: 't1',
        trainer: 'alice',
        harness: 'floe',
        agent: 'coder',
        source: 'math',
        reward: 1,
        version: '8',
        turns: 2,
      },
      {
        trainer: 'bob',
        source: 'gsm8k',
        split: 'test',
        outcome: 'agent_error',
        unusable: 'agent_error',
        sampled_tokens: 100,
        total_ms: 1500,
      },
      { node_id: 'n1', ended_ms: HOUR_MS },
    ]);
    expect(await idsOf(query)).toEqual(expected);
  });

  it.each(['newest', 'oldest', 'reward', '-reward', 'turns', '-turns', 'tokens', '-tokens', 'seconds', '-seconds'])(
    'has every session on one page in the order %s',
    async (order) => {
      const rewards = [0.5, null, 1, 0.5, null, -1, 0.1];
      await add(
        rewards.map((reward, i) => ({ reward, turns: i % 3, sampled_tokens: (i * 5) % 7, total_ms: i % 2 ? i : null })),
      );
      const whole = await idsOf(`order=${order}`);
      const paged: string[] = [];
      let after = '';
      for (let pages = 0; pages < 4; pages++) {
        const page = await get(`/sessions?order=${order}&limit=2${after}`);
        paged.push(...page.sessions.map((one: { session_id: string }) => one.session_id));
        expect(page.total).toBe(pages === 0 ? 7 : null);
        expect(page.next === null).toBe(pages === 3);
        after = `&after=${page.next}`;
      }
      expect(paged).toEqual(whole);
      expect(new Set(paged).size).toBe(7);
    },
  );

  it('orders sessions by a value, newest first among equal ones, and those without one last', async () => {
    await add([{ reward: 0.5 }, { reward: null }, { reward: 1 }, { reward: 0.5 }]);
    expect(await idsOf('order=reward')).toEqual(['s3', 's0', 's2', 's1']);
    expect(await idsOf('order=-reward')).toEqual(['s2', 's3', 's0', 's1']);
  });

  it.each([
    ['colour=red', 'colour'],
    ['outcome=finished', 'outcome'],
    ['outcome=none', 'outcome'],
    ['unusable=completed,nothing', 'unusable'],
    ['source=a,,b', 'source'],
    ['usable=yes', 'usable'],
    ['min_reward=much', 'min_reward'],
    ['max_reward=1e300', 'max_reward'],
    ['min_turns=3e9', 'min_turns'],
    ['max_tokens=1e20', 'max_tokens'],
    ['agent=a%00b', 'agent'],
    ['min_reward=1&max_reward=0', 'min_reward'],
    ['min_seconds=1.5&max_seconds=1', 'min_seconds'],
    ['since=yesterday', 'since'],
    ['since=2026-01-01T00:00:00', 'since'],
    ['since=20&until=10', 'since'],
    ['order=best', 'order'],
    ['limit=0', 'limit'],
    ['after=abc', 'after'],
    [`after=${Buffer.from('["reward",null,1]').toString('base64url')}`, 'after'],
    [`after=${Buffer.from('["newest",null,-1]').toString('base64url')}`, 'after'],
    ['trainer=a&trainer=b', 'trainer'],
  ])('refuses %s and names the parameter', async (query, parameter) => {
    const { error } = await get(`/sessions?${query}`);
    expect(error.code).toBe('schema_violation');
    expect(JSON.stringify(error)).toContain(parameter);
  });

  it('does not take the place of a session', async () => {
    expect(await get('/sessions/unknown')).toMatchObject({ error: { code: 'not_found' } });
    const refused = await fetch(`${url}/sessions`, { method: 'DELETE' });
    expect([refused.status, refused.headers.get('allow')]).toEqual([405, 'GET']);
  });
});

describe('GET /sessions/totals', () => {
  it('sums all sessions, and those with equal values of the given fields', async () => {
    await add([
      { version: '1', reward: 0, turns: 2, sampled_tokens: 10, trained_tokens: 7, total_ms: 1000, queued_ms: 500 },
      { version: '1', reward: 1, turns: 4, sampled_tokens: 20, trained_tokens: 8, total_ms: 3000 },
      { version: null, outcome: 'infra_error', unusable: 'infra_error', ended_ms: HOUR_MS },
    ]);
    const sums = { sessions: 2, usable: 2, rewards: 2, reward_mean: 0.5, reward_deviation: 0.5, turns_mean: 3 };
    const tokens = { sampled_tokens: 30, trained_tokens: 15, seconds_mean: 2, queued_seconds_mean: 0.5 };
    expect(await get('/sessions/totals')).toMatchObject({
      groups: [{ by: {}, ...sums, sessions: 3, turns_mean: 7 / 3 }],
    });
    const empty = { rewards: 0, reward_mean: null, reward_deviation: null, seconds_mean: null };
    for (const filter of ['', '&min_turns=0']) {
      expect(await get(`/sessions/totals?by=outcome,version${filter}`)).toMatchObject({
        groups: [
          { by: { outcome: 'completed', version: '1' }, ...sums, ...tokens },
          { by: { outcome: 'infra_error', version: null }, sessions: 1, usable: 0, ...empty },
        ],
      });
    }
    const byHour = await get('/sessions/totals?by=hour&since=1');
    expect(byHour.groups).toMatchObject([{ by: { hour: '1970-01-01T01:00:00.000Z' }, sessions: 1 }]);
    expect(await get('/sessions/totals?trainer=other')).toEqual({ groups: [] });
  });

  it('sums by every field', async () => {
    await add([{ node_id: 'n1' }]);
    const fields = {
      hour: '1970-01-01T00:00:00.000Z',
      trainer: 'default',
      harness: 'shell',
      agent: null,
      source: null,
    };
    const others = { split: null, outcome: 'completed', unusable: null, version: null, node: 'n1', task: 't' };
    for (const [field, value] of Object.entries({ ...fields, ...others })) {
      expect(await get(`/sessions/totals?by=${field}`)).toMatchObject({ groups: [{ by: { [field]: value } }] });
    }
  });

  it('has a deviation of 0 for equal rewards, whatever is lost in rounding', async () => {
    await add(Array.from({ length: 7 }, () => ({ reward: 1e15 / 3 })));
    const { groups } = await get('/sessions/totals');
    expect(groups[0].reward_deviation).toBeLessThan(1e8);
    expect(groups[0].reward_deviation).toBeGreaterThanOrEqual(0);
  });

  it('refuses fields that are unknown, repeated or too many, and too many sums', async () => {
    for (const by of ['colour', 'node,node', 'node,task,agent,split', '']) {
      expect(await get(`/sessions/totals?by=${by}`)).toMatchObject({ error: { code: 'schema_violation' } });
    }
    await add(Array.from({ length: 10_001 }, (_, i) => ({ task_id: `t${i}` })));
    const { error } = await get('/sessions/totals?by=outcome,task');
    expect(error).toMatchObject({ code: 'schema_violation', message: expect.stringContaining('by: ') });
    expect(error.message).toContain('task has more than 10000 values');
    expect((await get('/sessions/totals?by=outcome')).groups).toHaveLength(1);
  });
});

describe('GET /sessions/histogram', () => {
  it('divides whole numbers into whole intervals', async () => {
    await add([1, 1, 2, 5].map((turns) => ({ turns })));
    expect(await get('/sessions/histogram?of=turns')).toEqual({
      of: 'turns',
      bins: [
        { from: 1, to: 2, sessions: 2 },
        { from: 2, to: 3, sessions: 1 },
        { from: 3, to: 4, sessions: 0 },
        { from: 4, to: 5, sessions: 0 },
        { from: 5, to: 6, sessions: 1 },
      ],
      without: 0,
    });
    const two = await get('/sessions/histogram?of=turns&bins=2');
    expect(two.bins).toEqual([
      { from: 1, to: 4, sessions: 3 },
      { from: 4, to: 7, sessions: 1 },
    ]);
  });

  it('divides other numbers into equal intervals, and counts the sessions without one', async () => {
    await add([{ reward: -1 }, { reward: 0 }, { reward: 0.9 }, { reward: 1 }, { reward: null }]);
    expect(await get('/sessions/histogram?of=reward&bins=4')).toEqual({
      of: 'reward',
      bins: [
        { from: -1, to: -0.5, sessions: 1 },
        { from: -0.5, to: 0, sessions: 0 },
        { from: 0, to: 0.5, sessions: 1 },
        { from: 0.5, to: 1, sessions: 2 },
      ],
      without: 1,
    });
  });

  it('has one interval for equal values, and none without values', async () => {
    await add([{ total_ms: 2500 }, { total_ms: 2500 }]);
    const { bins } = await get('/sessions/histogram?of=seconds');
    expect(bins).toMatchObject([{ from: 2.5, sessions: 2 }]);
    expect(await get('/sessions/histogram?of=reward')).toEqual({ of: 'reward', bins: [], without: 2 });
    expect(await get('/sessions/histogram?of=tokens&bins=0')).toMatchObject({ error: { code: 'schema_violation' } });
    expect(await get('/sessions/histogram')).toMatchObject({ error: { code: 'schema_violation' } });
  });
});

describe('GET /groups', () => {
  it('has one row for each task, and marks groups whose usable rewards are equal', async () => {
    await add([
      { task_id: 'a', reward: 1, source: 'gsm8k' },
      { task_id: 'b', reward: 0 },
      { task_id: 'b', reward: 1, unusable: 'agent_error' },
      { task_id: 'a', reward: 0.5, source: 'gsm8k', ended_ms: 5 },
      { task_id: 'c' },
    ]);
    const first = await get('/groups?limit=2');
    expect(first).toMatchObject({
      groups: [
        { task_id: 'c', sessions: 1, rewards: 0, reward_mean: null, is_degenerate: false },
        {
          task_id: 'a',
          source: 'gsm8k',
          harness: 'shell',
          sessions: 2,
          usable: 2,
          rewards: 2,
          reward_mean: 0.75,
          reward_min: 0.5,
          reward_max: 1,
          is_degenerate: false,
          ended_at: '1970-01-01T00:00:00.005Z',
        },
      ],
    });
    const second = await get(`/groups?limit=2&after=${first.next}`);
    expect(second).toMatchObject({
      groups: [{ task_id: 'b', usable: 1, reward_max: 1, is_degenerate: true }],
      next: null,
    });
    expect(await get(`/sessions?after=${first.next}`)).toMatchObject({ error: { code: 'schema_violation' } });
    expect((await get('/groups?source=none')).groups).toHaveLength(2);
  });
});

describe('GET /sessions/measures', () => {
  const measure = (kind: Measure['kind'], name: string, fields: Partial<Measure>): Measure => ({
    ...{ kind, name, bin: -1, count: 0, failures: 0, sum: 0, square_sum: 0 },
    ...fields,
  });

  it('returns the calls of tools with their times, for each value of a field', async () => {
    const bash = [
      measure('tool', 'bash', { count: 1, failures: 2, sum: 2_200 }),
      measure('tool', 'bash', { bin: 40, count: 2 }),
    ];
    await add([
      { harness: 'pi', measures: bash },
      {
        harness: 'codex',
        measures: [measure('tool', 'bash', { sum: 64, failures: 0 }), measure('tool', 'bash', { bin: 24, count: 1 })],
      },
      { harness: 'pi', measures: [measure('drift', 'rewritten', { count: 7 })] },
    ]);
    const { measures } = await get('/sessions/measures?of=tool&by=harness');
    expect(measures).toMatchObject([
      { by: { harness: 'codex' }, of: 'tool', name: 'bash', count: 1, failures: 0, mean: 0.064 },
      { by: { harness: 'pi' }, of: 'tool', name: 'bash', count: 3, failures: 2, mean: 1.1, deviation: null },
    ]);
    // Interval 40 ends at 1024 ms, and its middle is 2^(39.5/4).
    expect(measures[1].p50).toBeCloseTo(0.939, 3);
    expect(measures[1].p95).toBeCloseTo(0.939, 3);
  });

  it('returns several kinds, and the spread of parts of the reward', async () => {
    await add([
      {
        measures: [
          measure('reward', 'tests', { count: 1, sum: 1, square_sum: 1 }),
          measure('link', 'root', { count: 1 }),
        ],
      },
      { measures: [measure('reward', 'tests', { count: 1, sum: 0, square_sum: 0 })] },
      { measures: [measure('reward', 'tests', { failures: 1 })] },
    ]);
    const { measures } = await get('/sessions/measures?of=reward,link');
    expect(measures).toMatchObject([
      { of: 'link', name: 'root', count: 1, mean: null },
      { of: 'reward', name: 'tests', count: 2, failures: 1, mean: 0.5, deviation: 0.5, p50: null },
    ]);
  });

  it('selects sessions that have a measure', async () => {
    const tools = (name: string): Measure[] => [measure('tool', name, { count: 1 })];
    await add([{ measures: tools('bash') }, { measures: tools('Bash') }, { measures: tools('a"b%') }, {}]);
    expect(await idsOf('measure=tool:bash')).toEqual(['s0']);
    expect(await idsOf(`measure=tool:Bash,tool:${encodeURIComponent('a"b%')}`)).toEqual(['s2', 's1']);
    expect(await idsOf('measure=hint:bash')).toEqual([]);
    expect(await get('/sessions?measure=magic:bash')).toMatchObject({ error: { code: 'schema_violation' } });
  });

  it('refuses an unknown kind, and a request without one', async () => {
    expect(await get('/sessions/measures?of=magic')).toMatchObject({ error: { code: 'schema_violation' } });
    expect(await get('/sessions/measures')).toMatchObject({ error: { code: 'schema_violation' } });
  });
});
