import assert from 'node:assert/strict';
import { paginate } from '../src/paginate.mjs';

const letters = ['a', 'b', 'c', 'd', 'e'];

const tests = {
  'first page': () => assert.deepEqual(paginate(letters, { page: 1, size: 2 }).items, ['a', 'b']),
  'last page is short': () => assert.deepEqual(paginate(letters, { page: 3, size: 2 }).items, ['e']),
  'counts a short last page': () => assert.equal(paginate(letters, { size: 2 }).pages, 3),
  'counts full pages': () => assert.equal(paginate(letters.slice(0, 4), { size: 2 }).pages, 2),
  'empty beyond the end': () => assert.deepEqual(paginate(letters, { page: 9, size: 2 }).items, []),
  'refuses page 0': () => assert.throws(() => paginate(letters, { page: 0 }), RangeError),
};

for (const [name, test] of Object.entries(tests)) {
  const node = `paginate::${name.replaceAll(' ', '_')}`;
  try {
    test();
    console.log(`PASSED ${node}`);
  } catch (error) {
    console.log(`FAILED ${node}`);
    console.log(`  ${error.message.split('\n')[0]}`);
  }
}
