import { pickOne, type RandomSource, randomBelow, seededRandom, shuffled } from '@floe-rl/core';
import { DIRECTIONS, type Direction, OPPOSITE, offsetOf } from '../grid.ts';

/** A room of Sokoban. Cells are numbered row by row. The outermost cells are walls. */
export type Room = {
  readonly width: number;
  readonly height: number;
  readonly walls: readonly boolean[];
  readonly targets: ReadonlySet<number>;
};

export type Position = { readonly boxes: ReadonlySet<number>; readonly player: number };

export type Puzzle = {
  readonly room: Room;
  readonly start: Position;
  /** Moves that solve the room; not the fewest. */
  readonly solution: readonly Direction[];
};

export type PuzzleOptions = {
  readonly width: number;
  readonly height: number;
  readonly boxCount: number;
  /** Maximum number of moves of the solution. */
  readonly maxMoves: number;
};

/** Number of rooms that are tried before there is no puzzle for a seed. */
const MAX_ROOMS = 200;
/** Number of random plays in each room. The best play is kept. */
const PLAYS_PER_ROOM = 6;
/** Probability that a player who can pull a box does. */
const PULL_PROBABILITY = 0.8;

/** Returns the position after a move; `null` when a wall or a box prevents it. */
export function moved(room: Room, { boxes, player }: Position, direction: Direction): Position | null {
  const offset = offsetOf(direction, room.width);
  const next = player + offset;
  if (room.walls[next] === true) return null;
  if (!boxes.has(next)) return { boxes, player: next };
  const pushedTo = next + offset;
  if (room.walls[pushedTo] === true || boxes.has(pushedTo)) return null;
  return { boxes: withBoxMoved(boxes, next, pushedTo), player: next };
}

function withBoxMoved(boxes: ReadonlySet<number>, from: number, to: number): Set<number> {
  const result = new Set(boxes);
  result.delete(from);
  result.add(to);
  return result;
}

export function boxesOnTargets(room: Room, { boxes }: Position): number {
  let count = 0;
  for (const box of boxes) if (room.targets.has(box)) count++;
  return count;
}

/**
 * Makes a puzzle by reverse play: boxes start on the targets and are pulled away, so the reversed play solves it. Returns `null` when the
 * options allow none.
 */
export function makePuzzle(options: PuzzleOptions, seed: number): Puzzle | null {
  const random = seededRandom(seed);
  let partial: Play | null = null;
  for (let tries = 0; tries < MAX_ROOMS; tries++) {
    const play = bestPlay(carvedRoom(options, random), options, random);
    if (play === null) continue;
    if (boxesOnTargets(play.room, play.end) === 0) return puzzleOf(play);
    partial ??= play;
  }
  return partial === null ? null : puzzleOf(partial);
}

/** Reverse play in a room. */
type Play = {
  readonly room: Room;
  readonly end: Position;
  readonly moves: readonly Direction[];
  readonly value: number;
};

function puzzleOf({ room, end, moves }: Play): Puzzle {
  return { room, start: end, solution: moves.map((direction) => OPPOSITE[direction]).reverse() };
}

/** Returns a room of connected floor, made by a random walk, with targets on it. */
function carvedRoom({ width, height, boxCount }: PuzzleOptions, random: RandomSource): Room {
  const walls = Array.from({ length: width * height }, () => true);
  const isInside = (cell: number): boolean => {
    const [x, y] = [cell % width, Math.floor(cell / width)];
    return x > 0 && x < width - 1 && y > 0 && y < height - 1;
  };
  const area = (width - 2) * (height - 2);
  const floor = Math.max(boxCount * 2 + 3, Math.round(area * (0.55 + random() * 0.35)));
  let cell = (1 + randomBelow(random, height - 2)) * width + 1 + randomBelow(random, width - 2);
  let carved = 0;
  while (carved < Math.min(floor, area)) {
    if (walls[cell] === true) carved++;
    walls[cell] = false;
    const next = cell + offsetOf(pickOne(random, DIRECTIONS), width);
    if (isInside(next)) cell = next;
  }
  const cells = walls.flatMap((isWall, at) => (isWall ? [] : [at]));
  return { width, height, walls, targets: new Set(shuffled(random, cells).slice(0, boxCount)) };
}

/** Returns the best of several reverse plays; `null` when none of them moves a box off its target. */
function bestPlay(room: Room, options: PuzzleOptions, random: RandomSource): Play | null {
  let best: Play | null = null;
  for (let i = 0; i < PLAYS_PER_ROOM; i++) {
    const play = reversePlay(room, options.maxMoves, random);
    if (play.value > (best?.value ?? 0)) best = play;
  }
  return best;
}

/** Plays at random in reverse, and returns the play up to the position of the highest value. */
function reversePlay(room: Room, maxMoves: number, random: RandomSource): Play {
  let position: Position = { boxes: room.targets, player: startCell(room, random) };
  const moves: Direction[] = [];
  const visited = new Set<string>();
  let pulls = 0;
  let best: Play = { room, end: position, moves: [], value: 0 };
  while (moves.length < maxMoves) {
    visited.add(keyOf(position));
    const next = reverseMove(room, position, visited, random);
    if (next === null) break;
    if (next.position.boxes !== position.boxes) pulls++;
    position = next.position;
    moves.push(next.direction);
    const off = room.targets.size - boxesOnTargets(room, position);
    const value = off === 0 ? 0 : off * 10_000 + distanceToTargets(room, position) * 100 + pulls;
    if (value > best.value) best = { room, end: position, moves: [...moves], value };
  }
  return best;
}

/** Returns the sum of the distances of the boxes to their nearest targets, which is high in rooms that need many pushes. */
function distanceToTargets({ targets, width }: Room, { boxes }: Position): number {
  const distance = (a: number, b: number): number =>
    Math.abs((a % width) - (b % width)) + Math.abs(Math.floor(a / width) - Math.floor(b / width));
  return [...boxes].reduce((sum, box) => sum + Math.min(...[...targets].map((target) => distance(box, target))), 0);
}

/** Returns a free cell for the player, beside a target where there is one. */
function startCell({ walls, targets, width }: Room, random: RandomSource): number {
  const isFree = (cell: number): boolean => walls[cell] === false && !targets.has(cell);
  const beside = [...targets].flatMap((target) => DIRECTIONS.map((direction) => target + offsetOf(direction, width)));
  const near = beside.filter(isFree);
  return pickOne(random, near.length > 0 ? near : [...walls.keys()].filter(isFree));
}

type ReverseMove = { readonly direction: Direction; readonly position: Position };

function reverseMove(
  room: Room,
  position: Position,
  visited: ReadonlySet<string>,
  random: RandomSource,
): ReverseMove | null {
  const { boxes, player } = position;
  const walks: ReverseMove[] = [];
  const pulls: ReverseMove[] = [];
  for (const direction of DIRECTIONS) {
    const offset = offsetOf(direction, room.width);
    const next = player + offset;
    if (room.walls[next] === true || boxes.has(next)) continue;
    walks.push({ direction, position: { boxes, player: next } });
    const box = player - offset;
    if (boxes.has(box)) pulls.push({ direction, position: { boxes: withBoxMoved(boxes, box, player), player: next } });
  }
  const isNew = (move: ReverseMove): boolean => !visited.has(keyOf(move.position));
  const [newPulls, newWalks] = [pulls.filter(isNew), walks.filter(isNew)];
  const preferred = newPulls.length > 0 && random() < PULL_PROBABILITY ? newPulls : newWalks;
  const candidates = [preferred, newPulls, walks].find((moves) => moves.length > 0);
  return candidates === undefined ? null : pickOne(random, candidates);
}

/** Returns a text that is the same for equal positions. */
export function keyOf({ boxes, player }: Position): string {
  return String.fromCharCode(player, ...[...boxes].sort((a, b) => a - b));
}
