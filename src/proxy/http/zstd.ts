import { Decompress } from 'fzstd';
import { FloeError } from '../../core/errors.ts';

/** What every decoder is asked to have room for (RFC 8878, 3.1.1.1.2); no common setting of an encoder takes more. */
const MAX_WINDOW_BYTES = 8 * 1024 * 1024;

/**
 * The decoder moves its whole window with every block. An encoder's blocks hold some 100 kB, but a hostile body may consist of
 * empty ones behind a large window: so the bytes moved are bounded, at the start and for each byte of output.
 */
const MOVED_AT_START = 256 * 1024 * 1024;
const MOVED_PER_BYTE = 512;

/** Work in bytes, written or moved, between two turns of the event loop: some milliseconds. */
const WORK_PER_TURN = 1024 * 1024;

/** A moved byte costs a fraction of one that is written. */
const MOVES_PER_WRITE = 16;

/** What a block costs that holds nothing, in the same measure. */
const WORK_PER_BLOCK = 256;

const FRAME_MAGIC = 0xfd2fb528;
const SKIPPABLE_MAGIC = 0x184d2a50;
const BLOCK_HEADER_BYTES = 3;
const CHECKSUM_BYTES = 4;

type FrameHead = {
  readonly headerBytes: number;
  readonly windowBytes: number;
  readonly contentBytes: number | null;
  readonly hasChecksum: boolean;
};

/**
 * Unpacks zstd frames, one block after the other, and lets others run in between. Rejects with `body_too_large` above
 * `maxBytes`, `bad_request` for anything that is not valid, or that takes more work than what comes out is worth.
 */
export async function unpackZstd(packed: Buffer, maxBytes: number): Promise<Buffer> {
  const output = new Output(maxBytes);
  let at = 0;
  while (at < packed.length) {
    const magic = uint(packed, at, 4);
    if ((magic & 0xfffffff0) >>> 0 === SKIPPABLE_MAGIC) at += 8 + uint(packed, at + 4, 4);
    else if (magic === FRAME_MAGIC) at = await unpackFrame(packed, at, output);
    else throw invalid('no frame where one should begin');
    if (at > packed.length) throw invalid('it is cut off');
    // Skipped frames cost time as well.
    output.move(0);
    await output.breathe();
  }
  return output.whole();
}

/** Returns where the frame ends. */
async function unpackFrame(packed: Buffer, start: number, output: Output): Promise<number> {
  const head = readHead(packed, start);
  const before = output.bytes;
  const decoder = new Decompress((data) => output.add(data));
  output.move(head.windowBytes);
  let from = start;
  let at = start + head.headerBytes;
  for (;;) {
    const header = uint(packed, at, BLOCK_HEADER_BYTES);
    const last = (header & 1) === 1;
    // One byte, repeated, is all that a block of type 1 holds.
    at += BLOCK_HEADER_BYTES + (((header >> 1) & 3) === 1 ? 1 : header >> 3);
    if (last && head.hasChecksum) at += CHECKSUM_BYTES;
    if (at > packed.length) throw invalid('it is cut off');
    output.move(head.windowBytes);
    decoder.push(packed.subarray(from, at), last);
    from = at;
    await output.breathe();
    if (last) break;
  }
  const { contentBytes } = head;
  if (contentBytes !== null && output.bytes - before !== contentBytes) {
    throw invalid(`a frame of ${contentBytes} bytes holds ${output.bytes - before}`);
  }
  return at;
}

function readHead(packed: Buffer, start: number): FrameHead {
  const flags = uint(packed, start + 4, 1);
  const single = (flags & 0x20) !== 0;
  const dictionaryBytes = [0, 1, 2, 4][flags & 3] as number;
  const sizeFlag = flags >> 6;
  const sizeBytes = sizeFlag === 0 ? (single ? 1 : 0) : 1 << sizeFlag;
  let at = start + 5;
  let windowBytes = 0;
  if (!single) {
    const descriptor = uint(packed, at++, 1);
    const base = 2 ** (10 + (descriptor >> 3));
    windowBytes = base + (base / 8) * (descriptor & 7);
  }
  if (uint(packed, at, dictionaryBytes) !== 0) throw invalid('it needs a dictionary');
  at += dictionaryBytes;
  const contentBytes = sizeBytes === 0 ? null : uint(packed, at, sizeBytes) + (sizeFlag === 1 ? 256 : 0);
  if (single) windowBytes = contentBytes ?? 0;
  if (windowBytes > MAX_WINDOW_BYTES) throw invalid(`its window of ${windowBytes} bytes exceeds ${MAX_WINDOW_BYTES}`);
  return { headerBytes: at + sizeBytes - start, windowBytes, contentBytes, hasChecksum: (flags & 4) !== 0 };
}

/** Little-endian. Eight bytes lose precision above 2^53, which is refused anyway. */
function uint(packed: Buffer, at: number, bytes: number): number {
  if (at + bytes > packed.length) throw invalid('it is cut off');
  let value = 0;
  for (let i = bytes - 1; i >= 0; i--) value = value * 256 + (packed[at + i] as number);
  return value;
}

function invalid(what: string): FloeError {
  return new FloeError('bad_request', `the body is not valid zstd: ${what}`);
}

/** What has come out, and what that took. */
class Output {
  bytes = 0;
  private work = 0;
  private moved = 0;
  private readonly maxBytes: number;
  private readonly chunks: Uint8Array[] = [];

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  add(data: Uint8Array): void {
    this.bytes += data.length;
    this.work += data.length;
    if (this.bytes > this.maxBytes) {
      throw new FloeError('body_too_large', `the body exceeds ${this.maxBytes} bytes when it is unpacked`);
    }
    if (data.length > 0) this.chunks.push(data);
  }

  /** Called before a block is decoded. */
  move(bytes: number): void {
    this.moved += bytes;
    this.work += bytes / MOVES_PER_WRITE + WORK_PER_BLOCK;
    if (this.moved > MOVED_AT_START + MOVED_PER_BYTE * this.bytes) throw invalid('its blocks hold too little');
  }

  async breathe(): Promise<void> {
    if (this.work < WORK_PER_TURN) return;
    this.work = 0;
    await new Promise<void>((resolve) => setImmediate(resolve));
  }

  whole(): Buffer {
    return Buffer.concat(this.chunks, this.bytes);
  }
}
