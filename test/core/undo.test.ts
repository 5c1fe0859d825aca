import { expect, it } from 'vitest';
import { undoAll } from '../../src/core/undo.ts';

it('undoes everything, the last first, whatever of it fails, and throws the first failure', async () => {
  const done: string[] = [];
  const step = (name: string, error?: Error) => async () => {
    done.push(name);
    if (error !== undefined) throw error;
  };
  const steps = [step('server', new Error('server')), step('engine'), step('node', new Error('node')), step('last')];
  await expect(undoAll(steps)).rejects.toThrow('node');
  expect([done, steps]).toEqual([['last', 'node', 'engine', 'server'], []]);
  await undoAll(steps);
});
