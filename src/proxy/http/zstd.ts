import { Decompress } from 'fzstd';
import { MIB } from '../../core/bytes.ts';
import { FloeError } from '../../core/errors.ts';

/**
 * Largest window size that is accepted: the one that every decoder should support (RFC 8878, 3.1.1.1.2). No common encoder setting exceeds
 * it.
 */
const MAX_WINDOW_BYTES = 8 * MIB;

/**
 * Maximum number of bytes that the decoder may move for one body: a constant plus an amount per byte of output. The decoder moves its
 * whole window with every block. An ordinary block holds some 100 kB, but a hostile body may consist of empty blocks after a header with a
 * large window.
 */
const MOVED_AT_START = 256 * MIB;
const MOVED_PER_BYTE = 512;

/** Amount of work, expressed as output bytes written, after which the decoder yields to the event loop. It takes some milliseconds. */
const WORK_PER_TURN = MIB;

/** Cost ratio: moving this many bytes of the decoder's window takes as long as writing one byte of output. */
const MOVES_PER_WRITE = 16;

/** Time for decoding an empty block, expressed as the number of output bytes whose writing takes as long. */
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
 * Unpacks zstd frames block by block, so that other work on the event loop runs in between. The loop around `fzstd` is hand-written
 * because Node 20's zlib has no zstd, and one call for a whole body would block the event loop. Rejects with `body_too_large` above
 * `maxBytes`, and with `bad_request` for invalid data or data that takes much more work than its output justifies.
 */
export async function unpackZstd(packed: Buffer, maxBytes: number): Promise<Buffer> {
  const output = new Output(maxBytes);
  let at = 0;
  while (at < packed.length) {
    const magic = uint(packed, at, 4);
    if ((magic & 0xfffffff0) >>> 0 === SKIPPABLE_MAGIC) at += 8 + uint(packed, at + 4, 4);
    else if (magic === FRAME_MAGIC) at = await unpackFrame(packed, at, output);
    else throw invalid('a frame has an unknown magic number');
    if (at > packed.length) throw invalid('it is cut off');
    // Skippable frames have no output but take time, so each counts as an empty block.
    output.addBlock(0);
    await output.yieldIfDue();
  }
  return output.whole();
}

/** Unpacks the frame at `start` and returns the position after it. */
async function unpackFrame(packed: Buffer, start: number, output: Output): Promise<number> {
  const head = readHead(packed, start);
  const before = output.bytes;
  const decoder = new Decompress((data) => output.add(data));
  output.addBlock(head.windowBytes);
  let from = start;
  let at = start + head.headerBytes;
  for (;;) {
    const header = uint(packed, at, BLOCK_HEADER_BYTES);
    const last = (header & 1) === 1;
    // A block of type 1 is stored as one byte, which the decoder repeats.
    at += BLOCK_HEADER_BYTES + (((header >> 1) & 3) === 1 ? 1 : header >> 3);
    if (last && head.hasChecksum) at += CHECKSUM_BYTES;
    if (at > packed.length) throw invalid('it is cut off');
    output.addBlock(head.windowBytes);
    decoder.push(packed.subarray(from, at), last);
    from = at;
    await output.yieldIfDue();
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

/** Reads a little-endian number of `bytes` bytes. A number above 2^53 loses precision, but a body of that size is refused anyway. */
function uint(packed: Buffer, at: number, bytes: number): number {
  if (at + bytes > packed.length) throw invalid('it is cut off');
  let value = 0;
  for (let i = bytes - 1; i >= 0; i--) value = value * 256 + (packed[at + i] as number);
  return value;
}

function invalid(what: string): FloeError {
  return new FloeError('bad_request', `the body is not valid zstd: ${what}`);
}

/** Collects the unpacked bytes and measures the work of decoding them. */
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

  /** Counts the work of a block before the block is decoded. `bytes` is the size of the window that the decoder moves. */
  addBlock(bytes: number): void {
    this.moved += bytes;
    this.work += bytes / MOVES_PER_WRITE + WORK_PER_BLOCK;
    if (this.moved > MOVED_AT_START + MOVED_PER_BYTE * this.bytes) throw invalid('its blocks hold too little');
  }

  /** Lets other work on the event loop run when more than {@link WORK_PER_TURN} was done since it last ran. */
  async yieldIfDue(): Promise<void> {
    if (this.work < WORK_PER_TURN) return;
    this.work = 0;
    await new Promise<void>((resolve) => setImmediate(resolve));
  }

  whole(): Buffer {
    return Buffer.concat(this.chunks, this.bytes);
  }
}
