import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { compareIds, IdScanner, scanIds, scanLogprobs } from '../../../src/engines/chat/reply-scan.ts';

const ids = fc.array(fc.oneof(fc.nat(9), fc.nat(200_000), fc.nat({ max: 2 ** 31 - 1 })), {
  maxLength: 1_500,
  size: 'max',
});

/**
 * Returns the ids that the scanner finds in `text`, and the JSON array in which it found them; `null` when the value is not a list of ids.
 */
const scan = (scanner: IdScanner, text: string) => {
  const bytes = Buffer.from(text);
  const actual = scanner.scan(bytes, 'ids', 's');
  return actual && { ids: [...actual.ids], text: bytes.toString('utf8', actual.start, actual.end) };
};

describe('IdScanner', () => {
  it('reads the ids that JSON.parse reads, whatever it has read before', () => {
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

  it('does not mix up numbers that end or continue in the middle of a number of the last text', () => {
    const scanner = new IdScanner();
    const first = Array.from({ length: 512 }, (_, i) => i);
    expect(scan(scanner, `{"ids":[${first.join()}]}`)?.ids).toEqual(first);
    for (const text of [`${first.join()}1`, first.join().slice(0, -1), `${first.slice(0, 257).join()}7,8`]) {
      expect(scan(scanner, `{"ids":[${text}]}`)?.ids).toEqual(JSON.parse(`[${text}]`));
    }
  });

  it.each([
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
  ])('finds no ids in %s', (text) => {
    expect(scan(new IdScanner(), text)).toBeNull();
  });

  it('reads an empty array', () => {
    expect(scan(new IdScanner(), '{"ids":[ ]}')?.ids).toEqual([]);
  });
});

describe('compareIds', () => {
  const parts = fc.array(ids, { minLength: 1, maxLength: 3 });
  const compare = (echoed: string, sent: readonly number[][]) => {
    const all = sent.flat();
    const arrays = sent.map((part) => Int32Array.from(part));
    return compareIds(Buffer.from(`{"x":"ü","ids":[${echoed}],"y":[0]}`), 'ids', Buffer.from(all.join()), arrays);
  };

  it('reports that ids are equal in whatever notation they are written', () => {
    fc.assert(
      fc.property(parts, fc.constantFrom(',', ', ', ' ,'), (sent, comma) => {
        expect(compare(sent.flat().join(comma), sent)).toMatchObject({ difference: null, start: 16 });
      }),
      { numRuns: 100 },
    );
  });

  it('returns the index of the first id that differs, is missing or is extra', () => {
    const edits = fc.record({ keep: fc.nat(1_500), more: ids });
    fc.assert(
      fc.property(parts, edits, fc.constantFrom(',', ', '), (sent, { keep, more }, comma) => {
        const all = sent.flat();
        const echoed = [...all.slice(0, keep), ...more];
        const longer = Math.max(all.length, echoed.length);
        const first = Array.from({ length: longer }, (_, i) => i).find((i) => all[i] !== echoed[i]) ?? null;
        expect(compare(echoed.join(comma), sent)?.difference).toBe(first);
      }),
      { numRuns: 100 },
    );
  });

  it('returns null for an array that is not of ids', () => {
    for (const echoed of ['1.5', '-1', '1,', '"1"', '[1]', '1e3']) expect(compare(echoed, [[1]])).toBeNull();
    expect(compareIds(Buffer.from('{}'), 'ids', Buffer.from('1'), [Int32Array.of(1)])).toBeNull();
  });
});

it('scanIds reads ids without remembering earlier prompts', () => {
  const bytes = Buffer.from('{"ids": [1, 22,333]}');
  expect(scanIds(bytes, 'ids')).toEqual({ ids: Int32Array.of(1, 22, 333), start: 8, end: 19 });
  expect(scanIds(bytes, 'other')).toBeNull();
  expect(scanIds(Buffer.from('{"ids":[null]}'), 'ids')).toBeNull();
});

type Entry = { readonly id: number; readonly logprob: number; readonly rank: number | null };

const entries = fc.array(
  fc.record({
    id: fc.nat({ max: 2 ** 31 - 1 }),
    logprob: fc.oneof(fc.float({ noNaN: true, noDefaultInfinity: true }), fc.double({ noNaN: true, max: 0 })),
    rank: fc.option(fc.nat()),
  }),
  { minLength: 1, maxLength: 40 },
);

const named = ({ id, logprob }: Entry): object => {
  const token = `token_id:${id}`;
  return { token, logprob, bytes: [...Buffer.from(token)], top_logprobs: [] };
};
const numbered = ({ id, logprob, rank }: Entry): object => ({ token_id: id, logprob, rank, top_logprobs: [] });

function replyOf(list: readonly object[]): { bytes: Buffer; text: string } {
  const message = { content: 'ü "logprobs":{"content":[ []}]' };
  const text = JSON.stringify({ message, choices: [{ logprobs: { content: list }, token_ids: [1] }], after: 'é' });
  return { text, bytes: Buffer.from(text) };
}

const one = (entry: string): Buffer => Buffer.from(`{"logprobs":{"content":[${entry}]}}`);

describe('scanLogprobs', () => {
  it.each([
    ['that names ids in place of text', named],
    ['that has ids as numbers', numbered],
  ])('reads a list %s from the bytes with the same result as JSON.parse', (_, written) => {
    fc.assert(
      fc.property(entries, (list) => {
        const finite = list.filter(({ logprob }) => Number.isFinite(logprob));
        fc.pre(finite.length > 0);
        const { bytes } = replyOf(finite.map(written));
        const actual = scanLogprobs(bytes);
        expect(actual?.ids).toEqual(finite.map(({ id }) => id));
        // The expected values are written as JSON and parsed, because JSON.stringify writes a negative zero as 0.
        expect(actual?.values).toEqual(finite.map(({ logprob }) => JSON.parse(JSON.stringify(logprob))));
        const cut = bytes.subarray(actual?.start, actual?.end).toString();
        expect(JSON.parse(cut)).toEqual(JSON.parse(JSON.stringify(finite.map(written))));
      }),
    );
  });
});

describe('the fallback of scanLogprobs to JSON.parse', () => {
  const good = '{"token":"token_id:5","logprob":-0.5,"bytes":null,"top_logprobs":[]}';

  it('is not used for a list in the expected notation', () => {
    expect(scanLogprobs(one(good))).toMatchObject({ ids: [5], values: [-0.5] });
  });

  it.each([
    ['the text of a token', good.replace('token_id:5', 'the')],
    ['an id in another notation', good.replace(':5', ':05')],
    ['a number that JSON does not have', good.replace('-0.5', '-.5')],
    ['NaN', good.replace('-0.5', 'NaN')],
    ['null', good.replace('-0.5', 'null')],
    ['other candidates', good.replace('[]}', '[{"token":"token_id:5","logprob":-0.5,"bytes":null}]}')],
    ['another field', good.replace('{', '{"more":1,')],
    ['spaces', good.replace(',', ', ')],
    ['a comma too many', `${good},`],
    ['an entry of the other kind', `${good},{"token_id":5,"logprob":-0.5,"top_logprobs":[]}`],
    ['no entry', ''],
  ])('is used for a list with %s', (_, entry) => {
    expect(scanLogprobs(one(entry))).toBeNull();
  });

  it('is used for a truncated list', () => {
    const whole = one(`${good},${good}`);
    for (let end = 0; end < whole.length - 3; end++) expect(scanLogprobs(whole.subarray(0, end))).toBeNull();
  });
});
