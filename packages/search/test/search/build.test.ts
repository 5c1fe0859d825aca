import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openSearch } from '../../src/search/open.ts';
import { PASSAGE_CHARS, passagesOf } from '../../src/search/passages.ts';
import { built, emptyFolder, rowsFile, signal } from './index.ts';

describe('an index of rows', () => {
  it('reports bad rows with line and field, and has the others', async () => {
    const source = rowsFile([
      { id: 'good', text: 'a heron' },
      { title: 'no id', text: 'x' },
      { id: 'no text' },
      { id: 'number', text: 7 },
      { id: 'blank', text: ' \n' },
      '{"id": ',
      '[1]',
      { id: 'good', text: 'twice' },
      { id: 9, text: 'a number as id' },
    ]);
    const { documents, badRows } = await built(source);
    expect(documents).toBe(2);
    expect(badRows).toEqual([
      expect.stringMatching(/rows\.jsonl:2.*id/),
      expect.stringMatching(/rows\.jsonl:3.*text.*missing/),
      expect.stringMatching(/rows\.jsonl:4.*text.*must be a text/),
      expect.stringMatching(/rows\.jsonl:5.*text.*must not be empty/),
      expect.stringMatching(/rows\.jsonl:6.*not JSON/),
      expect.stringMatching(/rows\.jsonl:7.*not an object/),
      expect.stringMatching(/rows\.jsonl:8: id: good is also the id of .*rows\.jsonl:1/),
    ]);
  });

  it('leaves no file when it fails, and keeps an existing one', async () => {
    const output = join(emptyFolder(), 'index.db');
    const source = rowsFile([{ id: 'a', text: 'a heron' }]);
    const mayFinish = (): never => {
      throw new Error('bad rows');
    };
    await expect(built(source, { output, mayFinish })).rejects.toThrow('bad rows');
    expect(readdirSync(dirname(output))).toEqual([]);
    await built(source, { output });
    await expect(built(source, { output })).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('--force'),
    });
    await expect(built(source, { output, replaces: true, mayFinish })).rejects.toThrow('bad rows');
    expect(readdirSync(dirname(output))).toEqual(['index.db']);
    const search = openSearch({ kind: 'index', path: output, embeddings: null });
    expect(await search.search('heron', 1, signal)).toHaveLength(1);
  });

  it('of no documents is refused', async () => {
    await expect(built(rowsFile([]))).rejects.toMatchObject({ message: expect.stringContaining('has no documents') });
    await expect(built('/nowhere')).rejects.toMatchObject({ code: 'setup_failed' });
  });
});

describe('an index of a folder', () => {
  it('has its text, Markdown and HTML files by their paths, and no others', async () => {
    const folder = emptyFolder();
    mkdirSync(join(folder, 'deep', '.hidden'), { recursive: true });
    writeFileSync(join(folder, 'plain.txt'), 'a heron in a text');
    writeFileSync(join(folder, 'deep', 'marked.md'), 'intro\n\n# Of herons\n\na heron');
    const article = `<p>${'The heron stands in the water and waits for fish. '.repeat(20)}</p>`;
    writeFileSync(
      join(folder, 'deep', 'page.html'),
      `<html><head><title>Herons</title><script>heron()</script></head><body><nav>Home</nav><article><h2>Food</h2>${article}</article></body></html>`,
    );
    writeFileSync(join(folder, 'deep', '.hidden', 'secret.txt'), 'heron');
    writeFileSync(join(folder, 'image.png'), 'heron');
    writeFileSync(join(folder, 'binary.txt'), Buffer.from([104, 0, 1]));
    symlinkSync('/etc/passwd', join(folder, 'link.txt'));
    const { path, documents, badRows } = await built(folder);
    expect(documents).toBe(3);
    expect(badRows).toEqual([expect.stringMatching(/binary\.txt: is not a text/)]);
    const search = openSearch({ kind: 'index', path, embeddings: null });
    const hits = await search.search('heron', 9, signal);
    expect(Object.fromEntries(hits.map(({ id, title }) => [id, title]))).toEqual({
      'plain.txt': 'plain.txt',
      'deep/marked.md': 'Of herons',
      'deep/page.html': 'Herons',
    });
    const page = search.document('deep/page.html')?.text;
    expect(page).toContain('## Food');
    expect(page).not.toContain('heron()');
  });
});

describe('passages', () => {
  it('joined are the text, and none is too long or cuts a character', () => {
    const text = fc.array(
      fc.oneof(
        fc.string({ unit: 'grapheme' }),
        fc.constantFrom('\n\n', '\n', '. ', ' ', '🦆'.repeat(900), 'x'.repeat(2_000)),
      ),
    );
    fc.assert(
      fc.property(text, (parts) => {
        const whole = parts.join('');
        const passages = passagesOf(whole);
        expect(passages.join('')).toBe(whole);
        expect(Math.max(...passages.map(({ length }) => length))).toBeLessThanOrEqual(PASSAGE_CHARS);
        const startsInCharacter = (passage: string): boolean => /^[\udc00-\udfff]/.test(passage);
        expect(passages.slice(1).some((passage) => startsInCharacter(passage))).toBe(false);
      }),
    );
  });
});
