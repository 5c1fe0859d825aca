import { crc32, deflateSync } from 'node:zlib';
import type { ContentPart } from '@floe-rl/core/schema';

/** Red, green and blue, each from 0 to 255. */
export type Colour = readonly [number, number, number];

/** Size in pixels of a cell, and width of the lines around it. */
const CELL = 28;
const LINE = 2;
const LINE_COLOUR: Colour = [40, 40, 40];
const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
/** Values of a PNG's header: 8 bits for each pixel, which are the number of a colour in a palette. */
const BIT_DEPTH = 8;
const PALETTE_TYPE = 3;

/**
 * Draws a grid, as `drawGrid` writes it, as an image in PNG. `colours` are the colours of a cell and of the square in its middle, by the glyph
 * of the cell; a cell with one colour has no square.
 */
export function drawPicture(grid: string, colours: Readonly<Record<string, readonly Colour[]>>): ContentPart {
  const rows = grid.split('\n').map((row) => row.split(' '));
  const palette = [LINE_COLOUR, ...Object.values(colours).flat()];
  const width = (rows[0]?.length ?? 0) * CELL + LINE;
  const height = rows.length * CELL + LINE;
  const pixels = new Uint8Array(width * height);
  const fill = (x: number, y: number, size: number, colour: Colour): void => {
    for (let row = y; row < y + size; row++)
      pixels.fill(palette.indexOf(colour), row * width + x, row * width + x + size);
  };
  rows.forEach((row, y) => {
    row.forEach((glyph, x) => {
      const [ground, figure] = colours[glyph] ?? [];
      if (ground !== undefined) fill(x * CELL + LINE, y * CELL + LINE, CELL - LINE, ground);
      if (figure !== undefined) fill(x * CELL + LINE + CELL / 4, y * CELL + LINE + CELL / 4, CELL / 2 - LINE, figure);
    });
  });
  const data = encodePng(width, height, palette, pixels).toString('base64');
  return { type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } };
}

/** Encodes an image whose `pixels` are indices in the palette, row by row. */
function encodePng(width: number, height: number, palette: readonly Colour[], pixels: Uint8Array): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([BIT_DEPTH, PALETTE_TYPE], 8);
  // Each row begins with the number of its filter; 0 is none.
  const rows = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y++) rows.set(pixels.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const chunks = [
    chunk('IHDR', header),
    chunk('PLTE', Buffer.from(palette.flat())),
    chunk('IDAT', deflateSync(rows)),
    chunk('IEND', Buffer.alloc(0)),
  ];
  return Buffer.concat([SIGNATURE, ...chunks]);
}

function chunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type, 'latin1'), data]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, checksum]);
}
