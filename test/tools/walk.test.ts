import { expect, it } from 'vitest';
import { load } from '../../tools/walk.ts';

const MODULE = `
class Pair {
  static count = [1, 2].map((n) => ({ n })).length;
  sum(a, b) { return ((x) => x + b)(a); }
  get first() { return 1; }
}
export const total = new Pair().sum(1, 2) + new Pair().first + Pair.count;
`;

const loaded = async (url: string): Promise<string> => {
  const { source } = (await load(url, {}, async () => ({ source: MODULE }))) as { source: string };
  return source;
};

it('a compiled module reports every entry of a function, and computes what it did before', async () => {
  const source = await loaded('file:///floe/packages/core/dist/pair.js');
  let entries = 0;
  const walked = globalThis as { floeWalk?: () => void };
  walked.floeWalk = () => void entries++;
  try {
    const { total } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
    expect(total).toBe(6);
    expect(entries).toBe(5);
  } finally {
    delete walked.floeWalk;
  }
});

it('modules of installed packages stay unchanged', async () => {
  expect(await loaded('file:///floe/node_modules/zod/dist/index.js')).toBe(MODULE);
});
