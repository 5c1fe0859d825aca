import { describe, expect, it } from 'vitest';
import { CodeParser } from '../src/code-index/parser.ts';
import { readPage } from '../src/search/html/page-reader.ts';

const { signal } = new AbortController();

describe('a compiled thread of the search', { timeout: 60_000 }, () => {
  it('reads a web page', async () => {
    const { title, text } = await readPage('<title>Rome</title><main><p>The capital of Italy.</p></main>', signal);
    expect(title).toBe('Rome');
    expect(text).toContain('The capital of Italy.');
  });

  it('parses code', async () => {
    const parser = new CodeParser();
    const { definitions } = await parser.parse('def greet():\n    pass\n', 'python', signal);
    expect(definitions.map(({ name }) => name)).toEqual(['greet']);
    await parser.close();
  });

  it('parses a file after another one was cancelled, and does not mix their definitions', async () => {
    const parser = new CodeParser();
    const abort = new AbortController();
    const cancelled = parser.parse('def first():\n    pass\n', 'python', abort.signal);
    abort.abort(new Error('stop'));
    await expect(cancelled).rejects.toThrow('stop');
    const { definitions } = await parser.parse('def second():\n    pass\n', 'python', signal);
    expect(definitions.map(({ name }) => name)).toEqual(['second']);
    await parser.close();
  });
});
