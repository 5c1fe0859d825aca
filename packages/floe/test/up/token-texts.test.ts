import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { bundledTokenizerPath, bundledVocabulary } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadTokenTexts } from '../../src/up/token-texts.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-token-texts-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

describe('the texts of tokens', () => {
  it('are those of single ids, and together the whole text', async () => {
    const texts = await loadTokenTexts({ policy: bundledTokenizerPath() });
    const text = 'A  move: "left"\n<tool_call>';
    const pieces = texts('policy', bundledVocabulary().encode(text)) ?? [];
    expect(pieces.join('')).toBe(text);
    expect(pieces.at(-1)).toBe('<tool_call>');
    expect(pieces.length).toBeGreaterThan(4);
  });

  it('put a character of several ids at the last of them', async () => {
    const texts = await loadTokenTexts({ policy: bundledTokenizerPath() });
    const ids = bundledVocabulary().encode('a🧊b');
    const pieces = texts('policy', ids) ?? [];
    expect(pieces).toHaveLength(ids.length);
    expect(pieces.join('')).toBe('a🧊b');
    expect(pieces).toContain('');
    // A reply that was cut within the character has no whole character at its end.
    expect((texts('policy', ids.slice(0, 2)) ?? []).join('')).toBe('a\ufffd');
  });

  it('are null for a model without a tokenizer', async () => {
    expect((await loadTokenTexts({}))('policy', [1, 2])).toBeNull();
  });

  it('are refused for a file that is missing or is no tokenizer, with its path', async () => {
    const missing = join(dir, 'tokenizer.json');
    await expect(loadTokenTexts({ policy: dir })).rejects.toMatchObject({
      code: 'setup_failed',
      details: { path: dir },
    });
    await writeFile(missing, '{"model": 1}');
    await expect(loadTokenTexts({ policy: missing })).rejects.toThrow(`tokenizers.policy: ${missing} cannot be loaded`);
  });
});
