import { execFileSync } from 'node:child_process';
import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodeIndexes, type IndexedCode } from '../../../src/code-index/code-index.ts';
import { CodeParser } from '../../../src/code-index/parser.ts';
import type { CodeMatches } from '../../../src/code-index/query.ts';
import { folderOf, localShell } from '../../code-index/shell.ts';

const SHOP = `import os

LIMIT = 10

class Shop:
    """Sells things."""

    def add_item(self, name, price):
        self.items.append((name, price))
        return check_price(price)

    def total(self):
        return sum(price for _, price in self.items)


def check_price(price):
    if price < 0:
        raise ValueError('negative prices are refused at the till')
    return price
`;
const FILES = {
  'shop/cart.py': SHOP,
  'shop/old.py': 'from shop.cart import check_price\n\ndef total():\n    return check_price(1)\n',
  'web/view.ts':
    'export interface View { title: string }\nexport const renderView = (view: View) => escapeHtml(view.title);\n',
  'README.md': 'class NotCode: pass\n',
  'broken.py': 'def half(:\n  class\n\ndef whole():\n    return 1\n',
};
const { signal } = new AbortController();

const opened: CodeIndexes[] = [];
function indexesIn(folder = folderOf({})): CodeIndexes {
  const created = new CodeIndexes(folder);
  opened.push(created);
  return created;
}
afterAll(() => Promise.all(opened.map((indexes) => indexes.close())));

describe('the parser', () => {
  it('gives up a file that takes too long, and parses the next one in a new thread', async () => {
    const hurried = new CodeParser(1);
    expect(await hurried.parse('def f(): pass\n', 'python', signal)).toEqual({ definitions: [], references: [] });
    await hurried.close();
    const patient = new CodeParser();
    const aborted = patient.parse('def f(): pass\n', 'python', AbortSignal.abort(new Error('stop')));
    await expect(aborted).rejects.toThrow('stop');
    expect((await patient.parse('def f(): pass\n', 'python', signal)).definitions).toMatchObject([{ name: 'f' }]);
    await patient.close();
  });
});

let code: IndexedCode;
beforeAll(async () => {
  code = await indexesIn().update(localShell().shell, folderOf(FILES), signal);
});

const find = (text: string, path = '', count = 10): Promise<CodeMatches> =>
  code.search.find({ text, path, count }, signal);
const places = ({ hits }: CodeMatches): string[] =>
  hits.map(({ path, line, definition }) => `${path}:${line} ${definition ?? 'text'}`);

describe('a query of the code index', () => {
  it('finds a definition by its exact name first, with source and uses', async () => {
    const matches = await find('check_price');
    expect(matches).toMatchObject({ kind: 'entity', total: 1, useCount: 2 + 1 });
    expect(places(matches)).toEqual(['shop/cart.py:16 function check_price']);
    expect(matches.hits[0]?.source).toMatch(/^def check_price\(price\):[\s\S]*return price$/);
    expect(matches.uses.map(({ path, line }) => `${path}:${line}`)).toContain('shop/old.py:4');
  });

  it.each([
    ['Shop.total', ['shop/cart.py:12 method Shop.total']],
    ['Shop::total', ['shop/cart.py:12 method Shop.total']],
    ['total()', ['shop/cart.py:12 method Shop.total', 'shop/old.py:3 function total']],
    ['shop.old.total', ['shop/old.py:3 function total']],
    ['shop', ['shop/cart.py:5 class Shop']],
    ['LIMIT', ['shop/cart.py:3 variable LIMIT']],
    ['View', ['web/view.ts:1 interface View']],
    ['renderView', ['web/view.ts:2 function renderView']],
    ['whole', ['broken.py:4 function whole']],
  ])('finds the entity %s', async (text, expected) => {
    const matches = await find(text);
    expect(matches.kind).toBe('entity');
    expect(places(matches)).toEqual(expected);
  });

  it('finds similar names when none is exact, the most similar first', async () => {
    expect(await find('chekc_price')).toMatchObject({ kind: 'fuzzy', hits: [{ definition: 'function check_price' }] });
    expect(await find('AddItems')).toMatchObject({ kind: 'fuzzy', hits: [{ definition: 'method Shop.add_item' }] });
  });

  it('finds lines with the text, where `*` stands for anything', async () => {
    expect(await find('negative prices')).toMatchObject({
      kind: 'substring',
      total: 1,
      hits: [{ path: 'shop/cart.py', line: 18 }],
    });
    expect(await find('raise *till')).toMatchObject({ kind: 'substring', hits: [{ line: 18 }] });
    expect(await find('(.*)+$')).not.toMatchObject({ kind: 'substring' });
  });

  it('finds parts by their words at last, and nothing where no word fits', async () => {
    const matches = await find('where are negative amounts refused?');
    expect(matches.kind).toBe('words');
    expect(matches.hits[0]?.source).toContain('refused at the till');
    expect(await find('zebra crossing')).toMatchObject({ kind: null, hits: [] });
    expect(await find('NotCode')).toMatchObject({ kind: null });
  });

  it('is limited to paths, and to a number of hits', async () => {
    expect(places(await find('total', 'old'))).toEqual(['shop/old.py:3 function total']);
    expect(await find('price', '', 2)).toMatchObject({ kind: 'substring', hits: [{}, {}], total: expect.any(Number) });
  });

  it.each(['"', "'; drop table files; --", 'a" OR "b', '*', '***', '(', '\u0000', 'x'.repeat(500), '.', '::'])(
    'accepts %j',
    async (text) => {
      await expect(find(text)).resolves.toMatchObject({ hits: expect.any(Array) });
    },
  );
});

describe('the index of a sandbox', () => {
  it('is made once for the same code, also by another process, and only changed files are parsed', async () => {
    const cache = folderOf({});
    const root = folderOf(FILES);
    const { shell, commands } = localShell();
    const indexes = indexesIn(cache);
    expect((await indexes.update(shell, root, signal)).parsed).toBe(4);
    commands.length = 0;
    expect((await indexes.update(shell, root, signal)).parsed).toBe(0);
    expect(commands).toHaveLength(1);
    expect((await indexesIn(cache).update(shell, folderOf(FILES), signal)).parsed).toBe(0);

    writeFileSync(join(root, 'shop/old.py'), 'def fresh():\n    pass\n');
    rmSync(join(root, 'broken.py'));
    const changed = await indexes.update(shell, root, signal);
    expect(changed).toMatchObject({ parsed: 1, fileCount: 3 });
    const found = async (text: string) => (await changed.search.find({ text, path: '', count: 5 }, signal)).kind;
    expect([await found('fresh'), await found('whole'), await found('check_price')]).toEqual([
      'entity',
      null,
      'entity',
    ]);
    expect((await changed.search.find({ text: 'check_price', path: '', count: 5 }, signal)).useCount).toBe(1);
    expect(readdirSync(cache)).toHaveLength(2);
  });

  it('has what git tracks or would track, where there is a repository', async () => {
    const root = folderOf({
      ...FILES,
      '.gitignore': 'web/\n',
      "odd 'name'.py": 'def odd(): pass\n',
      '-dash.py': 'def dash(): pass\n',
    });
    execFileSync('git', ['init', '-q'], { cwd: root });
    execFileSync('git', ['add', 'shop'], { cwd: root });
    const { search, fileCount } = await indexesIn().update(localShell().shell, root, signal);
    expect(fileCount).toBe(5);
    const kinds = ['odd', 'dash', 'renderView'].map(
      async (text) => (await search.find({ text, path: '', count: 5 }, signal)).kind,
    );
    expect(await Promise.all(kinds)).toEqual(['entity', 'entity', null]);
  });

  it('is not falsified for others by a sandbox that lies about its files', async () => {
    const cache = folderOf({});
    const root = folderOf(FILES);
    // The sandbox names the true digests, but sends other contents.
    const lying = localShell((output, command) => (command.includes('tar -chf') ? spoiled() : output));
    const spoiled = (): string =>
      execFileSync('sh', ['-c', 'tar -chf - shop/old.py | gzip -1 | base64'], {
        cwd: folderOf({ 'shop/old.py': 'def evil(): pass\n' }),
        encoding: 'utf8',
      });
    const lied = await indexesIn(cache).update(lying.shell, root, signal);
    expect(lied.fileCount).toBe(0);
    const honest = await indexesIn(cache).update(localShell().shell, root, signal);
    expect(honest).toMatchObject({ fileCount: 4, parsed: 4 });
    expect(await honest.search.find({ text: 'evil', path: '', count: 5 }, signal)).toMatchObject({ kind: null });
  });

  it('leaves out files that are too large, and counts them', async () => {
    const root = folderOf({ 'small.py': 'def small(): pass\n', 'large.py': 'x = 1\n'.repeat(100_000) });
    expect(await indexesIn().update(localShell().shell, root, signal)).toMatchObject({ fileCount: 1, omitted: 1 });
  });

  it.each([
    [
      'sends no archive',
      (output: string, command: string) => (command.includes('tar') ? 'no base64 ' : output),
      /tar, gzip and base64/,
    ],
    [
      'sends an endless one',
      (output: string, command: string) => (command.includes('tar') ? 'A'.repeat(1 << 24) : output),
      /too much code/,
    ],
    ['cannot list its code', () => '', /cannot be listed/],
  ])('of a sandbox that %s is an observation', async (_, change, message) => {
    const indexes = indexesIn();
    await expect(indexes.update(localShell(change).shell, folderOf(FILES), signal)).rejects.toMatchObject({
      name: 'ToolError',
      message: expect.stringMatching(message),
    });
  });

  it('refuses an archive that unpacks to more than was listed', async () => {
    const bomb = execFileSync('sh', ['-c', 'head -c 100000000 /dev/zero | gzip -9 | base64'], { encoding: 'utf8' });
    const { shell } = localShell((output, command) => (command.includes('tar -chf') ? bomb : output));
    await expect(indexesIn().update(shell, folderOf(FILES), signal)).rejects.toMatchObject({ name: 'ToolError' });
  });

  it('survives code that is nested without end', async () => {
    const root = folderOf({ 'deep.py': `x = ${'['.repeat(5_000)}`, 'fine.py': 'def fine(): pass\n' });
    const { search } = await indexesIn().update(localShell().shell, root, signal);
    expect((await search.find({ text: 'fine', path: '', count: 5 }, signal)).kind).toBe('entity');
  });
});
