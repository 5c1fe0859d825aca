import { seededRandom } from '@floe-rl/core';
import { z } from 'zod';
import { integerForm } from '../action.ts';
import { defineGame, type Game, gameFields, type Move } from '../game.ts';

const configSchema = z
  .strictObject({
    ...gameFields(12),
    /** The player's opponent. With `self`, the agent plays both sides, as the seats `x` and `o`. */
    opponent: z.enum(['random', 'perfect', 'self']).default('random'),
    /** The side of the player against `random` and `perfect`; `x` begins. */
    side: z.enum(['x', 'o']).default('x'),
    success_reward: z.number().default(1),
    draw_reward: z.number().default(0.5),
  })
  .refine(({ opponent, side }) => opponent !== 'self' || side === 'x', {
    path: ['side'],
    message: 'is only for the opponents random and perfect',
  });
type Config = z.infer<typeof configSchema>;

type Side = 'x' | 'o';
/** The nine cells, row by row; a free cell is a dot. */
type Board = string;

const EMPTY: Board = '.........';
const LINES = ['012', '345', '678', '036', '147', '258', '048', '246'].map((line) => [...line].map(Number));

function otherOf(side: Side): Side {
  return side === 'x' ? 'o' : 'x';
}

function freeCells(board: Board): number[] {
  return [...board].flatMap((mark, cell) => (mark === '.' ? [cell] : []));
}

function withMark(board: Board, cell: number, side: Side): Board {
  return board.slice(0, cell) + side + board.slice(cell + 1);
}

/** Returns the side with three in a line, `draw` for a full board, and `null` while the game continues. */
function resultOf(board: Board): Side | 'draw' | null {
  for (const line of LINES) {
    const [first] = line.map((cell) => board[cell]);
    if (first !== '.' && line.every((cell) => board[cell] === first)) return first as Side;
  }
  return board.includes('.') ? null : 'draw';
}

const values = new Map<Board, number>();

/** Returns the value of a board for the side that moves next, if both play perfectly: 1, 0 or -1. */
function boardValue(board: Board, side: Side): number {
  const result = resultOf(board);
  if (result !== null) return result === 'draw' ? 0 : result === side ? 1 : -1;
  const known = values.get(board);
  if (known !== undefined) return known;
  const value = Math.max(...freeCells(board).map((cell) => -boardValue(withMark(board, cell, side), otherOf(side))));
  values.set(board, value);
  return value;
}

/** Returns the cell that the opponent marks. `draws` has a random number for each mark of the game. */
function opponentCell(board: Board, side: Side, opponent: Config['opponent'], draws: readonly number[]): number {
  const free = freeCells(board);
  const value = boardValue(board, side);
  const isBest = (cell: number): boolean => -boardValue(withMark(board, cell, side), otherOf(side)) === value;
  const cells = opponent === 'perfect' ? free.filter(isBest) : free;
  return cells[Math.floor((draws[9 - free.length] ?? 0) * cells.length)] as number;
}

function drawsOf(seed: number): number[] {
  return Array.from({ length: 9 }, seededRandom(seed));
}

/** Returns the board before the player's first move. */
function firstBoard({ opponent, side }: Config, draws: readonly number[]): Board {
  return side === 'x' ? EMPTY : withMark(EMPTY, opponentCell(EMPTY, 'x', opponent, draws), 'x');
}

function scoreOf(config: Config, board: Board, side: Side): number {
  const result = resultOf(board);
  return result === side ? config.success_reward : result === 'draw' ? config.draw_reward : 0;
}

/** Returns the board after the player's mark and, against an opponent, the opponent's. */
function afterMark(config: Config, board: Board, cell: number, side: Side, draws: readonly number[]): Board {
  const marked = withMark(board, cell, side);
  if (config.opponent === 'self' || resultOf(marked) !== null) return marked;
  return withMark(marked, opponentCell(marked, otherOf(side), config.opponent, draws), otherOf(side));
}

function moveOf(config: Config, board: Board, side: Side, note: string): Move {
  const result = resultOf(board);
  if (result === null) return { reward: 0, isOver: false, isWon: false, note };
  const ending = result === 'draw' ? 'The game is a draw.' : `${result} wins.`;
  const seatRewards = { x: scoreOf(config, board, 'x'), o: scoreOf(config, board, 'o') };
  const isSelf = config.opponent === 'self';
  return {
    reward: isSelf ? seatRewards.x : seatRewards[side],
    isOver: true,
    isWon: result === (isSelf ? 'x' : side),
    note: `${note} ${ending}`,
    ...(isSelf && { seatRewards }),
  };
}

function startGame(config: Config, draws: readonly number[]): Game<number> {
  let board = firstBoard(config, draws);
  let side: Side = config.side;
  const view = (): string => {
    const marks = [...board].map((mark, cell) => (mark === '.' ? String(cell + 1) : mark));
    return [0, 3, 6].map((row) => marks.slice(row, row + 3).join(' | ')).join('\n');
  };
  return {
    get rules() {
      return `You play tic-tac-toe as ${side}. Three marks in a row, column or diagonal win. Free cells show their number.`;
    },
    validActions: () =>
      freeCells(board)
        .map((cell) => cell + 1)
        .join(', '),
    view,
    state: () => [board, side],
    ...(config.opponent === 'self' && { seat: () => side }),
    play(number) {
      const cell = number - 1;
      if (board[cell] !== '.') return `Cell ${number} is taken.`;
      const mover = side;
      board = afterMark(config, board, cell, mover, draws);
      const move = moveOf(config, board, mover, `You marked cell ${number}.`);
      if (config.opponent === 'self' && !move.isOver) side = otherOf(side);
      return move;
    },
  };
}

type Line = { readonly actions: readonly number[]; readonly score: number };

/** Searches all games against the opponent, whose moves are known, for the best result with the fewest moves. */
function bestLine(config: Config, board: Board, draws: readonly number[], stepsLeft: number): Line {
  if (resultOf(board) !== null) return { actions: [], score: scoreOf(config, board, config.side) };
  let best: Line = { actions: [], score: 0 };
  if (stepsLeft === 0) return best;
  for (const cell of freeCells(board)) {
    const after = afterMark(config, board, cell, config.side, draws);
    const { actions, score } = bestLine(config, after, draws, stepsLeft - 1);
    const isBetter = score > best.score || (score === best.score && actions.length + 1 < best.actions.length);
    if (isBetter) best = { actions: [cell + 1, ...actions], score };
  }
  return best;
}

/** A game in which `o` lets `x` win. */
const COOPERATIVE = [1, 4, 2, 5, 3];

export const ticTacToe = defineGame<Config, number>({
  name: 'tic_tac_toe',
  description: 'Play tic-tac-toe against a random or a perfect opponent, or both sides.',
  config: configSchema,
  form: () => integerForm({ tool: 'place', description: 'Marks a free cell.', parameter: 'cell' }, 1, 9),
  start: (config, seed) => startGame(config, drawsOf(seed)),
  solve(config, seed) {
    const draws = drawsOf(seed);
    if (config.opponent !== 'self') return bestLine(config, firstBoard(config, draws), draws, config.max_steps);
    const fits = config.max_steps >= COOPERATIVE.length;
    return fits ? { actions: COOPERATIVE, score: config.success_reward } : { actions: [], score: 0 };
  },
});
