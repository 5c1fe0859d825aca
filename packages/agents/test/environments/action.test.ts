import { describe, expect, it } from 'vitest';
import {
  answerIn,
  choiceForm,
  integerForm,
  readReply,
  replyOf,
  toolOf,
  wordForm,
} from '../../src/environments/action.ts';
import { call, calls, says } from './episodes.ts';

const move = choiceForm({ tool: 'move', description: 'Moves.', parameter: 'direction' }, ['up', 'down']);
const guess = integerForm({ tool: 'guess', description: 'Guesses.', parameter: 'number' }, -5, 50);

describe('actions as tool calls', () => {
  it('are declared with the parameter that they have', () => {
    expect(toolOf(move).function).toEqual({
      name: 'move',
      description: 'Moves.',
      parameters: {
        type: 'object',
        properties: { direction: { type: 'string', enum: ['up', 'down'] } },
        required: ['direction'],
        additionalProperties: false,
      },
    });
  });

  it('are read from the first call, and every call is answered', () => {
    const read = readReply(move, 'tool', calls(['move', { direction: 'up' }], ['move', { direction: 'down' }]));
    expect(read.action).toBe('up');
    expect(read.answer('Moved.')).toEqual([
      { role: 'tool', tool_call_id: 'id_0', content: 'Moved.' },
      { role: 'tool', tool_call_id: 'id_1', content: 'Not played: only the first tool call of a reply is played.' },
    ]);
  });

  it.each([
    ['no call', says('move up'), 'The reply calls no tool. Call the tool move.'],
    ['an unknown tool', call('jump', {}), 'There is no tool "jump". The tools are: move.'],
    ['a tool named like a property of objects', call('constructor', {}), 'There is no tool "constructor".'],
    ['broken JSON', call('move', '{"direction": '), 'The arguments of move are not valid JSON: "{\\"direction\\": ".'],
    ['deep JSON', call('move', '['.repeat(5_000)), 'The arguments of move are not valid JSON'],
    ['an unknown word', call('move', { direction: 'north' }), 'direction: Invalid option: expected one of "up"|"down"'],
    ['a missing parameter', call('move', {}), 'direction: Invalid option'],
    ['another type', call('move', { direction: ['up'] }), 'direction: Invalid option'],
    ['a further parameter', call('move', { direction: 'up', speed: 2 }), 'Unrecognized key: "speed"'],
    ['no object', call('move', '"up"'), 'Invalid input: expected object, received string'],
  ])('with %s are explained', (_, reply, problem) => {
    const read = readReply(move, 'tool', reply);
    expect(read.action).toBeNull();
    expect(read.problem).toContain(problem);
    expect(read.problem.length).toBeLessThan(500);
  });

  it('are answered by a user message when the reply has no call', () => {
    expect(readReply(move, 'tool', says('up')).answer('What?')).toEqual([{ role: 'user', content: 'What?' }]);
  });

  it('keep lone surrogates of a model out of observations', () => {
    const { problem } = readReply(move, 'tool', call('move', '{"\\ud800": 1}'));
    expect(problem).toContain('\ufffd');
    expect(/\p{Surrogate}/u.test(problem)).toBe(false);
  });
});

describe('actions as text', () => {
  it.each([
    ['the last answer', '<answer>down</answer> no, <answer> UP </answer>', 'up'],
    ['the last box', 'first \\boxed{down}, then \\boxed{up}', 'up'],
    ['the answer and not the box', '<answer>up</answer> \\boxed{down}', 'up'],
    ['the whole text', '  up\n', 'up'],
  ])('are %s', (_, text, action) => {
    expect(readReply(move, 'text', says(text)).action).toBe(action);
  });

  it.each([
    ['', 'The reply has no action.'],
    ['<answer>north</answer>', '"north" is not a direction.'],
    ['I move up', '"I move up" is not a direction.'],
  ])('of %j are explained', (text, problem) => {
    expect(readReply(move, 'text', says(text))).toMatchObject({ action: null, problem });
  });

  it('answer calls of tools that do not exist, and play the text', () => {
    const read = readReply(move, 'text', { ...call('move', {}), content: 'up' });
    expect(read.action).toBe('up');
    expect(read.answer('Moved.')).toEqual([
      { role: 'tool', tool_call_id: 'id_0', content: 'There are no tools here. Write the action as text.' },
      { role: 'user', content: 'Moved.' },
    ]);
  });

  it.each([
    ['7', 7],
    ['-5', -5],
    ['51', null],
    ['7.5', null],
    ['seven', null],
    ['9'.repeat(400), null],
  ])('read the integer %s', (text, action) => {
    expect(guess.fromText(text)).toBe(action);
  });

  it('read words of one length', () => {
    const word = wordForm({ tool: 'guess', description: '', parameter: 'word' }, 5);
    expect(['Horse', 'cats', 'horses', 'hor-e'].map((text) => word.fromText(text))).toEqual([
      'horse',
      null,
      null,
      null,
    ]);
  });

  it('are found in time in a huge text', () => {
    expect(answerIn(`${'<answer>'.repeat(200_000)}up</answer>`)).toBe('up');
    expect(answerIn('\\boxed{'.repeat(200_000))).toHaveLength(65_536);
  });
});

describe('replyOf', () => {
  it.each(['tool', 'text'] as const)('writes an action that is read as itself, as %s', (format) => {
    expect(readReply(guess, format, replyOf(guess, format, 12, 3)).action).toBe(12);
  });
});
