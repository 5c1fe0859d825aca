import { type RandomSource, seededRandom } from '@floe-rl/core';
import { z } from 'zod';
import { choiceForm } from '../action.ts';
import { defineGame, type Game, gameFields } from '../game.ts';
import { DIRECTIONS, type Direction, drawGrid, observationField } from './grid.ts';
import { type Colour, drawPicture } from './picture.ts';

const configSchema = z.strictObject({
  ...gameFields(20),
  observation: observationField,
  /** Number of rows and of columns. */
  size: z.int().min(2).max(20).default(4),
  /** Whether two of three moves turn to the left or to the right. */
  slippery: z.boolean().default(false),
  /** Probability that a cell is ice and not a hole. */
  ice_probability: z.number().min(0).max(1).default(0.8),
  success_reward: z.number().default(1),
  step_reward: z.number().max(0).default(0),
  hole_reward: z.number().max(0).default(0),
});
type Config = z.infer<typeof configSchema>;

/** Number of maps that are tried. Later ones have fewer holes, so that the last has none. */
const MAX_MAPS = 100;

type Turn = 'left' | 'straight' | 'right';
type Lake = {
  readonly size: number;
  readonly holes: readonly boolean[];
  /** How the ice turns the move of each step. */
  readonly turns: readonly Turn[];
  /** The fewest moves that reach the goal when the turns are known. */
  readonly path: readonly Direction[];
};

const GOAL =
  'You cross a frozen lake. Reach the goal without falling into a hole. A move against the edge leaves you where you are.';
const LEGENDS = {
  text: 'P you, _ ice, O hole, G goal, X you in a hole, √ you on the goal',
  image: 'White cells are ice, dark blue ones holes, the green one is the goal; the red square is you.',
};
const SLIPPERY =
  'The ice is slippery: two of three moves, chosen at random, turn by 90 degrees to the left or to the right.';

const ICE: Colour = [235, 245, 255];
const HOLE: Colour = [20, 40, 110];
const GREEN: Colour = [60, 170, 70];
const RED: Colour = [215, 40, 40];
const COLOURS = { P: [ICE, RED], _: [ICE], O: [HOLE], G: [GREEN], X: [HOLE, RED], '√': [GREEN, RED] };

/** The directions clockwise. */
const CLOCKWISE: readonly Direction[] = ['up', 'right', 'down', 'left'];

/** Returns the cell that a move reaches. */
function destination({ size, turns }: Omit<Lake, 'path'>, cell: number, direction: Direction, step: number): number {
  const turn = turns[step] ?? 'straight';
  const quarter = turn === 'straight' ? 0 : turn === 'right' ? 1 : 3;
  const turned = CLOCKWISE[(CLOCKWISE.indexOf(direction) + quarter) % 4];
  const [x, y] = [cell % size, Math.floor(cell / size)];
  if (turned === 'up') return y > 0 ? cell - size : cell;
  if (turned === 'down') return y < size - 1 ? cell + size : cell;
  if (turned === 'left') return x > 0 ? cell - 1 : cell;
  return x < size - 1 ? cell + 1 : cell;
}

/** Returns a lake whose goal can be reached in `max_steps` moves; `null` when there is none. */
function makeLake(config: Config, seed: number): Lake | null {
  const random = seededRandom(seed);
  for (let tries = 1; tries <= MAX_MAPS; tries++) {
    const share = config.ice_probability + ((1 - config.ice_probability) * (tries - 1)) / (MAX_MAPS - 1);
    const lake = randomLake(config, share, random);
    const path = pathAcross(lake, config.max_steps);
    if (path !== null) return { ...lake, path };
  }
  return null;
}

function randomLake({ size, slippery, max_steps }: Config, iceShare: number, random: RandomSource): Omit<Lake, 'path'> {
  const last = size * size - 1;
  const holes = Array.from({ length: size * size }, (_, cell) => random() >= iceShare && cell !== 0 && cell !== last);
  const turnOf = (u: number): Turn => (u < 1 / 3 ? 'left' : u < 2 / 3 ? 'straight' : 'right');
  return { size, holes, turns: slippery ? Array.from({ length: max_steps }, () => turnOf(random())) : [] };
}

type Reached = { readonly cell: number; readonly direction: Direction | null; readonly before: Reached | null };

/** Searches the fewest moves to the goal, step by step, because each step has its own turn. */
function pathAcross(lake: Omit<Lake, 'path'>, maxSteps: number): Direction[] | null {
  const goal = lake.size ** 2 - 1;
  let reached = new Map<number, Reached>([[0, { cell: 0, direction: null, before: null }]]);
  for (let step = 0; step < maxSteps; step++) {
    const next = new Map<number, Reached>();
    for (const before of reached.values()) {
      for (const direction of DIRECTIONS) {
        const cell = destination(lake, before.cell, direction, step);
        if (lake.holes[cell] !== true && !next.has(cell)) next.set(cell, { cell, direction, before });
      }
    }
    const end = next.get(goal);
    if (end !== undefined) return movesTo(end);
    // On firm ice further steps reach nothing new after as many steps as there are cells.
    if (lake.turns.length === 0 && step > goal) return null;
    reached = next;
  }
  return null;
}

function movesTo(end: Reached): Direction[] {
  const moves: Direction[] = [];
  for (let at: Reached | null = end; at !== null && at.direction !== null; at = at.before) moves.push(at.direction);
  return moves.reverse();
}

function startGame(config: Config, lake: Lake): Game<Direction> {
  const goal = lake.size ** 2 - 1;
  let player = 0;
  const glyph = (cell: number): string => {
    const isHole = lake.holes[cell] === true;
    if (cell === player) return isHole ? 'X' : cell === goal ? '√' : 'P';
    return isHole ? 'O' : cell === goal ? 'G' : '_';
  };
  const view = (): string => drawGrid(lake.size, lake.size, glyph);
  return {
    rules: [GOAL, LEGENDS[config.observation], ...(config.slippery ? [SLIPPERY] : [])].join('\n'),
    validActions: () => DIRECTIONS.join(', '),
    view: () => (config.observation === 'text' ? view() : drawPicture(view(), COLOURS)),
    state: view,
    play(direction, step) {
      player = destination(lake, player, direction, step);
      const isHole = lake.holes[player] === true;
      const isWon = player === goal;
      const bonus = isWon ? config.success_reward : isHole ? config.hole_reward : 0;
      const note = isWon
        ? 'You reached the goal.'
        : isHole
          ? 'You fell into a hole.'
          : `You tried to move ${direction}.`;
      return { reward: config.step_reward + bonus, isOver: isWon || isHole, isWon, note };
    },
  };
}

export const frozenLake = defineGame<Config, Direction>({
  name: 'frozen_lake',
  description: 'Cross a frozen lake with holes to the goal.',
  config: configSchema,
  form: () => choiceForm({ tool: 'move', description: 'Moves one cell.', parameter: 'direction' }, DIRECTIONS),
  start(config, seed) {
    const lake = makeLake(config, seed);
    return lake === null ? null : startGame(config, lake);
  },
  solve(config, seed) {
    const actions = makeLake(config, seed)?.path ?? [];
    return { actions, score: actions.length === 0 ? 0 : config.success_reward + actions.length * config.step_reward };
  },
});
