import { createHash } from 'node:crypto';
import type { EnvironmentSource, TaskEnvironment } from '../schema/index.ts';

/** Seeds are smaller than this, because some environments accept no larger seeds. */
const SEEDS = 2 ** 31;

/** One episode of a group, as task templates see it. */
export type EpisodeRow = {
  /** Number of the row. */
  readonly index: number;
  readonly tag: string;
  /** Number of the group, which keeps its environment and its seed. */
  readonly group: number;
  /** Number of the episode within its group. */
  readonly episode: number;
  readonly environment: TaskEnvironment;
  /** Settings of the agent. */
  readonly options: Readonly<Record<string, unknown>>;
  readonly instruction: string;
};

/** Returns the number of groups of all environments together. */
export function groupCount({ environments }: Pick<EnvironmentSource, 'environments'>): number {
  return environments.reduce((sum, { groups }) => sum + groups, 0);
}

/**
 * Returns the row with this number. All groups play their first episode, then all play their second one, and so on. The row depends on
 * nothing but the source and the number, so that a stream continues exactly where it was, on any server.
 */
export function episodeRow(source: EnvironmentSource, index: number): EpisodeRow {
  const count = groupCount(source);
  const group = index % count;
  const episode = Math.floor(index / count);
  let first = 0;
  for (const { tag, groups, type, config, options, instruction } of source.environments) {
    if (group >= first + groups) {
      first += groups;
      continue;
    }
    const seed = (source.seed + groupSeed(source.seed, group) + episode) % SEEDS;
    return { index, tag, group, episode, environment: { type, config, seed }, options, instruction };
  }
  throw new RangeError(`there is no row ${index}`);
}

/** Returns the numbers of the first rows of each environment, which show whether a template fits them. */
export function firstRows({ environments }: EnvironmentSource): number[] {
  let next = 0;
  return environments.map(({ groups }) => {
    const first = next;
    next += groups;
    return first;
  });
}

/** Returns the rows of a source that has an end. */
export function* allRows(source: EnvironmentSource): Generator<EpisodeRow> {
  const rows = groupCount(source) * (source.episodes ?? 0);
  for (let index = 0; index < rows; index++) yield episodeRow(source, index);
}

/** Returns the seed of a group. Neighbouring groups have distant seeds, so that their episodes do not repeat each other's. */
function groupSeed(seed: number, group: number): number {
  return createHash('sha256').update(`${seed}/${group}`).digest().readUInt32BE(0) % SEEDS;
}
