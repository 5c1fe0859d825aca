import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Content } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { built, rowsFile } from '../../../../search/test/search/index.ts';
import { codeSearchToolset } from '../../../src/tools/built-in/code-search.ts';
import { searchToolset } from '../../../src/tools/built-in/search.ts';
import { TestBox } from '../open-box.ts';

const FILES = {
  'shop/cart.py':
    'class Shop:\n    def total(self):\n        return check_price(1)\n\ndef check_price(price):\n    return price\n',
  'shop/old.py': 'def total():\n    return 2  # refused at the till\n',
  'many.py': Array.from({ length: 30 }, (_, i) => `x${i} = "same text"`).join('\n'),
};

let sandbox: TestBox;
let code: (query: string, more?: object) => Promise<Content | null>;
beforeAll(async () => {
  sandbox = await TestBox.open();
  for (const [path, content] of Object.entries(FILES)) {
    mkdirSync(dirname(join(sandbox.workdir, path)), { recursive: true });
    writeFileSync(join(sandbox.workdir, path), content);
  }
  const services = { code_index_dir: join(sandbox.workdir, '..', 'indexes') };
  const { call } = await sandbox.use(codeSearchToolset, {}, { services });
  code = async (query, more = {}) => (await call('code_search', { query, ...more })).content;
});
afterAll(() => sandbox.close());

describe('the tool code_search', () => {
  it.each([
    [
      'a definition',
      'check_price',
      /^shop\/cart\.py:5-6 function check_price[\s\S]*Used in: shop\/cart\.py:3[\s\S]*\[Hint: lines before and after a definition/,
    ],
    ['several definitions of a name', 'total', /\[Hint: several definitions have this name\. Add the class or module/],
    ['similar names', 'chekc_price', /\[Hint: no definition has exactly this name\. If one of these is meant/],
    ['lines with a text', 'refused at', /\[Hint: no definition has this name; these are lines with the text/],
    [
      'parts with some words',
      'what is refused in the end',
      /\[Hint: no line contains the text; these parts have some of its words/,
    ],
    ['nothing', 'zebra', /^\[Hint: nothing has these words\. Try a shorter or another name/],
  ])('says what to do next after %s', async (_, query, hint) => {
    expect(await code(query)).toMatch(hint);
  });

  it('says that there are more lines than it shows', async () => {
    expect(await code('same text', { max_results: 2 })).toMatch(
      /\(28 more\)[\s\S]*\[Hint: there are more lines than shown; use a longer text or `path`\.\]/,
    );
  });

  it.each([
    ['an empty query', ' ', /the query is empty/],
    ['a query that is too long', 'x'.repeat(501), /the query has 501 characters; at most 500 are searched/],
  ])('refuses %s', async (_, query, message) => {
    await expect(code(query)).rejects.toThrow(message);
  });

  it('finds no code where there is none', async () => {
    mkdirSync(join(sandbox.workdir, 'empty'));
    const services = { code_index_dir: join(sandbox.workdir, '..', 'indexes') };
    const { call } = await sandbox.use(codeSearchToolset, { root: `${sandbox.workdir}/empty` }, { services });
    await expect(call('code_search', { query: 'x' })).rejects.toThrow(/there is no code below .*\/empty/);
  });
});

describe('the tool search', () => {
  it('shows what was found with its id, and what to try where nothing was found', async () => {
    const { path } = await built(rowsFile([{ id: 'bird', title: 'Herons', text: 'A heron waits for fish.' }]));
    const { call } = await sandbox.use(searchToolset, {}, { services: { search: path } });
    expect((await call('search', { query: 'heron' })).content).toMatch(/^1\. Herons\n {3}id: bird\n/);
    expect((await call('search', { query: 'zebra' })).content).toBe('No results. Try other or fewer words.');
    await expect(call('search', { query: '' })).rejects.toThrow(/query/);
  });
});
