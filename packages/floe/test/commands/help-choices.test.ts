import * as schemas from '@floe-rl/core/schema';
import { gatewayConfigSchema } from '@floe-rl/node';
import { CACHE_MODES } from '@floe-rl/sandbox';
import { rolloutConfigSchema } from '@floe-rl/server';
import { SIM_FACES } from '@floe-rl/sim';
import { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { COMMANDS } from '../../src/commands/commands.ts';
import { IMAGE_BACKENDS } from '../../src/commands/harbor-images.ts';
import { explained, LOG_LEVELS, listed } from '../../src/commands/options.ts';

/** Options that accept fewer values than the enum of their schema, and why. */
const PARTS: Readonly<Record<string, readonly string[]>> = {
  // The demo uses the programs of this machine, which sandboxes with an image do not have.
  'floe demo --backend': ['bubblewrap', 'local'],
  // Harbor tasks need a sandbox with an image.
  'floe harbor --backend': [...IMAGE_BACKENDS],
  'floe tasks --backend': [...IMAGE_BACKENDS],
};

/** Returns the values of each enum in the schemas of the API and of the settings. */
function enums(): string[][] {
  const all = [...Object.values(schemas), gatewayConfigSchema, rolloutConfigSchema];
  const found: string[][] = [[...LOG_LEVELS], [...CACHE_MODES], [...SIM_FACES]];
  for (const schema of all) {
    if (!(schema instanceof z.ZodType)) continue;
    const text = JSON.stringify(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }));
    for (const [, list] of text.matchAll(/"enum":(\[[^\]]*\])/g)) {
      const values = z
        .array(z.string())
        .min(2)
        .safeParse(JSON.parse(list ?? ''));
      if (values.success) found.push(values.data);
    }
  }
  return found;
}

/** Returns the lists of values in a help text: `a, b or c`, and `a: …; b: …`. */
function listsIn(text: string): string[][] {
  const plain = [...text.matchAll(/\b\w+(?:, \w+)* or \w+\b/g)].map(([list]) => list.split(/, | or /));
  const withMeanings = [...text.matchAll(/(?:^|; )(\w+): /g)].map(([, value]) => value ?? '');
  return [...plain, withMeanings];
}

/** Returns the lists of a help text that have several values of an enum, but are not the values of one. */
function wrongLists(option: string, text: string, known: readonly (readonly string[])[]): string[] {
  const exact = new Set([...known, PARTS[option] ?? []].map((values) => values.toSorted().join()));
  return listsIn(text)
    .filter((list) => known.some((values) => list.filter((one) => values.includes(one)).length > 1))
    .filter((list) => !exact.has(list.toSorted().join()))
    .map((list) => `${option}: ${list.join(', ')}`);
}

async function helpTexts(): Promise<[option: string, text: string][]> {
  const program = new Command('floe');
  for (const load of Object.values(COMMANDS)) (await load())(program);
  const texts = (command: Command, name: string): [string, string][] => [
    ...command.options.map((option): [string, string] => [`${name} ${option.long}`, option.description]),
    ...command.commands.flatMap((one) => texts(one, name)),
  ];
  return program.commands.flatMap((command) => texts(command, `floe ${command.name()}`));
}

describe('the help of options', () => {
  it('lists exactly the values of the enum that the option accepts', async () => {
    const known = enums();
    const texts = await helpTexts();
    expect(texts.flatMap(([option, text]) => wrongLists(option, text, known))).toEqual([]);
    // The lists are recognised at all.
    expect(texts.filter(([, text]) => text.includes(listed(schemas.engineKindSchema.options))).length).toBeGreaterThan(
      2,
    );
  });

  it('would not hide a value that was added to an enum, nor one that was removed', () => {
    const known = [['vllm', 'sglang', 'llama_cpp']];
    expect(wrongLists('--kind', `kind: ${listed(['vllm', 'sglang'])}`, known)).toEqual(['--kind: vllm, sglang']);
    expect(wrongLists('--kind', listed(['vllm', 'sglang', 'llama_cpp', 'x']), known)).toHaveLength(1);
    expect(wrongLists('--kind', explained({ vllm: 'the first', sglang: 'the other' }), known)).toHaveLength(1);
    expect(wrongLists('--kind', listed(['llama_cpp', 'vllm', 'sglang']), known)).toEqual([]);
  });
});
