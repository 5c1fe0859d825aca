import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { openSearch } from '../../src/search/open.ts';
import type { SearchBackend } from '../../src/search/search.ts';
import { built, emptyFolder, rowsFile, signal } from './index.ts';

const filler = (count: number): string => Array.from({ length: count }, (_, i) => `filler${i % 50}`).join(' ');

let path: string;
let search: SearchBackend;

async function idsOf(query: string, count = 5): Promise<string[]> {
  return (await search.search(query, count, signal)).map(({ id }) => id);
}

function open(file: string): SearchBackend {
  return openSearch({ kind: 'index', path: file, embeddings: null });
}

beforeAll(async () => {
  const rows = [
    { id: 'title', title: 'The heron', url: 'https://birds.example/heron', text: 'A bird of rivers and lakes.' },
    { id: 'often', text: 'heron heron heron' },
    { id: 'once', text: `${filler(40)} heron ${filler(40)}` },
    { id: 'both', text: 'The heron fishes in the river at dawn.' },
    { id: 'long', title: 'Long', text: `${filler(3_000)}\n\nThe needle is here.\n\n${filler(3_000)}` },
    { id: 'accents', text: 'Über Cafés in Zürich' },
    { id: 'code', text: 'snake_case AND OR NOT near "quoted" * ^ text:title' },
    ...Array.from({ length: 1_200 }, (_, i) => ({ id: `common${i}`, text: `water ${filler(10)} number${i}` })),
  ];
  ({ path } = await built(rowsFile(rows)));
  search = open(path);
});

describe('the search by words', () => {
  it('orders by BM25: frequent words of a short text first, words of the title count twice', async () => {
    expect(await idsOf('heron')).toEqual(['often', 'title', 'both', 'once']);
    expect((await idsOf('heron fishes dawn'))[0]).toBe('both');
  });

  it('finds other forms of a word, and words without their accents', async () => {
    expect(await idsOf('fishing')).toEqual(['both']);
    expect(await idsOf('uber zurich cafe')).toEqual(['accents']);
  });

  it('counts a frequent word in the score, though passages without a rare word are not visited', async () => {
    const [first, ...others] = await search.search('water number77', 3, signal);
    expect(first?.id).toBe('common77');
    expect(others).toEqual([]);
    expect(await idsOf('water', 3)).toHaveLength(3);
  });

  it('returns each document once, with the passage that matches and the words around it', async () => {
    const hits = await search.search('the needle', 5, signal);
    expect(hits.map(({ id }) => id)).toEqual(['long']);
    expect(hits[0]?.snippet).toContain('The needle is here.');
    expect(hits[0]?.snippet.length).toBeLessThan(400);
  });

  it('returns a document once whose passages match several times', async () => {
    const text = Array.from({ length: 6 }, () => `An otter swims. ${filler(600)}`).join('\n\n');
    const made = await built(
      rowsFile([
        { id: 'otters', text },
        { id: 'one', text: 'An otter.' },
      ]),
    );
    expect(made.passages).toBeGreaterThan(5);
    const hits = await open(made.path).search('otter', 5, signal);
    expect(hits.map(({ id }) => id).sort()).toEqual(['one', 'otters']);
  });

  it.each([
    'AND',
    'NEAR(heron)',
    '"heron',
    "it's heron",
    'heron*',
    'text:heron',
    '-heron',
    '(heron',
    'heron OR',
    '^heron',
    'snake_case',
    'he\u0000ron',
    'heron; drop table words',
    '{title}: heron',
  ])('searches the words of %j, in which nothing is an operator', async (query) => {
    expect(await idsOf(query)).toEqual(expect.any(Array));
  });

  it.each([
    ['an empty query', '', /no words/],
    ['only signs', '"*()" --', /no words/],
    ['a huge query', 'heron '.repeat(10_000), /60000 characters; at most 4000/],
  ])('rejects %s', async (_, query, message) => {
    await expect(search.search(query, 5, signal)).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringMatching(message),
    });
  });

  it('returns nothing for words that no document has, and searches 4,000 characters of distinct words', async () => {
    expect(await idsOf('xyzzy')).toEqual([]);
    expect(await idsOf(Array.from({ length: 400 }, (_, i) => `w${i}`).join(' '))).toEqual([]);
  });

  it('returns the whole text of a document by its id or its URL', () => {
    expect(search.document('https://birds.example/heron')?.id).toBe('title');
    expect(search.document('long')?.text).toBe(`${filler(3_000)}\n\nThe needle is here.\n\n${filler(3_000)}`);
    expect(search.document('none')).toBeNull();
  });
});

describe('an index file', () => {
  it('is shared by all sessions of a process, and opened again when it was replaced', async () => {
    const output = join(emptyFolder(), 'index.db');
    await built(rowsFile([{ id: 'old', text: 'heron' }]), { output });
    const first = open(output);
    expect(open(output)).toBe(first);
    await built(
      rowsFile([
        { id: 'new', text: 'heron' },
        { id: 'more', text: 'text' },
      ]),
      { output, replaces: true },
    );
    const second = open(output);
    expect(second).not.toBe(first);
    expect((await second.search('heron', 1, signal))[0]?.id).toBe('new');
  });

  it('that is missing is an error with the command that makes it', () => {
    expect(() => open('/nowhere/index.db')).toThrow('there is no index /nowhere/index.db; make one with: floe index');
  });

  it.each([
    [
      'is a text',
      () => Buffer.from('no database '.repeat(100)),
      /cannot be read.*make it again with: floe index|no index of floe/,
    ],
    ['is empty', () => Buffer.alloc(0), /no index of floe/],
    ['is cut off', () => readFileSync(path).subarray(0, 8_192), /cannot be read/],
  ])('that %s is an error with the command that makes it', (_, content, message) => {
    const file = join(emptyFolder(), 'broken.db');
    writeFileSync(file, content());
    expect(() => open(file)).toThrow(message);
  });

  it('whose pages are damaged fails with the name of the file', async () => {
    const content = Buffer.from(readFileSync(path));
    content.fill(0xff, 16_384);
    const file = join(emptyFolder(), 'damaged.db');
    writeFileSync(file, content);
    const attempt = async (): Promise<unknown> => open(file).search('heron', 5, signal);
    await expect(attempt()).rejects.toMatchObject({ code: 'setup_failed', message: expect.stringContaining(file) });
  });
});
