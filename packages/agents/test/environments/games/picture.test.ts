import { inflateSync } from 'node:zlib';
import type { ChatMessage, ContentPart } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { frozenLake } from '../../../src/environments/games/frozen-lake.ts';
import { type Colour, drawPicture } from '../../../src/environments/games/picture.ts';
import { call, startEpisode } from '../episodes.ts';

const RED: Colour = [255, 0, 0];
const BLUE: Colour = [0, 0, 255];
const SIDE = 28;

/** Reads an image that has a palette and no filters, and returns the colour of a pixel. */
function readPng(part: ContentPart) {
  if (part.type !== 'image_url') throw new Error('no image');
  const png = Buffer.from(part.image_url.url.replace(/^data:image\/png;base64,/, ''), 'base64');
  const chunks = new Map<string, Buffer>();
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) {
    const data = png.subarray(at + 8, at + 8 + png.readUInt32BE(at));
    chunks.set(png.toString('latin1', at + 4, at + 8), data);
  }
  const header = chunks.get('IHDR') ?? Buffer.alloc(13);
  const [width, height] = [header.readUInt32BE(0), header.readUInt32BE(4)];
  const rows = inflateSync(chunks.get('IDAT') ?? '');
  const palette = chunks.get('PLTE') ?? Buffer.alloc(0);
  const colourAt = (x: number, y: number): number[] => {
    const index = rows[y * (width + 1) + 1 + x] ?? 0;
    return [...palette.subarray(3 * index, 3 * index + 3)];
  };
  return { width, height, colourAt };
}

function partsOf(messages: readonly ChatMessage[]): readonly ContentPart[] {
  return messages.flatMap(({ content }) => (typeof content === 'object' && content !== null ? content : []));
}

describe('a picture of a grid', () => {
  it('has a cell of its colours for each glyph', () => {
    const { width, height, colourAt } = readPng(drawPicture('a b\nb a', { a: [RED], b: [BLUE, RED] }));
    expect([width, height]).toEqual([2 * SIDE + 2, 2 * SIDE + 2]);
    const corner = 4;
    const middle = SIDE / 2;
    expect(colourAt(corner, corner)).toEqual(RED);
    expect(colourAt(middle, middle)).toEqual(RED);
    expect(colourAt(SIDE + corner, corner)).toEqual(BLUE);
    expect(colourAt(SIDE + middle, middle)).toEqual(RED);
    expect(colourAt(corner, SIDE + corner)).toEqual(BLUE);
    expect(colourAt(0, 0)).toEqual([40, 40, 40]);
  });
});

describe('a game that is seen as images', () => {
  it('explains the colours and shows where the player is', async () => {
    const { environment, first } = await startEpisode(frozenLake, { observation: 'image', ice_probability: 1 });
    expect(first.introduction).toContain('the red square is you');
    const [image] = partsOf(first.messages);
    expect(image && readPng(image).colourAt(SIDE / 2, SIDE / 2)).toEqual([215, 40, 40]);
    const { messages } = await environment.step(call('move', { direction: 'right' }));
    const [note, moved] = partsOf(messages);
    expect(note).toEqual({ type: 'text', text: 'You tried to move right.' });
    expect(moved && readPng(moved).colourAt(SIDE / 2, SIDE / 2)).toEqual([235, 245, 255]);
    expect(moved && readPng(moved).colourAt(SIDE + SIDE / 2, SIDE / 2)).toEqual([215, 40, 40]);
  });
});
