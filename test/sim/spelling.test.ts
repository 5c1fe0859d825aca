import { describe, expect, test } from 'vitest';
import { scenarioSchema } from '../../src/sim/policy/scenario.ts';
import { compileReply } from '../../src/sim/policy/scripted-reply.ts';
import { bundledVocabulary } from '../../src/sim/vocabulary.ts';

const vocabulary = bundledVocabulary();
const TEXT = 'return the value é 🙂';

function symbolsOf(rule: object): number[] {
  const scenario = scenarioSchema.parse({
    name: 's',
    rules: [{ reply: [{ text: TEXT }, { call: { tool: 'bash', arguments: { command: 'ls' } } }], ...rule }],
  });
  return [...(compileReply(vocabulary, scenario, 0, 'append_only').leaves[0]?.symbols ?? [])];
}

describe('how a scenario says that its text is written', () => {
  test('letters give the same text in other ids, with delimiters whole', () => {
    const merged = symbolsOf({});
    const letters = symbolsOf({ spelling: 'letters' });
    expect(vocabulary.decode(letters)).toBe(vocabulary.decode(merged));
    expect(letters.length).toBeGreaterThan(merged.length);
    expect(letters).toContain(vocabulary.special.toolCallOpen);
    expect(vocabulary.encode(vocabulary.decode(letters.slice(0, -1)))).toEqual(merged.slice(0, -1));
  });

  test('a turn may end in another token than the one that the template closes it with', () => {
    const { imEnd, endOfText } = vocabulary.special;
    expect(symbolsOf({}).at(-1)).toBe(imEnd);
    expect(symbolsOf({ end: '<|endoftext|>' }).at(-1)).toBe(endOfText);
  });
});
