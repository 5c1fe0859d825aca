import { describe, expect, it } from 'vitest';
import { parseSetRow, rowText, type SetRow } from '../../src/session-sets/set-row.ts';
import { traceOf } from '../generation/results.ts';
import { setRow } from './sets.ts';

/** Parses a row after a change of its JSON. */
function parse(row: SetRow, change: (value: Record<string, never>) => void): SetRow {
  const value = JSON.parse(rowText(row));
  change(value);
  return parseSetRow(value, 'results.jsonl:3');
}

describe('parseSetRow', () => {
  it('accepts a result of a server, without its cursor', () => {
    expect(parse(setRow(), (value) => Object.assign(value, { cursor: 7 }))).toEqual(setRow());
  });

  it.each([
    [
      'a message without a role',
      { prompt_messages: [{ content: 'x' }] },
      /^results.jsonl:3: trajectory.traces.0.prompt_messages.0.role: /,
    ],
    ['fewer bits than tokens', { loss_mask: [1] }, /traces.0.loss_mask: has 1 entries for 2 response_ids/],
    ['fewer log-probabilities than tokens', { response_logprobs: [] }, /traces.0.response_logprobs: has 0 entries/],
    ['a token id beyond int32', { prompt_ids: [2 ** 31] }, /traces.0.prompt_ids: must be a list of token ids/],
    ['a token that is no id', { response_ids: [1, '2'] }, /traces.0.response_ids: must be a list of token ids/],
    ['a bit other than 0 and 1', { loss_mask: [1, 2] }, /traces.0.loss_mask: must be a list of 0 and 1/],
    ['an unknown field of a trace', { novelty: 1 }, /trajectory.traces.0.novelty: is a field that this version/],
    [
      'an unknown field of a message',
      { prompt_messages: [{ role: 'user', content: 'x', mood: 'good' }] },
      /prompt_messages.0.mood: is a field/,
    ],
  ])('refuses %s, with file, line and field', (_, fields, message) => {
    const row = setRow({}, [{ ...traceOf(), ...(fields as object) }]);
    expect(() => parse(row, () => {})).toThrow(message);
  });

  it('refuses an unknown field of the result, and what is no object', () => {
    expect(() => parse(setRow(), (value) => Object.assign(value, { extra: null }))).toThrow('extra: is a field');
    expect(() => parseSetRow('text', 'results.jsonl:3')).toThrow(/^results.jsonl:3: session_id/);
  });

  it('keeps a log-probability of -0 and the fields of metadata, whatever they are', () => {
    const trace = traceOf({ response_logprobs: [-0, -1e-45], metadata: { call_kind: 'main', deep: { x: [null] } } });
    const back = parseSetRow(JSON.parse(rowText(setRow({}, [trace]))), 'x');
    expect(back.trajectory?.traces[0]).toEqual(trace);
    expect(Object.is(back.trajectory?.traces[0]?.response_logprobs[0], -0)).toBe(true);
  });
});
