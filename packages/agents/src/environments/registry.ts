import { FloeError, parseAs } from '@floe-rl/core';
import type { EnvironmentDefinition } from './environment.ts';
import { bandit } from './games/bandit.ts';
import { blackjack } from './games/blackjack.ts';
import { frozenLake } from './games/frozen-lake.ts';
import { guessNumber } from './games/guess-number.ts';
import { shop } from './games/shop/shop.ts';
import { sokoban } from './games/sokoban/sokoban.ts';
import { ticTacToe } from './games/tic-tac-toe.ts';
import { wordle } from './games/wordle.ts';

/** The environments of floe. */
export const ENVIRONMENTS: readonly EnvironmentDefinition[] = [
  sokoban,
  frozenLake,
  bandit,
  guessNumber,
  wordle,
  blackjack,
  ticTacToe,
  shop,
];

/** Returns the environment of a name. Throws `unknown_environment` when there is none. */
export function findEnvironment(
  name: string,
  environments: readonly EnvironmentDefinition[] = ENVIRONMENTS,
): EnvironmentDefinition {
  const found = environments.find((environment) => environment.name === name);
  if (found !== undefined) return found;
  const known = environments.map((environment) => environment.name);
  throw new FloeError('unknown_environment', `no environment "${name}"; there are ${known.join(', ')}`, { known });
}

/** Checks the configuration of an environment. Throws `schema_violation`, which names fields as in `environment.config.size`. */
export function parseEnvironmentConfig(definition: EnvironmentDefinition, config: unknown): unknown {
  return parseAs(definition.config, config, `environment ${definition.name}`, 'environment.config');
}
