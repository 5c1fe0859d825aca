import { nextEventLoopTurn, VirtualClock } from '@floe-rl/core';
import { beforeEach, describe, expect, it } from 'vitest';
import { FairTurns } from '../../src/proxy/fair-turns.ts';

/** A piece of work that was done, and the iteration of the event loop in which it was done. */
type Done = { readonly name: string; readonly iteration: number };

let clock: VirtualClock;
let turns: FairTurns;
let done: Done[];
let iteration: number;
let pending: Promise<void>[];

beforeEach(() => {
  clock = new VirtualClock();
  turns = new FairTurns(clock);
  done = [];
  iteration = 0;
  pending = [];
});

/** Sends a request of `owner` whose work takes 3 ms. Resolves when a request that need not wait has been handled. */
async function arrive(owner: object, name: string): Promise<void> {
  const work = async (): Promise<void> => {
    await turns.next(owner);
    clock.advance(3);
    done.push({ name, iteration });
  };
  pending.push(work());
  for (let step = 0; step < 5; step++) await Promise.resolve();
}

async function finish(): Promise<void> {
  while (done.length < pending.length) {
    await nextEventLoopTurn();
    iteration++;
  }
}

describe('work that arrives in one iteration of the event loop', () => {
  it('is done at once for 5 ms, and then one piece in each later iteration', async () => {
    const owner = {};
    for (const name of ['a', 'b', 'c', 'd', 'e']) await arrive(owner, name);
    expect(done.map(({ name }) => name)).toEqual(['a', 'b']);
    await finish();
    expect(done.map(({ name }) => name)).toEqual(['a', 'b', 'c', 'd', 'e']);
    const later = done.slice(2).map((piece) => piece.iteration);
    expect(new Set(later).size).toBe(3);
  });

  it('is done in turns by the sessions that it belongs to', async () => {
    const flooding = {};
    const other = {};
    for (const name of ['a', 'b', 'c', 'd', 'e']) await arrive(flooding, name);
    await arrive(other, 'x');
    await arrive(other, 'y');
    await finish();
    expect(done.map(({ name }) => name)).toEqual(['a', 'b', 'c', 'x', 'd', 'y', 'e']);
  });

  it('waits behind earlier work that still waits, also in a later iteration', async () => {
    const owner = {};
    for (const name of ['a', 'b', 'c', 'd']) await arrive(owner, name);
    await nextEventLoopTurn();
    await arrive(owner, 'e');
    await finish();
    expect(done.map(({ name }) => name)).toEqual(['a', 'b', 'c', 'd', 'e']);
  });

  it('is done at once in an iteration that follows idle ones', async () => {
    const owner = {};
    for (const name of ['a', 'b', 'c', 'd']) await arrive(owner, name);
    await finish();
    for (let idle = 0; idle < 3; idle++) await nextEventLoopTurn();
    await arrive(owner, 'e');
    expect(done.at(-1)?.name).toBe('e');
  });
});
