import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FloeError } from '../src/errors.ts';
import { parseAs, parseJson } from '../src/parse.ts';
import { taskRequestSchema } from '../src/schema/index.ts';

function codeOf(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    return FloeError.is(error) ? error.code : `not a FloeError: ${error}`;
  }
  return 'no error';
}

describe('parseJson', () => {
  it('agrees with JSON.parse on every document of ordinary depth', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        expect(parseJson(Buffer.from(text))).toEqual(JSON.parse(text));
      }),
    );
  });

  it('rejects deep nesting and ignores brackets inside strings', () => {
    expect(codeOf(() => parseJson('['.repeat(100_000) + ']'.repeat(100_000)))).toBe('malformed_json');
    expect(codeOf(() => parseJson(`${'{"a":'.repeat(300)}1${'}'.repeat(300)}`))).toBe('malformed_json');
    expect(parseJson(JSON.stringify({ a: '['.repeat(1_000), b: `\\"${'{'.repeat(1_000)}` }))).toHaveProperty('b');
  });

  it('rejects more values than the limit, wherever they are, and ignores commas and brackets inside strings', () => {
    const flat = JSON.stringify(Array.from({ length: 50 }, (_, i) => i));
    const nested = JSON.stringify(Array.from({ length: 25 }, () => []));
    const keys = JSON.stringify(Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`k${i}`, i])));
    for (const text of [flat, nested, keys]) {
      expect(codeOf(() => parseJson(text, 40))).toBe('body_too_large');
      expect(codeOf(() => parseJson(text, 80))).toBe('no error');
    }
    expect(codeOf(() => parseJson(JSON.stringify(',[{'.repeat(100)), 1))).toBe('no error');
  });

  it('rejects bytes that are not UTF-8', () => {
    expect(codeOf(() => parseJson(Buffer.from([0x22, 0xff, 0xfe, 0x22])))).toBe('malformed_json');
  });

  it('throws only malformed_json, whatever the bytes are', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        expect(['no error', 'malformed_json']).toContain(codeOf(() => parseJson(Buffer.from(bytes))));
      }),
    );
  });
});

describe('parseAs', () => {
  const task = { instruction: 'fix it', agent: { harness: 'pi' } };

  it('fills in the defaults of a minimal task', () => {
    expect(parseAs(taskRequestSchema, task, 'task')).toMatchObject({
      num_samples: 1,
      timeout_seconds: 600,
      timeout_clock: 'active',
      sampling: { temperature: 1, top_p: 1, top_k: 0 },
      builder: { strategy: 'prefix_merging' },
    });
  });

  it.each([
    ['unknown field', { ...task, instructions: 'typo' }, '(whole object)'],
    ['wrong type', { ...task, num_samples: '4' }, 'num_samples'],
    ['unknown nested field', { ...task, runtime: { netwrok: 'none' } }, 'runtime'],
    ['id with a slash', { ...task, task_id: '../../etc' }, 'task_id'],
    ['callback with a file URL', { ...task, callback_url: 'file:///etc/passwd' }, 'callback_url'],
    ['missing harness', { instruction: 'x', agent: {} }, 'agent.harness'],
  ])('names the invalid field: %s', (_, body, path) => {
    try {
      parseAs(taskRequestSchema, body, 'task');
      expect.unreachable();
    } catch (error) {
      expect(FloeError.is(error) && error.code).toBe('schema_violation');
      const issues = (error as FloeError).details.issues as { path: string }[];
      expect(issues.map((issue) => issue.path)).toContain(path);
    }
  });
});
