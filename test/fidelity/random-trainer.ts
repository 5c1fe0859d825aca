import type { Golden } from '../golden/session.ts';
import type { Dice } from './dice.ts';

/** Maximum number of replies, summed over all sessions, between two weight updates. */
const MAX_REPLIES_BETWEEN = 24;

/**
 * Possible numbers of event loop turns between the steps of a weight update. During many turns, running replies end and new calls wait for
 * the paused engine. With few turns, the update happens in the middle of replies.
 */
const TURNS_BETWEEN = [0, 1, 4, 12, 40] as const;

/** By how much the engine pools' clock moves forward between the steps of an update, as in an update that takes about a second. */
const STEP_MS = 300;

/**
 * Updates the weights of the simulated engine at random moments while sessions run. Some updates come without notice, as from a trainer that
 * commands the engine itself. Others follow the order that the documentation prescribes, with running replies kept or aborted.
 */
export class RandomTrainer {
  private readonly golden: Golden;
  private readonly dice: Dice;
  /** Whether the engine reports the version of its weights, so that they can be updated without notice. */
  private readonly reportsVersion: boolean;

  constructor(golden: Golden, dice: Dice, reportsVersion: boolean) {
    this.golden = golden;
    this.dice = dice;
    this.reportsVersion = reportsVersion;
  }

  /** Updates the weights until `sessions` has settled. Each update has a new version, whose name begins with `name`. */
  async updateDuring(sessions: Promise<unknown>, name: string): Promise<void> {
    let hasEnded = false;
    const end = (): void => {
      hasEnded = true;
    };
    const ended = sessions.then(end, end);
    for (let number = 0; !hasEnded; number++) {
      await this.update(`${name}.${number}`);
      await Promise.race([this.golden.replies(this.dice.between(1, MAX_REPLIES_BETWEEN)), ended]);
    }
  }

  private async update(version: string): Promise<void> {
    const { dice } = this;
    const { engines, sim } = this.golden;
    if (this.reportsVersion && dice.chance(0.3)) return sim.updateWeights(version);
    await engines.pause({ mode: dice.chance(0.7) ? 'keep' : 'abort', whilePaused: 'hold' });
    await this.turns();
    sim.updateWeights(version);
    await this.turns();
    engines.setPolicyVersion(version);
    await engines.resume();
  }

  private async turns(): Promise<void> {
    for (let left = this.dice.pick(TURNS_BETWEEN); left > 0; left--) await new Promise(setImmediate);
    if (this.dice.chance(0.5)) this.golden.engineClock.skip(STEP_MS);
  }
}
