import { z } from 'zod';
import { choiceForm } from '../../action.ts';
import { defineGame, type Game, gameFields } from '../../game.ts';
import { DIRECTIONS, type Direction, drawGrid, observationField } from '../grid.ts';
import { type Colour, drawPicture } from '../picture.ts';
import { boxesOnTargets, makePuzzle, moved, type Position, type Puzzle, type Room } from './room.ts';
import { solve } from './solver.ts';

const configSchema = z
  .strictObject({
    ...gameFields(100),
    observation: observationField,
    /** Width and height of the room with its walls. */
    dim_room: z.tuple([z.int().min(5).max(30), z.int().min(5).max(30)]).default([6, 6]),
    num_boxes: z.int().min(1).max(10).default(1),
    /** Maximum number of moves of the reverse play that makes a room, and so also of the room's solution. */
    search_depth: z.int().min(1).max(1_000).default(60),
    success_reward: z.number().default(1),
    step_reward: z.number().max(0).default(0),
    /** Reward for a box that is pushed onto a target; pushed off it, the box costs as much. */
    box_reward: z.number().min(0).default(0),
  })
  .refine(({ dim_room: [width, height], num_boxes }) => num_boxes * 2 + 3 <= (width - 2) * (height - 2), {
    path: ['num_boxes'],
    message: 'is too large for dim_room',
  });
type Config = z.infer<typeof configSchema>;

const GOAL =
  'You play Sokoban. Push every box onto a target. You push a box by moving against it; it moves when the cell beyond it is free. Boxes cannot be pulled.';
const LEGENDS = {
  text: '# wall, _ floor, O target, X box, √ box on a target, P you, S you on a target',
  image: 'Dark cells are walls, light ones floor, green ones targets; brown squares are boxes, the red square is you.',
};

const WALL: Colour = [80, 80, 90];
const FLOOR: Colour = [240, 235, 220];
const TARGET: Colour = [90, 190, 100];
const BOX: Colour = [130, 80, 30];
const RED: Colour = [215, 40, 40];
const COLOURS = {
  '#': [WALL],
  _: [FLOOR],
  O: [TARGET],
  X: [FLOOR, BOX],
  '√': [TARGET, BOX],
  P: [FLOOR, RED],
  S: [TARGET, RED],
};

function puzzleOf(config: Config, seed: number): Puzzle | null {
  const [width, height] = config.dim_room;
  const maxMoves = Math.min(config.search_depth, config.max_steps);
  return makePuzzle({ width, height, boxCount: config.num_boxes, maxMoves }, seed);
}

function glyphOf(room: Room, { boxes, player }: Position, cell: number): string {
  const isTarget = room.targets.has(cell);
  if (room.walls[cell] === true) return '#';
  if (cell === player) return isTarget ? 'S' : 'P';
  if (boxes.has(cell)) return isTarget ? '√' : 'X';
  return isTarget ? 'O' : '_';
}

function startGame(config: Config, { room, start }: Puzzle): Game<Direction> {
  let position = start;
  const grid = (): string => drawGrid(room.width, room.height, (cell) => glyphOf(room, position, cell));
  return {
    rules: `${GOAL}\n${LEGENDS[config.observation]}`,
    validActions: () => DIRECTIONS.join(', '),
    view: () => (config.observation === 'text' ? grid() : drawPicture(grid(), COLOURS)),
    state: grid,
    play(direction) {
      const next = moved(room, position, direction);
      if (next === null) {
        return { reward: config.step_reward, isOver: false, isWon: false, note: `You cannot move ${direction}.` };
      }
      const gained = boxesOnTargets(room, next) - boxesOnTargets(room, position);
      position = next;
      const isWon = boxesOnTargets(room, position) === room.targets.size;
      const reward = config.step_reward + gained * config.box_reward + (isWon ? config.success_reward : 0);
      return { reward, isOver: isWon, isWon, note: isWon ? 'All boxes are on targets.' : `You moved ${direction}.` };
    },
  };
}

export const sokoban = defineGame<Config, Direction>({
  name: 'sokoban',
  description: 'Push boxes onto targets in a generated room that can be solved.',
  config: configSchema,
  form: () => choiceForm({ tool: 'move', description: 'Moves one cell.', parameter: 'direction' }, DIRECTIONS),
  start(config, seed) {
    const puzzle = puzzleOf(config, seed);
    return puzzle === null ? null : startGame(config, puzzle);
  },
  solve(config, seed) {
    const puzzle = puzzleOf(config, seed);
    if (puzzle === null) return { actions: [], score: 0 };
    const actions = solve(puzzle);
    const boxes = puzzle.room.targets.size - boxesOnTargets(puzzle.room, puzzle.start);
    const score = config.success_reward + actions.length * config.step_reward + boxes * config.box_reward;
    return { actions, score };
  },
});
