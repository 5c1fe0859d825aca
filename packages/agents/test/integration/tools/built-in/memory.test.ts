import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { never } from '../../../../../sandbox/test/backends/workbench.ts';
import { mainConversation } from '../../../../src/loop/conversation.ts';
import { memoryToolset } from '../../../../src/tools/built-in/memory.ts';
import { chunksOf } from '../../../../src/tools/chunks.ts';
import { Notes } from '../../../../src/tools/notes.ts';
import { scriptedModel } from '../../../loop/scripted-model.ts';
import { TestBox } from '../../../tools/open-box.ts';

let sandbox: TestBox;
beforeAll(async () => {
  sandbox = await TestBox.open();
});
afterAll(() => sandbox.close());

const DOCUMENT = Array.from({ length: 60 }, (_, index) => `Line ${index} of the document.`).join('\n');

describe('the document', () => {
  it('is read chunk by chunk, or by number', async () => {
    const { call } = await sandbox.use(memoryToolset, { chunk_chars: 500 }, { metadata: { document: DOCUMENT } });
    const first = String((await call('read_chunk', {})).content);
    expect(first).toMatch(/^\[chunk 1 of 3\]\nLine 0 of/);
    expect((await call('read_chunk', { number: 3 })).content).toMatch(/^\[chunk 3 of 3\]/);
    expect((await call('read_chunk', {})).content).toBe('[the document has ended; it has 3 chunks]');
    await expect(call('read_chunk', { number: 4 })).rejects.toMatchObject({ reason: 'not_found' });
    await expect(call('read_chunk', { number: 0 })).rejects.toThrow(/wrong arguments/);
  });

  it('is a file of the sandbox, also a large one', async () => {
    const large = `${'many words on a line\n'.repeat(120_000)}end`;
    await sandbox.box.writeFile('large.txt', large, never);
    const config = { document: { file: 'large.txt' }, chunk_chars: 100_000 };
    const { call } = await sandbox.use(memoryToolset, config);
    const chunks = chunksOf(large, 100_000).length;
    expect((await call('read_chunk', { number: chunks })).content).toMatch(/end$/);
  });

  it.each([
    ['is missing in the metadata', {}, /metadata.document: must be a text/],
    ['is missing in the sandbox', { document: { file: 'absent' } }, /absent cannot be read/],
    ['is outside of the sandbox', { document: { file: '/etc/passwd' } }, /cannot be read/],
    ['has a line that is too long', { document: { file: 'line.txt' } }, /line that is too long/],
  ])('is refused when it %s', async (_, config, message) => {
    await sandbox.box.writeFile('line.txt', 'x'.repeat(2_000_000), never);
    await expect(sandbox.use(memoryToolset, config)).rejects.toThrow(message);
  });

  it('is cut at paragraphs, lines or words, and loses nothing', () => {
    const text = `${'word '.repeat(100)}\n\n${'next '.repeat(100)}${'x'.repeat(1_000)}${'😀'.repeat(300)}`;
    const chunks = chunksOf(text, 251);
    expect(chunks.join('')).toBe(text);
    expect(Math.max(...chunks.map((chunk) => chunk.length))).toBeLessThanOrEqual(251);
    for (const chunk of chunks) expect(chunk).toBe(Buffer.from(chunk).toString());
    expect(chunks[0]).toMatch(/ $/);
  });
});

describe('notes', () => {
  it('are found by their words, the best first', () => {
    const notes = new Notes();
    notes.keep('The harbour of Bergen is in the north.', 'bergen');
    notes.keep('Porto has a harbour; the harbour is old.', 'porto');
    expect(notes.keep('Nothing of interest.', null)).toBe('note-1');
    expect(notes.search('HARBOUR old', 5).map(({ name }) => name)).toEqual(['porto', 'bergen']);
    expect(notes.search('harbour', 1)).toHaveLength(1);
    expect(notes.search('lighthouse ()*', 5)).toEqual([]);
  });

  it('are replaced by their name, and limited in size', () => {
    const notes = new Notes();
    notes.keep('first', 'a');
    notes.keep('second', 'a');
    expect(notes.search('first', 5)).toEqual([]);
    expect(() => notes.keep('x'.repeat(2_000_000), 'b')).toThrow(/at most/);
    expect(notes.size).toBe(1);
  });

  it('are written and searched by tools', async () => {
    const { call } = await sandbox.use(memoryToolset, {}, { metadata: { document: 'x' } });
    expect((await call('memory_search', { query: 'x' })).content).toMatch(/no note has these words/);
    expect((await call('memory_write', { text: 'Bergen, 1874' })).content).toBe('kept as note-1; there are 1 notes');
    expect((await call('memory_search', { query: 'bergen' })).content).toBe('[note-1]\nBergen, 1874');
    await expect(call('memory_write', { text: '' })).rejects.toThrow(/wrong arguments/);
  });
});

describe('next_with_summary', () => {
  it('replaces the conversation by its beginning, the summary and the next chunk', async () => {
    const { tools } = await sandbox.use(memoryToolset, { chunk_chars: 500 }, { metadata: { document: DOCUMENT } });
    const tool = tools.find(({ name }) => name === 'next_with_summary');
    const conversation = mainConversation(scriptedModel([{ role: 'assistant', content: 'x' }]), never);
    conversation.push({ role: 'system', content: 'Prompt.' }, { role: 'user', content: 'Question?' });
    await conversation.ask();
    const context = { box: null, services: {}, conversation, count: () => {}, measure: () => {} };
    for (const summary of ['Once.', 'Twice.']) {
      expect(await tool?.run({ summary }, context, never)).toEqual({ content: null });
    }
    expect(conversation.messages).toEqual([
      { role: 'system', content: 'Prompt.' },
      {
        role: 'user',
        content: expect.stringMatching(
          /^Question\?\n\nYour summary of what you have read so far:\nTwice\.\n\n\[chunk 2 of 3\]\n/,
        ),
      },
    ]);
  });
});
