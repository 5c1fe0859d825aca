import { describe, expect, it } from 'vitest';
import { bandit } from '../../../src/environments/games/bandit.ts';
import { blackjack } from '../../../src/environments/games/blackjack.ts';
import { frozenLake } from '../../../src/environments/games/frozen-lake.ts';
import { guessNumber } from '../../../src/environments/games/guess-number.ts';
import { marksOf, wordle } from '../../../src/environments/games/wordle.ts';
import { call, playReplies, says, scoreOf, startEpisode, textsOf } from '../episodes.ts';

const lastText = (results: readonly { messages: Parameters<typeof textsOf>[0] }[]): string =>
  textsOf(results.at(-1)?.messages ?? []).join('\n');

describe('every game', () => {
  it('explains the rules, how to act and the number of steps', async () => {
    const { first } = await startEpisode(guessNumber, { max_steps: 3 });
    expect(first.introduction).toMatch(
      /integer from 1 to 100.*\nAct by calling the tool guess once in each reply. There are at most 3 steps/,
    );
    expect(first.tools).toHaveLength(1);
    const { first: asText } = await startEpisode(guessNumber, { action_format: 'text' });
    expect(asText.introduction).toContain('as <answer>number</answer>');
    expect(asText.tools).toEqual([]);
  });

  it('lists the valid actions after an invalid one, which uses a step and gets its own reward', async () => {
    const { environment } = await startEpisode(guessNumber, { max_steps: 2, invalid_action_reward: -0.5 });
    const results = await playReplies(environment, [says('hm'), call('guess', { number: 1_000 })]);
    expect(textsOf(results[0]?.messages ?? [])).toEqual([
      'The reply calls no tool. Call the tool guess.\nValid actions: integers from 1 to 100',
    ]);
    expect(results.map(({ reward }) => reward)).toEqual([-0.5, -0.5]);
    expect(results.at(-1)).toMatchObject({ truncated: true, metrics: { invalid_actions: 2, success: 0 } });
    expect(lastText(results)).toMatch(/No steps are left\.$/);
  });

  it('gives nothing for replies after the end', async () => {
    const { environment } = await startEpisode(guessNumber, { max_steps: 1, success_reward: 5 }, 3);
    const { replies = [] } = guessNumber.perfectPlay?.(guessNumber.config.parse({}), 3) ?? {};
    const [won] = await playReplies(environment, replies);
    expect(won).toMatchObject({ reward: 5, terminated: true, truncated: false });
    const after = await environment.step(call('guess', { number: 1 }));
    expect(after).toMatchObject({ reward: 0, terminated: true, stateHash: won?.stateHash });
    expect(textsOf(after.messages)).toEqual(['The episode has ended.']);
  });
});

describe('guess_number', () => {
  it('is won by halving the range', async () => {
    for (let seed = 0; seed < 30; seed++) {
      const { environment } = await startEpisode(guessNumber, {}, seed);
      let [low, high, score] = [1, 100, 0];
      for (let isOver = false; !isOver; ) {
        const guess = Math.floor((low + high) / 2);
        const result = await environment.step(call('guess', { number: guess }));
        if (textsOf(result.messages)[0]?.includes('higher than')) low = guess + 1;
        else high = guess - 1;
        score += result.reward;
        isOver = result.terminated || result.truncated;
      }
      expect(score).toBe(1);
    }
  });
});

describe('frozen_lake', () => {
  it('ends in a hole with its reward', async () => {
    const config = { ice_probability: 0.3, hole_reward: -1, step_reward: -0.1 };
    const walks = ['down', 'right'].map((direction) => Array(4).fill(call('move', { direction })));
    const ends: [number, string][] = [];
    for (let seed = 0; seed < 10; seed++) {
      for (const walk of walks) {
        const { environment } = await startEpisode(frozenLake, config, seed);
        const results = await playReplies(environment, walk);
        const last = results.at(-1);
        if (last?.terminated === true) ends.push([last.reward, lastText(results).split('\n')[0] ?? '']);
      }
    }
    expect(ends.length).toBeGreaterThan(5);
    for (const end of ends) expect(end).toEqual([-1.1, 'You fell into a hole.']);
  });

  it('turns two of three moves on slippery ice', async () => {
    const config = { size: 20, slippery: true, ice_probability: 1, max_steps: 300 };
    let [moves, straight] = [0, 0];
    for (let seed = 0; seed < 10; seed++) {
      const { environment, first } = await startEpisode(frozenLake, config, seed);
      let before = columnOf(first.messages);
      for (const result of await playReplies(environment, Array(15).fill(call('move', { direction: 'right' })))) {
        const column = columnOf(result.messages);
        moves++;
        if (column === before + 1) straight++;
        before = column;
      }
    }
    expect(straight / moves).toBeGreaterThan(0.2);
    expect(straight / moves).toBeLessThan(0.47);
  });

  function columnOf(messages: Parameters<typeof textsOf>[0]): number {
    const row = textsOf(messages)[0]
      ?.split('\n')
      .find((line) => /^[P_OG ]{39}$/.test(line) && line.includes('P'));
    return (row ?? '').split(' ').indexOf('P');
  }
});

describe('bandit', () => {
  it('pays an arm as often as its share of the score says', async () => {
    const config = { arms: 3, pulls: 2_000 };
    const { environment } = await startEpisode(bandit, config, 1);
    const results = await playReplies(environment, Array(2_000).fill(call('pull', { arm: 2 })));
    const { environment: other } = await startEpisode(bandit, config, 1);
    const best = bandit.perfectPlay?.(bandit.config.parse(config), 1).replies ?? [];
    const perfect = await playReplies(other, best);
    const coins = (text: string): number =>
      Math.max(...[...text.matchAll(/(\d+) coins/g)].map(([, count]) => Number(count)));
    expect(scoreOf(perfect)).toBeCloseTo(1);
    expect(coins(lastText(results)) / coins(lastText(perfect))).toBeCloseTo(scoreOf(results), 1);
    expect(results.at(-1)).toMatchObject({ terminated: true, truncated: false });
  });
});

describe('wordle', () => {
  it.each([
    ['crane', 'crane', 'GGGGG'],
    ['abbey', 'babes', 'YYGG-'],
    ['eerie', 'crane', '--Y-G'],
    ['speed', 'erase', 'Y-YY-'],
    ['puppy', 'apron', 'Y----'],
  ])('marks %s against %s as %s', (guess, secret, marks) => {
    expect(marksOf(guess, secret)).toBe(marks);
  });

  it('shows all guesses with their marks', async () => {
    const { environment } = await startEpisode(wordle, { words: ['cat', 'cow'] }, 0);
    const results = await playReplies(
      environment,
      ['cog', 'dog'].map((word) => call('guess', { word })),
    );
    expect(lastText(results)).toMatch(/^cog G[Y-]*\ndog [Y-]+/);
  });

  it('accepts no word of another length', async () => {
    const { environment } = await startEpisode(wordle);
    const [result] = await playReplies(environment, [call('guess', { word: 'cat' })]);
    expect(textsOf(result?.messages ?? [])[0]).toContain('Valid actions: words of 5 letters from a to z');
  });
});

describe('blackjack', () => {
  const handOf = (text: string) => {
    const [, total] = /Your hand: .*\((\d+)\)/.exec(text) ?? [];
    const [, dealer] = /Dealer: .*\((\d+)\)/.exec(text) ?? [];
    return [Number(total), Number(dealer)] as const;
  };

  it('compares the totals when the player stands, and the dealer draws to 17', async () => {
    const rewards = new Set<number>();
    for (let seed = 0; seed < 60; seed++) {
      const { environment } = await startEpisode(blackjack, {}, seed);
      const results = await playReplies(environment, [call('play', { action: 'stand' })]);
      const [total, dealer] = handOf(lastText(results));
      expect(dealer).toBeGreaterThanOrEqual(17);
      expect(results[0]?.reward).toBe(dealer > 21 || total > dealer ? 1 : total === dealer ? 0.5 : 0);
      rewards.add(results[0]?.reward ?? Number.NaN);
    }
    expect([...rewards].sort()).toEqual([0, 0.5, 1]);
  });

  it('is lost above 21', async () => {
    const { environment } = await startEpisode(blackjack);
    const results = await playReplies(environment, Array(12).fill(call('play', { action: 'hit' })));
    expect(handOf(lastText(results))[0]).toBeGreaterThan(21);
    expect(results.at(-1)).toMatchObject({ reward: 0, terminated: true });
  });

  /** Returns the highest total of a hand that does not exceed 21, else the lowest. */
  function totalOf(ranks: readonly string[]): number {
    let totals = [0];
    for (const rank of ranks) {
      const points = rank === 'A' ? [1, 11] : [Number(rank) || 10];
      totals = totals.flatMap((total) => points.map((value) => total + value));
    }
    return Math.max(...totals.filter((total) => total <= 21), Math.min(...totals));
  }

  it('counts an ace as 11 where that does not exceed 21, and otherwise as 1', async () => {
    const counted = { high: 0, low: 0 };
    for (let seed = 0; seed < 100; seed++) {
      const { environment } = await startEpisode(blackjack, {}, seed);
      for (const { messages } of await playReplies(environment, Array(5).fill(call('play', { action: 'hit' })))) {
        const [, ranks = '', total] = /Your hand: (.*) \((\d+)\)/.exec(textsOf(messages)[0] ?? '') ?? [];
        const hand = ranks.split(' ');
        expect(Number(total)).toBe(totalOf(hand));
        if (!hand.includes('A')) continue;
        const low = hand.reduce((sum, rank) => sum + (rank === 'A' ? 1 : Number(rank) || 10), 0);
        counted[low === Number(total) ? 'low' : 'high']++;
      }
    }
    expect(counted.high).toBeGreaterThan(3);
    expect(counted.low).toBeGreaterThan(10);
  });
});
