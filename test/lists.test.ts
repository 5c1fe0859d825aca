import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { engineKindSchema, engineSpecSchema } from '@floe-rl/core/schema';
import { CONDITION_FIELDS } from '@floe-rl/data';
import { evaluatorRegistry } from '@floe-rl/evaluators';
import { describe, expect, it } from 'vitest';
import { reportsLoad } from '#capture/engines/engine-kinds';
import { repositoryRoot } from '../tools/repository.ts';
import { readSources } from '../tools/site/sources.ts';
import { checkIndex, checkSourceLinks } from '../verify/docs/links.ts';

const ROOT = repositoryRoot();
const KINDS = engineKindSchema.options;
const WITH_LOAD = KINDS.filter(reportsLoad).toSorted();
/** The chart has no field for the folder of the tokenizer, which this kind needs. */
const NOT_IN_CHART: readonly string[] = ['tinker'];

function read(...path: string[]): string {
  return readFileSync(join(ROOT, ...path), 'utf8');
}

/** Returns the names in the first column of the table after the text `start`, which are in code font and may be links. */
function tableNames(page: string, start: string): string[] {
  const [, table = ''] = page.split(start);
  const [rows = ''] = table.split('\n\n');
  return [...rows.matchAll(/^\| \[?`([^`]+)`/gm)].map(([, name = '']) => name);
}

/** Returns the names of the list that follows `start` in a text: `a, b and c`, with or without code font. */
function listAfter(text: string, start: string): string[] {
  const [, rest = ''] = text.split(start);
  const [, list = ''] = /^((?:`?\w+(?:\.\w+)*`?(?:, | and | or )?)+)/.exec(rest) ?? [];
  return list.match(/\w+(?:\.\w+)*/g)?.filter((word) => word !== 'and' && word !== 'or') ?? [];
}

describe('lists that are written by hand', () => {
  it('name every kind of engine on the page of the engines', () => {
    expect(tableNames(read('docs', 'engines.md'), '| `kind` | Server').toSorted()).toEqual(KINDS.toSorted());
  });

  it('name the kinds that report a load where the limit that follows it is described', () => {
    expect(listAfter(read('docs', 'engines.md'), 'engine to its metrics, for kinds ').toSorted()).toEqual(WITH_LOAD);
    const { description = '' } = engineSpecSchema.shape.adaptive_concurrency;
    expect(listAfter(description, 'for kinds ').toSorted()).toEqual(WITH_LOAD);
  });

  it('name the kinds of engines that the Helm chart can register', () => {
    const { properties } = JSON.parse(read('deploy', 'helm', 'floe', 'values.schema.json'));
    const expected = KINDS.filter((kind) => !NOT_IN_CHART.includes(kind));
    expect(properties.engines.items.properties.kind.enum).toEqual(expected);
  });

  it('name every evaluator on the page of the evaluators', () => {
    const listed = tableNames(read('docs', 'evaluators.md'), '| Strategy | The reward is');
    expect(listed.toSorted()).toEqual(evaluatorRegistry().names().toSorted());
  });

  it('name every field that a condition may test', () => {
    const page = read('docs', 'generate.md').replaceAll('\n', ' ');
    const listed = [...listAfter(page, 'A condition compares '), 'outcome'];
    expect(listed.toSorted()).toEqual(CONDITION_FIELDS.toSorted());
  });
});

describe('the documentation', () => {
  const sources = readSources(ROOT);

  it('has every page in its index', () => {
    expect(checkIndex(sources)).toEqual([]);
  });

  it('has no link to a missing file or heading', () => {
    expect(checkSourceLinks(ROOT, sources).findings).toEqual([]);
  });
});
