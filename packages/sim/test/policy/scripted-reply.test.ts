import { describe, expect, it } from 'vitest';
import { scenarioSchema } from '../../src/policy/scenario.ts';
import { compileReply } from '../../src/policy/scripted-reply.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';

const vocabulary = bundledVocabulary();
const TEXT = 'return the value é 🙂';

function symbolsOf(rule: object): number[] {
  const scenario = scenarioSchema.parse({
    name: 's',
    rules: [{ reply: [{ text: TEXT }, { call: { tool: 'bash', arguments: { command: 'ls' } } }], ...rule }],
  });
  return [...(compileReply(vocabulary, scenario, 0, 'append_only').turns[0]?.symbols ?? [])];
}

describe('the spelling and end of a rule', () => {
  it('gives the same text with other ids and whole delimiters when spelled in letters', () => {
    const merged = symbolsOf({});
    const letters = symbolsOf({ spelling: 'letters' });
    expect(vocabulary.decode(letters)).toBe(vocabulary.decode(merged));
    expect(letters.length).toBeGreaterThan(merged.length);
    expect(letters).toContain(vocabulary.special.toolCallOpen);
    expect(vocabulary.encode(vocabulary.decode(letters.slice(0, -1)))).toEqual(merged.slice(0, -1));
  });

  it("ends a turn with another token than the template's", () => {
    const { imEnd, endOfText } = vocabulary.special;
    expect(symbolsOf({}).at(-1)).toBe(imEnd);
    expect(symbolsOf({ end: '<|endoftext|>' }).at(-1)).toBe(endOfText);
  });
});
