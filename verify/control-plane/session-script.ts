import type { Lease } from '../../src/schema/index.ts';
import { Dice } from './dice.ts';
import type { Plan } from './plan.ts';

/** What an attempt does by itself, whatever happens around it. */
export type SessionScript = {
  readonly initMs: number;
  readonly initFails: boolean;
  readonly turns: number;
  readonly turnMs: number;
  readonly hangs: boolean;
  readonly fails: boolean;
  readonly postrunMs: number;
  readonly graded: boolean;
  readonly reward: number;
};

export function sessionScript(plan: Plan, lease: Pick<Lease, 'session_id' | 'attempt'>): SessionScript {
  const dice = new Dice(plan.seed * 65_599 + textNumber(`${lease.session_id}/${lease.attempt}`));
  const quick = dice.chance(0.3);
  return {
    initMs: quick ? dice.between(1, 20) : dice.between(50, 400),
    initFails: dice.chance(0.08),
    turns: dice.whole(0, 3),
    turnMs: quick ? dice.between(1, 30) : dice.between(50, 400),
    hangs: dice.chance(0.04),
    fails: dice.chance(0.08),
    postrunMs: dice.between(1, 200),
    graded: !dice.chance(0.1),
    reward: dice.whole(0, 1),
  };
}

function textNumber(text: string): number {
  let number = 7;
  for (let i = 0; i < text.length; i++) number = (Math.imul(number, 31) + text.charCodeAt(i)) >>> 0;
  return number;
}
