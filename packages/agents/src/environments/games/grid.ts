import { z } from 'zod';

/** Field of the configuration of games on a grid: how the player sees it. */
export const observationField = z.enum(['text', 'image']).default('text');

/** Directions in which a player moves on a grid. */
export const DIRECTIONS = ['up', 'down', 'left', 'right'] as const;
export type Direction = (typeof DIRECTIONS)[number];

export const OPPOSITE: Readonly<Record<Direction, Direction>> = {
  up: 'down',
  down: 'up',
  left: 'right',
  right: 'left',
};

/** Returns the difference between the indexes of a cell and of its neighbour in a direction, in a grid of `width` columns. */
export function offsetOf(direction: Direction, width: number): number {
  if (direction === 'up') return -width;
  if (direction === 'down') return width;
  return direction === 'left' ? -1 : 1;
}

/** Returns the rows of a grid, one per line. `glyph` returns the character of a cell by its index. */
export function drawGrid(width: number, height: number, glyph: (cell: number) => string): string {
  const rows = Array.from({ length: height }, (_, y) => Array.from({ length: width }, (_, x) => glyph(y * width + x)));
  return rows.map((row) => row.join(' ')).join('\n');
}
