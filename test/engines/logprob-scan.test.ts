import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { scanLogprobs } from '../../src/engines/chat/reply-scan.ts';

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

describe('reads a list from the bytes', () => {
  test.each([
    ['that names ids in place of text', named],
    ['that has ids as numbers', numbered],
  ])('%s, as JSON.parse would', (_, written) => {
    fc.assert(
      fc.property(entries, (list) => {
        const finite = list.filter(({ logprob }) => Number.isFinite(logprob));
        fc.pre(finite.length > 0);
        const { bytes } = replyOf(finite.map(written));
        const found = scanLogprobs(bytes);
        expect(found?.ids).toEqual(finite.map(({ id }) => id));
        // JSON has no negative zero that JSON.stringify would write.
        expect(found?.values).toEqual(finite.map(({ logprob }) => JSON.parse(JSON.stringify(logprob))));
        const cut = bytes.subarray(found?.start, found?.end).toString();
        expect(JSON.parse(cut)).toEqual(JSON.parse(JSON.stringify(finite.map(written))));
      }),
    );
  });
});

describe('leaves to JSON.parse', () => {
  const good = '{"token":"token_id:5","logprob":-0.5,"bytes":null,"top_logprobs":[]}';

  test('nothing that it can read', () => {
    expect(scanLogprobs(one(good))).toMatchObject({ ids: [5], values: [-0.5] });
  });

  test.each([
    ['the text of a token', good.replace('token_id:5', 'the')],
    ['an id that is written otherwise', good.replace(':5', ':05')],
    ['a number that JSON does not have', good.replace('-0.5', '-.5')],
    ['NaN', good.replace('-0.5', 'NaN')],
    ['null', good.replace('-0.5', 'null')],
    ['other candidates', good.replace('[]}', '[{"token":"token_id:5","logprob":-0.5,"bytes":null}]}')],
    ['another field', good.replace('{', '{"more":1,')],
    ['spaces', good.replace(',', ', ')],
    ['a comma too many', `${good},`],
    ['an entry of the other kind', `${good},{"token_id":5,"logprob":-0.5,"top_logprobs":[]}`],
    ['no entry', ''],
  ])('%s', (_, entry) => {
    expect(scanLogprobs(one(entry))).toBeNull();
  });

  test('a list that is cut off', () => {
    const whole = one(`${good},${good}`);
    for (let end = 0; end < whole.length - 3; end++) expect(scanLogprobs(whole.subarray(0, end))).toBeNull();
  });
});
