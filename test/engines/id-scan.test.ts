import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { IdScanner } from '../../src/engines/id-scan.ts';

const ids = fc.array(fc.oneof(fc.nat(9), fc.nat(200_000), fc.nat({ max: 2 ** 31 - 1 })), {
  maxLength: 1_500,
  size: 'max',
});

/** The ids that JSON.parse finds, or null where it finds something else. */
const scan = (scanner: IdScanner, text: string) => {
  const bytes = Buffer.from(text);
  const found = scanner.scan(bytes, 'ids', 's');
  return found && { ids: [...found.ids], text: bytes.toString('utf8', found.start, found.end) };
};

describe('ids read from bytes', () => {
  test('are those that JSON.parse reads, whatever was read before', () => {
    const turns = fc.array(fc.record({ keep: fc.nat(2_000), more: ids }), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(turns, fc.constantFrom(',', ', ', ' ,'), (sequence, comma) => {
        const scanner = new IdScanner();
        let prompt: number[] = [];
        for (const { keep, more } of sequence) {
          prompt = [...prompt.slice(0, keep), ...more];
          const array = `[${prompt.join(comma)}]`;
          expect(scan(scanner, `{"x": "ü", "ids" : ${array}, "y": 1}`)).toEqual({ ids: prompt, text: array });
        }
      }),
      { numRuns: 100 },
    );
  });

  test('that end or go on in the middle of a number of the last text are not mixed up', () => {
    const scanner = new IdScanner();
    const first = Array.from({ length: 512 }, (_, i) => i);
    expect(scan(scanner, `{"ids":[${first.join()}]}`)?.ids).toEqual(first);
    for (const text of [`${first.join()}1`, first.join().slice(0, -1), `${first.slice(0, 257).join()}7,8`]) {
      expect(scan(scanner, `{"ids":[${text}]}`)?.ids).toEqual(JSON.parse(`[${text}]`));
    }
  });

  test.each([
    '{}',
    '{"ids":null}',
    '{"ids":[1,2',
    '{"ids":[1.5]}',
    '{"ids":[-1]}',
    '{"ids":[1,]}',
    '{"ids":[,1]}',
    '{"ids":[1 2]}',
    '{"ids":[[1]]}',
    '{"ids":["1"]}',
    '{"ids":[2147483648]}',
    '{"ids":[1e3]}',
  ])('%s has none', (text) => {
    expect(scan(new IdScanner(), text)).toBeNull();
  });

  test('an empty array is one', () => {
    expect(scan(new IdScanner(), '{"ids":[ ]}')?.ids).toEqual([]);
  });
});
