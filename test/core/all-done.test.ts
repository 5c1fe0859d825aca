import { expect, test } from 'vitest';
import { allDone } from '../../src/core/all-done.ts';

test('gives the values in the order of the list', async () => {
  const slow = new Promise<string>((resolve) => setTimeout(resolve, 5, 'slow'));
  expect(await allDone([slow, Promise.resolve(2)])).toEqual(['slow', 2]);
});

test('waits for the others after a failure, and throws the first of the list', async () => {
  const order: string[] = [];
  const later = (name: string) =>
    new Promise((_, reject) => setTimeout(() => reject(new Error(name)), 5)).finally(() => order.push(name));
  const failed = allDone([later('listed first'), Promise.reject(new Error('failed first'))]);
  await expect(failed.finally(() => order.push('thrown'))).rejects.toThrow('listed first');
  expect(order).toEqual(['listed first', 'thrown']);
});
