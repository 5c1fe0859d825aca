import { describe, expect, it } from 'vitest';
import {
  type Adapters,
  allRows,
  load,
  type Made,
  type PlanModule,
  plainRow,
  type Row,
  type ScriptModule,
} from './matrix.ts';
import { policyOfScenarios } from './policy.ts';

const { CELL_NAMES, checkRow, planCells } = await load<PlanModule>('plan.mjs');
const { mainScenario, sideScenario, subagentScenario, SUBAGENT_MARK } = await load<ScriptModule>('script.mjs');
const rows = await allRows();

const adapters: Adapters = new Map([
  ['plain', { dialects: ['anthropic', 'gemini'], version: '1.0', installed: true }],
  ['absent', { dialects: ['gemini'], version: '2.0', installed: false }],
]);
const served = ['anthropic', 'gemini'];

const skipsOf = (row: Row, options: { served?: string[]; filter?: Record<string, string[]> } = {}) =>
  Object.fromEntries(
    planCells([row], { adapters, served, ...options }).map(({ dialect, cell, skip }) => [`${cell}/${dialect}`, skip]),
  );

describe('the plan', () => {
  it('has every cell in every dialect of every variant', () => {
    const row = plainRow({
      variants: [
        { label: 'one', settings: {} },
        { label: 'two', settings: { a: 1 } },
      ],
    });
    const plan = planCells([row], { adapters, served });
    expect(plan).toHaveLength(2 * 2 * CELL_NAMES.length);
    expect(plan.every(({ skip }) => skip === null)).toBe(true);
  });

  it('keeps a variant to its own dialects', () => {
    const row = plainRow({ variants: [{ label: 'one', settings: {}, dialects: ['gemini'] }] });
    expect(new Set(planCells([row], { adapters, served }).map(({ dialect }) => dialect))).toEqual(new Set(['gemini']));
  });

  it('skips with a reason what cannot be run', () => {
    expect(Object.values(skipsOf(plainRow({ harness: 'nobody' })))[0]).toBe('floe has no harness nobody');
    expect(skipsOf(plainRow(), { served: ['gemini'] })).toMatchObject({
      'edit/anthropic': 'floe does not serve anthropic',
      'edit/gemini': null,
    });
    expect(skipsOf(plainRow({ harness: 'absent' }))['edit/gemini']).toBe('not installed: floe harness install absent');
  });

  it('takes a reason for a cell, for one dialect of it, and for one variant', () => {
    const row = plainRow({
      skips: { image: 'blind', 'edit/gemini': 'no edits there', 'subagent@plain': 'alone', compaction: 'never' },
    });
    expect(skipsOf(row)).toMatchObject({
      'image/gemini': 'blind',
      'image/anthropic': 'blind',
      'edit/gemini': 'no edits there',
      'edit/anthropic': null,
      'subagent/gemini': 'alone',
    });
  });

  it('says so when a row leaves something out without a reason', () => {
    const { calls } = plainRow();
    const row = plainRow({ calls: { ...calls, subagent: null }, compaction: null });
    expect(skipsOf(row)).toMatchObject({
      'subagent/gemini': 'the row says nothing of subagent',
      'compaction/gemini': 'the row says nothing of compaction',
    });
  });

  it('narrows to what was asked for', () => {
    expect(skipsOf(plainRow(), { filter: { dialect: ['gemini'], cell: ['edit', 'image'] } })).toEqual({
      'edit/gemini': null,
      'image/gemini': null,
    });
  });
});

describe('a row', () => {
  it.each(rows)('%s is well-formed, and has a reason for every cell that it leaves out', (file, row) => {
    checkRow(row, file);
    const own: Adapters = new Map([[row.harness, { dialects: ['gemini'], version: null, installed: true }]]);
    const plan = planCells([row], {
      adapters: own,
      served: ['gemini', 'anthropic', 'openai_chat', 'openai_responses'],
    });
    for (const { skip } of plan) expect(skip ?? '').not.toMatch(/^the row says nothing/);
  });

  it.each([
    [{ harness: 1 }, /harness must be a name/],
    [{ variants: [] }, /variants must list/],
    [{ calls: {} }, /calls.shell/],
    [{ skips: { no_such_cell: 'x' } }, /no such cell/],
    [{ skips: { 'edit@other': 'x' } }, /no such variant/],
  ])('is refused with %j', (change, message) => {
    expect(() => checkRow({ ...plainRow(), ...change }, 'x.mjs')).toThrow(message);
  });

  it.each(rows)('%s gives scenarios that the simulator takes in every cell that it runs', async (_file, row) => {
    const own: Adapters = new Map([[row.harness, { dialects: ['gemini'], version: null, installed: true }]]);
    for (const planned of planCells([row], { adapters: own, served: ['gemini'] })) {
      if (planned.skip !== null) continue;
      const { cell } = await load<{ cell: { build(from: typeof planned): Made } }>(`cells/${planned.cell}.mjs`);
      const made = cell.build(planned);
      expect(() => policyOfScenarios(made.scenarios)).not.toThrow();
      expect(made.grader).toContain('PASSED task');
      expect(made.instruction).not.toContain(SUBAGENT_MARK);
    }
  });
});

describe('the script', () => {
  const row = plainRow({ mainTools: ['sh', 'r'], turnOffset: 1 });
  const scenarios = [
    subagentScenario(row, [[{ text: 'sub 0' }], [{ text: 'sub 1' }]]),
    mainScenario(row, [[{ text: 'main 0' }], [{ text: 'main 1' }]]),
    sideScenario(row),
  ];
  const { ask } = policyOfScenarios(scenarios);
  const tools = ['sh', 'r', 'other'];

  it('answers by how many turns there were, not counting those of the harness itself', () => {
    expect(ask({ tools, user: 'go', turns: 1 })).toBe('main/0');
    expect(ask({ tools, user: 'go', turns: 2 })).toBe('main/1');
    expect(ask({ tools, user: 'go', turns: 9 })).toBe('main/1');
  });

  it('takes a request without the main tools for a side call, whatever its text lists', () => {
    expect(ask({ tools: ['sh'], user: 'go', turns: 1 })).toBe('side/0');
    expect(ask({ tools: [], system: '<tools>\n- sh: runs "name": r\n</tools>', user: 'go', turns: 1 })).toBe('side/0');
  });

  it('finds the tools behind a list of tools in the system prompt', () => {
    expect(ask({ tools, system: '<tools>\n- sh: runs\n</tools>', user: 'go', turns: 1 })).toBe('main/0');
  });

  it('knows a sub-agent by the mark in its first message', () => {
    expect(ask({ tools, user: `# Task\n${SUBAGENT_MARK}: work`, turns: 0 })).toBe('subagent/0');
    expect(ask({ tools, user: `# Task\n${SUBAGENT_MARK}: work`, turns: 3 })).toBe('subagent/1');
  });
});
