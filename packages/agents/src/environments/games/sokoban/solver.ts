import { DIRECTIONS, type Direction, offsetOf } from '../grid.ts';
import { boxesOnTargets, keyOf, moved, type Position, type Puzzle, type Room } from './room.ts';

/** Maximum number of positions that the solver examines, about half a second. */
const MAX_POSITIONS = 100_000;

type Visit = { readonly position: Position; readonly before: Visit | null; readonly direction: Direction | null };

/**
 * Returns the fewest moves that solve a puzzle, found by breadth-first search. Where the search exceeds its limit, it returns the solution
 * that the puzzle was made with.
 */
export function solve({ room, start, solution }: Puzzle): readonly Direction[] {
  const live = liveCells(room);
  const queue: Visit[] = [{ position: start, before: null, direction: null }];
  const visited = new Set([keyOf(start)]);
  for (let at = 0; at < queue.length && visited.size < MAX_POSITIONS; at++) {
    const visit = queue[at] as Visit;
    if (boxesOnTargets(room, visit.position) === room.targets.size) return pathTo(visit);
    for (const direction of DIRECTIONS) {
      const position = moved(room, visit.position, direction);
      if (position === null || !isSolvable(position, visit.position, live)) continue;
      const key = keyOf(position);
      if (visited.has(key)) continue;
      visited.add(key);
      queue.push({ position, before: visit, direction });
    }
  }
  return solution;
}

/** Returns whether no box was pushed to a cell from which it cannot reach a target. */
function isSolvable(position: Position, before: Position, live: ReadonlySet<number>): boolean {
  if (position.boxes === before.boxes) return true;
  for (const box of position.boxes) if (!live.has(box)) return false;
  return true;
}

/** Returns the cells from which a single box can be pushed to a target. */
function liveCells({ walls, targets, width }: Room): Set<number> {
  const live = new Set(targets);
  for (const cell of live) {
    for (const direction of DIRECTIONS) {
      const offset = offsetOf(direction, width);
      // A box reaches this cell from `cell - offset` when the player stands on the cell before that one.
      if (walls[cell - offset] === false && walls[cell - 2 * offset] === false) live.add(cell - offset);
    }
  }
  return live;
}

function pathTo(end: Visit): Direction[] {
  const path: Direction[] = [];
  for (let visit: Visit | null = end; visit !== null && visit.direction !== null; visit = visit.before) {
    path.push(visit.direction);
  }
  return path.reverse();
}
