import { describe, expect, it } from 'vitest';
import { allRows, episodeRow, firstRows } from '../../src/rows/episode-rows.ts';
import { environmentSourceSchema } from '../../src/schema/index.ts';

const source = environmentSourceSchema.parse({
  kind: 'environments',
  environments: [
    { tag: 'A', groups: 2, type: 'sokoban', config: { num_boxes: 1 } },
    { tag: 'B', groups: 3, type: 'frozen_lake', options: { history: 'step' }, instruction: 'Play.' },
  ],
  seed: 42,
});

describe('the rows of environment groups', () => {
  it('are one episode of all groups, then the next one', () => {
    const rows = Array.from({ length: 10 }, (_, index) => episodeRow(source, index));
    expect(rows.map(({ tag, group, episode }) => `${tag}${group}.${episode}`)).toEqual([
      ...['A0.0', 'A1.0', 'B2.0', 'B3.0', 'B4.0'],
      ...['A0.1', 'A1.1', 'B2.1', 'B3.1', 'B4.1'],
    ]);
    expect(rows[2]).toMatchObject({
      index: 2,
      environment: { type: 'frozen_lake', config: {} },
      options: { history: 'step' },
      instruction: 'Play.',
    });
  });

  it('have a seed that grows by one with each episode of a group, and differs between groups', () => {
    const seeds = Array.from({ length: 15 }, (_, index) => episodeRow(source, index).environment.seed);
    expect(new Set(seeds).size).toBe(15);
    expect((seeds[5] ?? 0) - (seeds[0] ?? 0)).toBe(1);
    expect((seeds[14] ?? 0) - (seeds[9] ?? 0)).toBe(1);
    expect(Math.max(...seeds)).toBeLessThan(2 ** 31);
  });

  it('depend on nothing but the source and their number, and differ with the base seed', () => {
    expect(episodeRow(source, 1_000_003)).toEqual(episodeRow(structuredClone(source), 1_000_003));
    expect(episodeRow({ ...source, seed: 43 }, 0).environment.seed).not.toBe(episodeRow(source, 0).environment.seed);
  });

  it('end after the episodes of each group where the source names them', () => {
    expect([...allRows({ ...source, episodes: 2 })].map(({ index }) => index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect([...allRows(source)]).toEqual([]);
    expect(firstRows(source)).toEqual([0, 2]);
  });
});
