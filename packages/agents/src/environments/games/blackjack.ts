import { seededRandom, shuffled } from '@floe-rl/core';
import { z } from 'zod';
import { choiceForm } from '../action.ts';
import { defineGame, type Game, gameFields } from '../game.ts';

const configSchema = z.strictObject({
  ...gameFields(20),
  success_reward: z.number().default(1),
  draw_reward: z.number().default(0.5),
});
type Config = z.infer<typeof configSchema>;

const PLAYS = ['hit', 'stand'] as const;
type Play = (typeof PLAYS)[number];

const RANKS = ['A', '2', '3', '4', '5', '6', '7', '8', '9', '10', 'J', 'Q', 'K'] as const;
/** The dealer takes cards below this total. */
const DEALER_STANDS = 17;

/** A deal: the first two cards of the deck are the player's, the next two the dealer's. */
type Deal = {
  readonly player: readonly string[];
  readonly dealer: readonly string[];
  readonly deck: readonly string[];
};

function dealOf(seed: number): Deal {
  const cards = shuffled(seededRandom(seed), [...RANKS, ...RANKS, ...RANKS, ...RANKS]);
  return { player: cards.slice(0, 2), dealer: cards.slice(2, 4), deck: cards.slice(4) };
}

/** Returns the total of a hand. One ace counts 11 where that does not exceed 21. */
function totalOf(hand: readonly string[]): number {
  const total = hand.reduce((sum, rank) => sum + (rank === 'A' ? 1 : Number(rank) || 10), 0);
  return hand.includes('A') && total <= 11 ? total + 10 : total;
}

/** Returns the dealer's hand after the player has stood and `drawn` cards of the deck are gone. */
function dealerHand({ dealer, deck }: Deal, drawn: number): string[] {
  const hand = [...dealer];
  while (totalOf(hand) < DEALER_STANDS) hand.push(deck[drawn + hand.length - dealer.length] as string);
  return hand;
}

function rewardOf({ success_reward, draw_reward }: Config, player: number, dealer: number): number {
  if (player > 21) return 0;
  if (dealer > 21 || player > dealer) return success_reward;
  return player === dealer ? draw_reward : 0;
}

function startGame(config: Config, deal: Deal): Game<Play> {
  let [hits, hasStood] = [0, false];
  const hand = (): string[] => [...deal.player, ...deal.deck.slice(0, hits)];
  const dealerShows = (): string[] => (hasStood ? dealerHand(deal, hits) : deal.dealer.slice(0, 1));
  return {
    rules:
      'You play one round of blackjack. Get a higher total than the dealer without exceeding 21. Face cards count 10, an ace 1 or 11. The dealer shows one card, and draws below 17 after you stand.',
    validActions: () => PLAYS.join(', '),
    view: () =>
      `Your hand: ${hand().join(' ')} (${totalOf(hand())})\nDealer: ${dealerShows().join(' ')} (${totalOf(dealerShows())})`,
    state: () => [hand(), dealerShows()],
    play(action) {
      if (action === 'hit') hits++;
      else hasStood = true;
      const total = totalOf(hand());
      if (action === 'hit' && total <= 21) return { reward: 0, isOver: false, isWon: false, note: 'You take a card.' };
      const dealer = totalOf(dealerHand(deal, hits));
      const reward = rewardOf(config, total, dealer);
      const isWon = total <= 21 && (dealer > 21 || total > dealer);
      const note =
        total > 21 ? 'You exceed 21 and lose.' : isWon ? 'You win.' : total === dealer ? 'A draw.' : 'You lose.';
      return { reward, isOver: true, isWon, note };
    },
  };
}

/** Finds the best number of cards to take, with the deck open. */
function bestPlay(config: Config, seed: number): { actions: Play[]; score: number } {
  const deal = dealOf(seed);
  let best: { actions: Play[]; score: number } | null = null;
  for (let hits = 0; hits < config.max_steps; hits++) {
    const total = totalOf([...deal.player, ...deal.deck.slice(0, hits)]);
    if (total > 21) break;
    const score = rewardOf(config, total, totalOf(dealerHand(deal, hits)));
    if (best === null || score > best.score) {
      best = { actions: [...Array.from({ length: hits }, (): Play => 'hit'), 'stand'], score };
    }
  }
  return best ?? { actions: ['stand'], score: 0 };
}

export const blackjack = defineGame<Config, Play>({
  name: 'blackjack',
  description: 'Win a round of blackjack against the dealer.',
  config: configSchema,
  form: () => choiceForm({ tool: 'play', description: 'Takes a card or stands.', parameter: 'action' }, PLAYS),
  start: (config, seed) => startGame(config, dealOf(seed)),
  solve: bestPlay,
});
