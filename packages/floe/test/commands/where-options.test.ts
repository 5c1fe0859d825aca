import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { parseWhere } from '../../src/commands/where-options.ts';

describe('parseWhere', () => {
  it('makes the filter of a client from the names of the query parameters', () => {
    const texts = ['outcome=completed,agent_error', 'source=none', 'min_reward=-0.5', 'usable=false', 'since=10'];
    expect(parseWhere([...texts, 'until=2026-11-26T12:00:00+01:00'])).toEqual({
      outcome: ['completed', 'agent_error'],
      source: [null],
      minReward: -0.5,
      usable: false,
      since: new Date(10_000),
      until: new Date('2026-11-26T11:00:00Z'),
    });
  });

  it.each([
    ['colour=red', 'the names are task, trainer'],
    ['reward', 'write NAME=VALUE'],
    ['min_reward=', 'is not a number'],
    ['min_reward=high', 'is not a number'],
    ['usable=maybe', 'is not true or false'],
    ['since=2026-11-26T12:00:00', 'is not a time'],
    ['since=yesterday', 'is not a time'],
  ])('refuses %s', (text, message) => {
    expect(() => parseWhere([text])).toThrow(message);
  });

  it('has the names of all filters of the server', () => {
    const document = JSON.parse(readFileSync('docs/openapi.json', 'utf8')) as {
      readonly paths: { readonly '/sessions': { readonly get: { readonly parameters: readonly { name: string }[] } } };
    };
    const filters = document.paths['/sessions'].get.parameters
      .map(({ name }) => name)
      .filter((name) => !['order', 'limit', 'after'].includes(name));
    expect(filters.length).toBeGreaterThan(20);
    for (const name of filters) expect(() => parseWhere(['colour=red'])).toThrow(new RegExp(`\\b${name}\\b`));
    expect(parseWhere(['engine=vllm', 'text=disk full'])).toEqual({ engine: ['vllm'], text: 'disk full' });
  });

  it('refuses a name that occurs twice', () => {
    expect(() => parseWhere(['task=a', 'task=b'])).toThrow('write all values in one');
  });
});
