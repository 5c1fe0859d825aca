import type { ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import {
  accountProblems,
  type CheckedCompletion,
  type CheckedEntry,
  type CheckedResult,
  Facts,
  labelProblems,
  type SessionRecord,
  taskProblems,
  workProblems,
} from '../../../verify/matrix/checks.ts';

const completion = (id: string, index: number, changes: Partial<CheckedCompletion> = {}): CheckedCompletion => ({
  completion_id: id,
  index,
  call_kind: 'main',
  thread: 'main',
  message: { role: 'assistant', content: 'ok' },
  finish_reason: 'stop',
  abandoned: false,
  undelivered: false,
  request: { base: null, keep: 0, messages: [] },
  ...changes,
});

const entry = (id: string, scenario: string, tokens: number, changes: Partial<CheckedEntry> = {}): CheckedEntry => ({
  request_id: id,
  scenario,
  prompt_ids: [],
  response_ids: Array.from({ length: tokens }, (_, i) => i),
  aborted_at: null,
  faults: [],
  ...changes,
});

const trace = (...ids: string[]) => ({ trace_id: ids.join('+'), completion_ids: ids });

const RESULT: CheckedResult = {
  outcome: 'completed',
  reward: 1,
  error: null,
  audit: { tokens: { sampled: 12, trained: 9, excluded: { auxiliary: 3 } } },
  trajectory: { traces: [trace('a', 'b')] },
};

/**
 * Returns a session record for a test. By default it has two calls of the main agent and one auxiliary call, and passes every check;
 * `changes` overrides its fields.
 */
function good(changes: Partial<SessionRecord> = {}): SessionRecord {
  return {
    result: RESULT,
    completions: [completion('b', 2), completion('a', 0), completion('t', 1, { call_kind: 'title' })],
    entries: [entry('a', 'main', 4), entry('t', 'side', 3), entry('b', 'main', 5)],
    firedFaults: 0,
    ...changes,
  };
}

function problemsOf(session: SessionRecord): string[] {
  const facts = new Facts(session);
  return [...taskProblems(facts), ...accountProblems(facts), ...labelProblems(facts), ...workProblems(facts)];
}

const withResult = (changes: Partial<CheckedResult>): SessionRecord => good({ result: { ...RESULT, ...changes } });

describe('the checks of every test case', () => {
  it('find no problem in a session without errors', () => {
    expect(problemsOf(good())).toEqual([]);
  });

  it('report a session that ended with another outcome, with the reason', () => {
    const error = { code: 'harness_failed', message: 'it broke' };
    expect(problemsOf(withResult({ outcome: 'agent_error', error, reward: 0 }))).toEqual([
      'outcome agent_error instead of completed: harness_failed: it broke',
      'reward 0 instead of 1',
    ]);
  });

  it('accept the outcome that a test case expects', () => {
    const facts = new Facts(withResult({ outcome: 'agent_error' }));
    expect(taskProblems(facts, { outcome: 'agent_error' })).toEqual([]);
  });

  it('report tokens that the engine sampled and floe did not record', () => {
    const raw = good({ entries: [...good().entries, entry('lost', 'main', 7)] });
    expect(problemsOf(raw)).toEqual(['the engine sampled 7 tokens for lost, which floe did not record']);
  });

  it('require no record of a call that was aborted before its reply was delivered', () => {
    expect(problemsOf(good({ entries: [...good().entries, entry('cut', 'main', 7, { aborted_at: 7 })] }))).toEqual([]);
  });

  it('report a record that the engine never sampled', () => {
    const raw = good({ completions: [...good().completions, completion('made up', 3, { abandoned: true })] });
    expect(problemsOf(raw)).toEqual(['made up is recorded, and the engine never sampled it']);
  });

  it.each([
    [{ sampled: 11, trained: 8, excluded: { auxiliary: 3 } }, 'the audit has 11 sampled tokens, the ledger 12'],
    [{ sampled: 12, trained: 9, excluded: {} }, '9 trained and 0 excluded tokens are not the 12 sampled'],
  ])('report token counts that do not add up: %j', (tokens, problem) => {
    expect(problemsOf(withResult({ audit: { tokens } }))).toContain(problem);
  });

  it('report a side call that would be trained', () => {
    const completions = [completion('a', 0), completion('t', 1), completion('b', 2)];
    expect(problemsOf(good({ completions }))).toEqual(['t is a side call of the harness and labelled main']);
  });

  it("report the agent's own work when all of it is excluded", () => {
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

const texts = (...contents: string[]): ChatMessage[] => contents.map((content) => ({ role: 'user', content }));

describe('the facts of a session', () => {
  it('list completions by scenario in order of arrival', () => {
    const facts = new Facts(good());
    expect(facts.byScenario('main').map(({ completion_id }) => completion_id)).toEqual(['a', 'b']);
  });

  it('contain the whole conversation of a call whose record refers to an earlier one', () => {
    const completions = [
      completion('a', 0, { request: { base: null, keep: 0, messages: texts('system', 'task') } }),
      completion('b', 1, { request: { base: 'a', keep: 2, messages: texts('reply', 'result') } }),
      completion('c', 2, { request: { base: 'b', keep: 3, messages: texts('other result') } }),
    ];
    const facts = new Facts(good({ completions }));
    const [last] = completions.slice(-1);
    expect(last && facts.messages(last)).toEqual(texts('system', 'task', 'reply', 'other result'));
  });
});
