import { FloeError } from '@floe-rl/core';

const BLOCK_BYTES = 512;
/**
 * Maximum number of bytes of a name or an extended header in a tar archive. A longer one makes the archive invalid, because no file system
 * allows such long names.
 */
const MAX_TEXT_BYTES = 1024 * 1024;
const KINDS: Readonly<Record<string, TarEntry['kind']>> = {
  '0': 'file',
  '\0': 'file',
  S: 'file',
  '7': 'file',
  '1': 'hard link',
  '2': 'link',
  '5': 'folder',
};

export type TarEntry = {
  readonly name: string;
  readonly kind: 'file' | 'folder' | 'link' | 'hard link' | 'other';
  /** Size of a file's content in bytes, including the holes of a sparse file; 0 for an entry that is not a file. */
  readonly bytes: number;
  /** Target of a link; `null` for an entry that is not a link. */
  readonly target: string | null;
};

/** Values from the extended headers of a tar archive. They replace the same fields in the header of the entry that follows. */
type Overrides = { name?: string; target?: string; bytes?: number };

/**
 * Yields the entries of a tar archive while it reads the archive from a stream, in bounded memory. Supports the GNU and POSIX formats with
 * long names and sparse files. The archive is not trusted: throws `corrupt_record` when it is invalid. The names are yielded unchanged.
 * Decision 92 in docs/decisions/data.md explains why `tar-stream` is not used.
 */
export async function* tarEntries(chunks: AsyncIterable<Buffer>): AsyncGenerator<TarEntry> {
  const input = new Blocks(chunks);
  let overrides: Overrides = {};
  for (;;) {
    const header = await input.next();
    // An archive ends with two empty blocks, but some programs write only one or none. No entry can follow an empty block, so the first empty
    // block ends the archive.
    if (header === null || header.every((byte) => byte === 0)) return;
    verifyChecksum(header);
    const size = numberAt(header, 124, 12);
    const type = String.fromCharCode(header[156] ?? 0);
    if (type === 'L' || type === 'K') {
      const text = untilNul(await input.text(size));
      overrides = type === 'L' ? { ...overrides, name: text } : { ...overrides, target: text };
    } else if (type === 'x' || type === 'g') {
      const fields = paxOverrides(await input.text(size));
      if (type === 'x') overrides = { ...overrides, ...fields };
    } else {
      if (type === 'S') await skipSparseMap(header, input);
      const entry = entryOf(header, type, overrides);
      overrides = {};
      yield entry;
      await input.skip(size);
    }
  }
}

function entryOf(header: Buffer, type: string, overrides: Overrides): TarEntry {
  const kind = KINDS[type] ?? 'other';
  const prefix = header.toString('latin1', 257, 263) === 'ustar\0' ? textAt(header, 345, 155) : '';
  const name = overrides.name ?? (prefix === '' ? '' : `${prefix}/`) + textAt(header, 0, 100);
  const size = type === 'S' ? numberAt(header, 483, 12) : numberAt(header, 124, 12);
  const target = kind === 'link' || kind === 'hard link' ? (overrides.target ?? textAt(header, 157, 100)) : null;
  return { name, kind, bytes: kind === 'file' ? (overrides.bytes ?? size) : 0, target };
}

/**
 * Skips the blocks that continue the map of a GNU sparse file. In the header and in each block, one byte states whether another block
 * follows.
 */
async function skipSparseMap(header: Buffer, input: Blocks): Promise<void> {
  let more = header[482] === 1;
  while (more) {
    const block = await input.next();
    if (block === null) throw notATar('it ends in the map of a sparse file');
    more = block[504] === 1;
  }
}

/**
 * Parses an extended header in the POSIX (pax) format. It consists of lines of the form `<length> <key>=<value>\n`, where `<length>` is the
 * length of the whole line in bytes. Returns the values that replace fields in the header of the next entry.
 */
function paxOverrides(text: Buffer): Overrides {
  const overrides: Overrides = {};
  for (let at = 0; at < text.length; ) {
    const space = text.indexOf(0x20, at);
    const length = Number(text.toString('latin1', at, Math.max(at, space)));
    if (space < 0 || !Number.isInteger(length) || length <= space - at || at + length > text.length)
      throw notATar('an extended header is cut off');
    const line = text.toString('utf8', space + 1, at + length - 1);
    const value = line.slice(line.indexOf('=') + 1);
    if (line.startsWith('path=') || line.startsWith('GNU.sparse.name=')) overrides.name = value;
    else if (line.startsWith('linkpath=')) overrides.target = value;
    else if (line.startsWith('GNU.sparse.realsize=') || line.startsWith('GNU.sparse.size='))
      overrides.bytes = Number(value);
    at += length;
  }
  return overrides;
}

function textAt(block: Buffer, offset: number, length: number): string {
  return untilNul(block.subarray(offset, offset + length));
}

function untilNul(bytes: Buffer): string {
  const end = bytes.indexOf(0);
  return bytes.toString('utf8', 0, end < 0 ? bytes.length : end);
}

/** Parses a number field of a tar header. The number is written in octal digits, or in binary when the first bit of the field is set. */
function numberAt(block: Buffer, offset: number, length: number): number {
  const first = block[offset] ?? 0;
  let value = 0;
  if (first === 0x80) for (const byte of block.subarray(offset + 1, offset + length)) value = value * 256 + byte;
  else value = Number.parseInt(textAt(block, offset, length).trim() || '0', 8);
  if (!Number.isSafeInteger(value) || value < 0) throw notATar('a size is not a number');
  return value;
}

function verifyChecksum(header: Buffer): void {
  let sum = 0;
  for (const [i, byte] of header.entries()) sum += i >= 148 && i < 156 ? 0x20 : byte;
  if (numberAt(header, 148, 8) !== sum) throw notATar('a checksum does not match');
}

function notATar(reason: string): FloeError {
  return new FloeError('corrupt_record', `this is not a tar archive: ${reason}`);
}

/** Reads a stream in blocks of 512 bytes, the block size of tar. */
class Blocks {
  private readonly chunks: AsyncIterator<Buffer>;
  private buffered: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Buffer>) {
    this.chunks = chunks[Symbol.asyncIterator]();
  }

  /** Reads the next block. Resolves to `null` at the end of the stream. */
  async next(): Promise<Buffer | null> {
    if (!(await this.buffer(BLOCK_BYTES))) {
      if (this.buffered.length > 0) throw notATar('its last block is cut off');
      return null;
    }
    return this.take(BLOCK_BYTES);
  }

  /** Reads `bytes` bytes of content and skips the padding up to the next block. */
  async text(bytes: number): Promise<Buffer> {
    if (bytes > MAX_TEXT_BYTES) throw notATar('a name is too long');
    if (!(await this.buffer(padded(bytes)))) throw notATar('a name is cut off');
    return this.take(padded(bytes)).subarray(0, bytes);
  }

  async skip(bytes: number): Promise<void> {
    for (let left = padded(bytes); left > 0; ) {
      if (this.buffered.length === 0 && !(await this.buffer(1))) throw notATar('a file is cut off');
      left -= this.take(Math.min(left, this.buffered.length)).length;
    }
  }

  private take(bytes: number): Buffer {
    const taken = this.buffered.subarray(0, bytes);
    this.buffered = this.buffered.subarray(bytes);
    return taken;
  }

  /** Reads from the stream until `bytes` bytes are buffered. Resolves to false when the stream ends earlier. */
  private async buffer(bytes: number): Promise<boolean> {
    const chunks = [this.buffered];
    let length = this.buffered.length;
    while (length < bytes) {
      const { value, done } = await this.chunks.next();
      if (done === true) break;
      chunks.push(value);
      length += value.length;
    }
    this.buffered = chunks.length === 1 ? this.buffered : Buffer.concat(chunks);
    return length >= bytes;
  }
}

function padded(bytes: number): number {
  return Math.ceil(bytes / BLOCK_BYTES) * BLOCK_BYTES;
}
