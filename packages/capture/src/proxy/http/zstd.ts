import { FloeError, GatheredBytes, MIB } from '@floe-rl/core';
import { Decompress } from 'fzstd';

/**
 * Maximum window size in bytes that a zstd frame may declare. Every decoder should support windows of this size (RFC 8878, 3.1.1.1.2), and
 * no common encoder setting exceeds it.
 */
const MAX_WINDOW_BYTES = 8 * MIB;

/**
 * Maximum number of bytes that the decoder may move in memory for one body before it has written any output. The decoder moves its whole
 * window with every block. A hostile body of empty blocks with a large window would therefore take much time without any output.
 */
const MOVED_AT_START = 256 * MIB;
/**
 * Number of further bytes that the decoder may move in memory, in addition to {@link MOVED_AT_START}, for each byte of output. Ordinary bodies
 * stay below this limit, because each of their blocks decodes to some 100 kB of output.
 */
const MOVED_PER_BYTE = 512;

/** Amount of decoding work between two yields to the event loop, measured in bytes of written output. This work takes some milliseconds. */
const WORK_PER_TURN = MIB;

/** Number of window bytes that the decoder moves in the time that it needs to write one byte of output. */
const MOVES_PER_WRITE = 16;

/** Cost of decoding a block without output, as the number of output bytes that the decoder could write in the same time. */
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
 * Decompresses zstd frames block by block, so that the event loop can run between two blocks. The loop around `fzstd` is hand-written
 * because Node 20's zlib has no zstd, and one call of `fzstd` for a whole body would block the event loop. Rejects with `body_too_large`
 * above `maxBytes`, and with `bad_request` for invalid data or data whose decoding takes much more work than its amount of output
 * justifies.
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
    // Every frame is charged the cost of an empty block, because skippable frames take time although they have no output.
    output.addBlock(0);
    await output.yieldIfDue();
  }
  return output.whole();
}

/** Decompresses the frame at position `start` and returns the position after the frame. */
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
    // A block of type 1 (run-length) has one byte of content, which the decoder repeats. For all other types, the header states the number
    // of bytes.
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

/**
 * Reads an unsigned little-endian integer of `bytes` bytes. A size above 2^53 loses precision, but a body of such a size is refused anyway.
 */
function uint(packed: Buffer, at: number, bytes: number): number {
  if (at + bytes > packed.length) throw invalid('it is cut off');
  let value = 0;
  for (let i = bytes - 1; i >= 0; i--) value = value * 256 + (packed[at + i] as number);
  return value;
}

function invalid(what: string): FloeError {
  return new FloeError('bad_request', `the body is not valid zstd: ${what}`);
}

/** Collects the decompressed bytes and measures the work of decoding them. */
class Output {
  bytes = 0;
  private work = 0;
  private moved = 0;
  private readonly maxBytes: number;
  private readonly gathered: GatheredBytes;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
    this.gathered = new GatheredBytes(maxBytes);
  }

  add(data: Uint8Array): void {
    this.bytes += data.length;
    this.work += data.length;
    if (this.bytes > this.maxBytes) {
      throw new FloeError('body_too_large', `the body exceeds ${this.maxBytes} bytes when it is unpacked`);
    }
    this.gathered.add(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  }

  /**
   * Counts the work for a block before it is decoded. For each block, the decoder copies its window within memory; `bytes` is the size of the
   * window. Throws `bad_request` when the decoder has copied too many bytes for the output so far.
   */
  addBlock(bytes: number): void {
    this.moved += bytes;
    this.work += bytes / MOVES_PER_WRITE + WORK_PER_BLOCK;
    if (this.moved > MOVED_AT_START + MOVED_PER_BYTE * this.bytes) throw invalid('its blocks hold too little');
  }

  /** Yields to the event loop when more than {@link WORK_PER_TURN} of decoding work was done since the last yield. */
  async yieldIfDue(): Promise<void> {
    if (this.work < WORK_PER_TURN) return;
    this.work = 0;
    await new Promise<void>((resolve) => setImmediate(resolve));
  }

  whole(): Buffer {
    return this.gathered.take();
  }
}
