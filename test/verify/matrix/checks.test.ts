import { describe, expect, it } from 'vitest';
import { load } from './matrix.ts';

type Completion = Readonly<Record<string, unknown>>;
type Raw = {
  readonly result: Readonly<Record<string, unknown>>;
  readonly completions: readonly Completion[];
  readonly entries: readonly Readonly<Record<string, unknown>>[];
  readonly firedFaults: number;
};
type Facts = { byScenario(name: string): Completion[]; messages(completion: Completion): unknown[] };
type ChecksModule = {
  factsOf(raw: Raw): Facts;
  taskProblems(facts: Facts, expect?: { outcome?: string; reward?: number }): string[];
  accountProblems(facts: Facts): string[];
  labelProblems(facts: Facts): string[];
  workProblems(facts: Facts): string[];
};

const checks = await load<ChecksModule>('checks.mjs');

const completion = (id: string, index: number, changes: object = {}): Completion => ({
  completion_id: id,
  index,
  call_kind: 'main',
  thread: 'main',
  abandoned: false,
  undelivered: false,
  request: { base: null, keep: 0, messages: [] },
  ...changes,
});

const entry = (id: string, scenario: string, tokens: number, changes: object = {}) => ({
  request_id: id,
  scenario,
  response_ids: Array.from({ length: tokens }, (_, i) => i),
  aborted_at: null,
  ...changes,
});

const trace = (...ids: string[]) => ({ trace_id: ids.join('+'), completion_ids: ids });

/** A session of two main calls and one side call, of which everything holds. */
function good(changes: Partial<Raw> = {}): Raw {
  return {
    result: {
      outcome: 'completed',
      reward: 1,
      error: null,
      audit: { tokens: { sampled: 12, trained: 9, excluded: { auxiliary: 3 } } },
      trajectory: { traces: [trace('a', 'b')] },
    },
    completions: [completion('b', 2), completion('a', 0), completion('t', 1, { call_kind: 'title' })],
    entries: [entry('a', 'main', 4), entry('t', 'side', 3), entry('b', 'main', 5)],
    firedFaults: 0,
    ...changes,
  };
}

function problemsOf(raw: Raw): string[] {
  const facts = checks.factsOf(raw);
  const { taskProblems, accountProblems, labelProblems, workProblems } = checks;
  return [taskProblems, accountProblems, labelProblems, workProblems].flatMap((check) => check(facts));
}

const withResult = (changes: object): Raw => good({ result: { ...good().result, ...changes } });

describe('the checks of every cell', () => {
  it('find nothing in a good session', () => {
    expect(problemsOf(good())).toEqual([]);
  });

  it('find a session that ended otherwise, with the reason', () => {
    const error = { code: 'harness_failed', message: 'it broke' };
    expect(problemsOf(withResult({ outcome: 'agent_error', error, reward: 0 }))).toEqual([
      'outcome agent_error instead of completed: harness_failed: it broke',
      'reward 0 instead of 1',
    ]);
  });

  it('take the outcome that a cell expects', () => {
    const facts = checks.factsOf(withResult({ outcome: 'agent_error' }));
    expect(checks.taskProblems(facts, { outcome: 'agent_error' })).toEqual([]);
  });

  it('find tokens that the engine sampled and nobody recorded', () => {
    const raw = good({ entries: [...good().entries, entry('lost', 'main', 7)] });
    expect(problemsOf(raw)).toEqual(['the engine sampled 7 tokens for lost, which floe did not record']);
  });

  it('do not ask for the record of a call that was cut before anyone got it', () => {
    expect(problemsOf(good({ entries: [...good().entries, entry('cut', 'main', 7, { aborted_at: 7 })] }))).toEqual([]);
  });

  it('find a record that the engine knows nothing of', () => {
    const raw = good({ completions: [...good().completions, completion('made up', 3, { abandoned: true })] });
    expect(problemsOf(raw)).toEqual(['made up is recorded, and the engine never sampled it']);
  });

  it.each([
    [{ sampled: 11, trained: 8, excluded: { auxiliary: 3 } }, 'the audit has 11 sampled tokens, the ledger 12'],
    [{ sampled: 12, trained: 9, excluded: {} }, '9 trained and 0 excluded tokens are not the 12 sampled'],
  ])('find sums that do not hold: %j', (tokens, problem) => {
    expect(problemsOf(withResult({ audit: { tokens } }))).toContain(problem);
  });

  it('find a side call that would be trained', () => {
    const completions = [completion('a', 0), completion('t', 1), completion('b', 2)];
    expect(problemsOf(good({ completions }))).toEqual(['t is a side call of the harness and labelled main']);
  });

  it("find the agent's own work when all of it is excluded", () => {
    const raw = withResult({ trajectory: { traces: [trace('a')] } });
    expect(problemsOf(raw)).toEqual(["b (main) is the agent's work and in no trace"]);
    const abandoned = [
      completion('a', 0),
      completion('t', 1, { call_kind: 'title' }),
      completion('b', 2, { abandoned: true }),
    ];
    expect(problemsOf({ ...raw, completions: abandoned })).toEqual([]);
  });
});

describe('the facts of a session', () => {
  it('are in the order of arrival, by the script that gave them', () => {
    const facts = checks.factsOf(good());
    expect(facts.byScenario('main').map(({ completion_id }) => completion_id)).toEqual(['a', 'b']);
  });

  it('hold the whole conversation of a call whose record repeats an earlier one', () => {
    const completions = [
      completion('a', 0, { request: { base: null, keep: 0, messages: ['system', 'task'] } }),
      completion('b', 1, { request: { base: 'a', keep: 2, messages: ['reply', 'result'] } }),
      completion('c', 2, { request: { base: 'b', keep: 3, messages: ['other result'] } }),
    ];
    const facts = checks.factsOf(good({ completions }));
    const [last] = completions.slice(-1);
    expect(last && facts.messages(last)).toEqual(['system', 'task', 'reply', 'other result']);
  });
});
