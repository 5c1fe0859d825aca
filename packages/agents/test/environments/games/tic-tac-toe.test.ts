import { seededRandom } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import type { StepResult } from '../../../src/environments/environment.ts';
import { ticTacToe } from '../../../src/environments/games/tic-tac-toe.ts';
import { randomReply } from '../../../src/environments/random-play.ts';
import { call, playReplies, startEpisode, textsOf } from '../episodes.ts';

const place = (cell: number) => call('place', { cell });

describe('tic_tac_toe', () => {
  it.each(['x', 'o'])('has a perfect opponent that never loses against %s', async (side) => {
    const rewards = new Set<number>();
    for (let seed = 0; seed < 60; seed++) {
      const { environment, first } = await startEpisode(ticTacToe, { opponent: 'perfect', side, max_steps: 500 }, seed);
      const random = seededRandom(seed);
      let result: StepResult;
      do result = await environment.step(randomReply(first.tools ?? [], random, 0));
      while (!result.terminated);
      rewards.add(result.reward);
    }
    expect(rewards).toContain(0);
    expect(rewards).not.toContain(1);
  });

  it('lets the opponent begin when the player is o', async () => {
    const { first } = await startEpisode(ticTacToe, { side: 'o' });
    expect(first.introduction).toMatch(/as o\./);
    expect(textsOf(first.messages)[0]).toMatch(/x \||\| x/);
    expect(first.seat).toBeUndefined();
  });

  it('refuses a cell that is taken, and lists the free ones', async () => {
    const { environment } = await startEpisode(ticTacToe, { opponent: 'self' });
    const [, refused] = await playReplies(environment, [place(5), place(5)]);
    expect(textsOf(refused?.messages ?? [])[0]).toMatch(/^Cell 5 is taken\.\nValid actions: 1, 2, 3, 4, 6, 7, 8, 9\n/);
    expect(refused).toMatchObject({ seat: 'o', reward: 0, metrics: { invalid_actions: 1 } });
    expect(refused?.answers).toBeUndefined();
  });
});

describe('tic_tac_toe against oneself', () => {
  it.each([
    [1, 2, 3],
    [4, 5, 6],
    [7, 8, 9],
    [1, 4, 7],
    [2, 5, 8],
    [3, 6, 9],
    [1, 5, 9],
    [3, 5, 7],
  ])('is won by the line %i %i %i', async (...line) => {
    const [reply, other] = [1, 2, 3, 4, 6, 8, 9].filter((cell) => !line.includes(cell));
    const { environment } = await startEpisode(ticTacToe, { opponent: 'self' });
    const [first, second, third] = line;
    const cells = [first, reply, second, other, third].map((cell) => place(cell ?? 0));
    expect((await playReplies(environment, cells)).at(-1)).toMatchObject({
      terminated: true,
      seatRewards: { x: 1, o: 0 },
    });
  });

  it('gives each message to the player that it is for', async () => {
    const { environment, first } = await startEpisode(ticTacToe, { opponent: 'self' });
    expect(first).toMatchObject({ seat: 'x', tools: [{ function: { name: 'place' } }] });
    const [one, two, three] = await playReplies(environment, [place(1), place(4), place(2)]);
    expect(one).toMatchObject({
      seat: 'o',
      answers: [{ role: 'tool', tool_call_id: 'id_0', content: 'You marked cell 1.' }],
      introduction: expect.stringMatching(/^You play tic-tac-toe as o\./),
      messages: [{ role: 'user', content: expect.stringMatching(/^x \| 2 \| 3/) }],
    });
    expect(two).toMatchObject({
      seat: 'x',
      messages: [{ role: 'user', content: expect.stringMatching(/^x \| 2 \| 3/) }],
    });
    expect(three?.seat).toBe('o');
  });

  it.each([
    [[1, 4, 2, 5, 3], { x: 1, o: 0 }, 1],
    [[1, 4, 2, 5, 9, 6], { x: 0, o: 1 }, 0],
    [[1, 2, 3, 5, 4, 6, 8, 7, 9], { x: 0.5, o: 0.5 }, 0.5],
  ])('scores %j as %j', async (cells, seatRewards, reward) => {
    const { environment } = await startEpisode(ticTacToe, { opponent: 'self' });
    const results = await playReplies(environment, cells.map(place));
    expect(results).toHaveLength(cells.length);
    expect(results.at(-1)).toMatchObject({ terminated: true, reward, seatRewards });
    expect(results.at(-1)?.answers).toBeUndefined();
    expect(textsOf(results.at(-1)?.messages ?? [])[0]).toMatch(/wins|draw/);
  });
});
