import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { boxesOnTargets, makePuzzle, moved, type Puzzle } from '../../../src/environments/games/sokoban/room.ts';
import { sokoban } from '../../../src/environments/games/sokoban/sokoban.ts';
import { solve } from '../../../src/environments/games/sokoban/solver.ts';
import { call, playReplies, scoreOf, startEpisode, textsOf } from '../episodes.ts';

const options = fc.record({
  width: fc.integer({ min: 5, max: 9 }),
  height: fc.integer({ min: 5, max: 9 }),
  boxCount: fc.integer({ min: 1, max: 3 }),
  maxMoves: fc.integer({ min: 1, max: 80 }),
});

function isSolvedBy({ room, start }: Puzzle, moves: Puzzle['solution']): boolean {
  let position = start;
  for (const direction of moves) {
    const next = moved(room, position, direction);
    if (next === null) return false;
    position = next;
  }
  return boxesOnTargets(room, position) === room.targets.size;
}

/** A corridor: the player, a box and its target, with free cells between them. */
function corridor(): Puzzle {
  const walls = [...'##########_______##########'].map((char) => char === '#');
  const room = { width: 9, height: 3, walls, targets: new Set([16]) };
  return { room, start: { boxes: new Set([13]), player: 11 }, solution: [] };
}

describe('moved', () => {
  const { room } = corridor();

  it.each([
    ['walks to a free cell', [14], 11, 'right', { boxes: [14], player: 12 }],
    ['pushes a box', [12], 11, 'right', { boxes: [13], player: 12 }],
    ['is stopped by a wall', [14], 11, 'up', null],
    ['cannot push a box into a wall', [16], 15, 'right', null],
    ['cannot push two boxes', [12, 13], 11, 'right', null],
    ['cannot pull a box', [12], 13, 'right', { boxes: [12], player: 14 }],
  ] as const)('%s', (_, boxes, player, direction, expected) => {
    const position = moved(room, { boxes: new Set(boxes), player }, direction);
    expect(position === null ? null : { boxes: [...position.boxes], player: position.player }).toEqual(expected);
  });
});

describe('makePuzzle', () => {
  it('makes rooms that are solved by its solution, within the limit of moves', () => {
    fc.assert(
      fc.property(options, fc.nat(), (chosen, seed) => {
        const puzzle = makePuzzle(chosen, seed);
        // A room of few cells may have no place where a box can be pulled in the moves that are allowed.
        fc.pre(puzzle !== null);
        expect(puzzle.solution.length).toBeLessThanOrEqual(chosen.maxMoves);
        expect(puzzle.start.boxes.size).toBe(chosen.boxCount);
        expect(isSolvedBy(puzzle, [])).toBe(false);
        expect(isSolvedBy(puzzle, puzzle.solution)).toBe(true);
      }),
    );
  });

  it('makes a room for every seed of the usual sizes', () => {
    const sizes = [
      { width: 6, height: 6, boxCount: 1, maxMoves: 10 },
      { width: 6, height: 6, boxCount: 2, maxMoves: 60 },
      { width: 8, height: 8, boxCount: 4, maxMoves: 100 },
    ];
    for (const size of sizes) for (let seed = 0; seed < 200; seed++) expect(makePuzzle(size, seed)).not.toBeNull();
  });
});

describe('solve', () => {
  it('finds the fewest moves', () => {
    expect(solve(corridor())).toEqual(['right', 'right', 'right', 'right']);
  });

  it('is never longer than the solution of the maker', () => {
    fc.assert(
      fc.property(options, fc.nat(), (chosen, seed) => {
        const puzzle = makePuzzle({ ...chosen, boxCount: Math.min(2, chosen.boxCount) }, seed);
        fc.pre(puzzle !== null);
        const moves = solve(puzzle);
        expect(moves.length).toBeLessThanOrEqual(puzzle.solution.length);
        expect(isSolvedBy(puzzle, moves)).toBe(true);
      }),
      { numRuns: 50 },
    );
  });
});

describe('sokoban', () => {
  it('counts a push against a wall as a step without an effect', async () => {
    const { environment, first } = await startEpisode(sokoban, { max_steps: 40, step_reward: -0.1 });
    const results = await playReplies(environment, Array(40).fill(call('move', { direction: 'up' })));
    const blocked = results.filter(({ messages }) => textsOf(messages)[0]?.startsWith('You cannot move up.'));
    expect(blocked.length).toBeGreaterThan(30);
    expect(scoreOf(results)).toBeCloseTo(-4);
    expect(results.at(-1)).toMatchObject({ truncated: true, terminated: false, metrics: { success: 0 } });
    expect(results.at(-1)?.stateHash).toBe(results.at(-2)?.stateHash);
    expect(first.stateHash).toMatch(/^[0-9a-f]{16}$/);
  });

  it('pays for boxes on targets and takes the reward back for boxes off them', async () => {
    const config = { num_boxes: 2, dim_room: [7, 7] as [number, number], box_reward: 1, success_reward: 10 };
    const parsed = sokoban.config.parse(config);
    const { replies = [], score } = sokoban.perfectPlay?.(parsed, 4) ?? {};
    const { environment } = await startEpisode(sokoban, config, 4);
    const results = await playReplies(environment, replies);
    expect(results.at(-1)?.reward).toBe(11);
    expect(scoreOf(results)).toBe(score);
    expect(scoreOf(results)).toBe(12);
  });
});
