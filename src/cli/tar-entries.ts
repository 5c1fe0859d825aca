import { FloeError } from '../core/errors.ts';

const BLOCK_BYTES = 512;
/** A longer name or comment than any file system allows is no archive that floe made. */
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
  /** Of a file's content, holes included; else 0. */
  readonly bytes: number;
  /** What a link leads to. */
  readonly target: string | null;
};

/** What the entries in front of an entry say of it. */
type Notes = { name?: string; target?: string; bytes?: number };

/**
 * The entries of a tar archive, read as it comes, in bounded memory: GNU and POSIX forms, long names and sparse files. The
 * archive is a stranger's: throws `corrupt_record` for what is none. Names are as they stand there, whatever they contain.
 */
export async function* tarEntries(chunks: AsyncIterable<Buffer>): AsyncGenerator<TarEntry> {
  const input = new Blocks(chunks);
  let notes: Notes = {};
  for (;;) {
    const header = await input.next();
    // Two empty blocks end an archive; one is enough to know. Some programs leave them out.
    if (header === null || header.every((byte) => byte === 0)) return;
    checkSum(header);
    const size = numberAt(header, 124, 12);
    const type = String.fromCharCode(header[156] ?? 0);
    if (type === 'L' || type === 'K') {
      const said = untilNul(await input.text(size));
      notes = type === 'L' ? { ...notes, name: said } : { ...notes, target: said };
    } else if (type === 'x' || type === 'g') {
      const said = paxNotes(await input.text(size));
      if (type === 'x') notes = { ...notes, ...said };
    } else {
      if (type === 'S') await skipSparseMap(header, input);
      const entry = entryOf(header, type, notes);
      notes = {};
      yield entry;
      await input.skip(size);
    }
  }
}

function entryOf(header: Buffer, type: string, notes: Notes): TarEntry {
  const kind = KINDS[type] ?? 'other';
  const prefix = header.toString('latin1', 257, 263) === 'ustar\0' ? textAt(header, 345, 155) : '';
  const name = notes.name ?? (prefix === '' ? '' : `${prefix}/`) + textAt(header, 0, 100);
  const size = type === 'S' ? numberAt(header, 483, 12) : numberAt(header, 124, 12);
  const target = kind === 'link' || kind === 'hard link' ? (notes.target ?? textAt(header, 157, 100)) : null;
  return { name, kind, bytes: kind === 'file' ? (notes.bytes ?? size) : 0, target };
}

/** The map of a GNU sparse file goes on in blocks of its own, each with a mark that another follows. */
async function skipSparseMap(header: Buffer, input: Blocks): Promise<void> {
  let more = header[482] === 1;
  while (more) {
    const block = await input.next();
    if (block === null) throw notATar('it ends within the map of a sparse file');
    more = block[504] === 1;
  }
}

/** Lines of `<length> <key>=<value>\n`; the length counts the whole line. */
function paxNotes(text: Buffer): Notes {
  const notes: Notes = {};
  for (let at = 0; at < text.length; ) {
    const space = text.indexOf(0x20, at);
    const length = Number(text.toString('latin1', at, Math.max(at, space)));
    if (space < 0 || !Number.isInteger(length) || length <= space - at || at + length > text.length)
      throw notATar('a note is cut off');
    const line = text.toString('utf8', space + 1, at + length - 1);
    const value = line.slice(line.indexOf('=') + 1);
    if (line.startsWith('path=') || line.startsWith('GNU.sparse.name=')) notes.name = value;
    else if (line.startsWith('linkpath=')) notes.target = value;
    else if (line.startsWith('GNU.sparse.realsize=') || line.startsWith('GNU.sparse.size='))
      notes.bytes = Number(value);
    at += length;
  }
  return notes;
}

function textAt(block: Buffer, offset: number, length: number): string {
  return untilNul(block.subarray(offset, offset + length));
}

function untilNul(bytes: Buffer): string {
  const end = bytes.indexOf(0);
  return bytes.toString('utf8', 0, end < 0 ? bytes.length : end);
}

/** Octal digits, or, with the first bit set, a binary number. */
function numberAt(block: Buffer, offset: number, length: number): number {
  const first = block[offset] ?? 0;
  let value = 0;
  if (first === 0x80) for (const byte of block.subarray(offset + 1, offset + length)) value = value * 256 + byte;
  else value = Number.parseInt(textAt(block, offset, length).trim() || '0', 8);
  if (!Number.isSafeInteger(value) || value < 0) throw notATar('a size is no number');
  return value;
}

function checkSum(header: Buffer): void {
  let sum = 0;
  for (const [i, byte] of header.entries()) sum += i >= 148 && i < 156 ? 0x20 : byte;
  if (numberAt(header, 148, 8) !== sum) throw notATar('a checksum does not match');
}

function notATar(why: string): FloeError {
  return new FloeError('corrupt_record', `this is not a tar archive: ${why}`);
}

/** A stream cut into blocks. */
class Blocks {
  private readonly chunks: AsyncIterator<Buffer>;
  private rest: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Buffer>) {
    this.chunks = chunks[Symbol.asyncIterator]();
  }

  /** null at the end. */
  async next(): Promise<Buffer | null> {
    if (!(await this.hold(BLOCK_BYTES))) {
      if (this.rest.length > 0) throw notATar('its last block is cut off');
      return null;
    }
    return this.take(BLOCK_BYTES);
  }

  /** Content of that length, with the padding behind it taken off the stream. */
  async text(bytes: number): Promise<Buffer> {
    if (bytes > MAX_TEXT_BYTES) throw notATar('a name is too long');
    if (!(await this.hold(padded(bytes)))) throw notATar('a name is cut off');
    return this.take(padded(bytes)).subarray(0, bytes);
  }

  async skip(bytes: number): Promise<void> {
    for (let left = padded(bytes); left > 0; ) {
      if (this.rest.length === 0 && !(await this.hold(1))) throw notATar('a file is cut off');
      left -= this.take(Math.min(left, this.rest.length)).length;
    }
  }

  private take(bytes: number): Buffer {
    const taken = this.rest.subarray(0, bytes);
    this.rest = this.rest.subarray(bytes);
    return taken;
  }

  private async hold(bytes: number): Promise<boolean> {
    const held = [this.rest];
    let length = this.rest.length;
    while (length < bytes) {
      const { value, done } = await this.chunks.next();
      if (done === true) break;
      held.push(value);
      length += value.length;
    }
    this.rest = held.length === 1 ? this.rest : Buffer.concat(held);
    return length >= bytes;
  }
}

function padded(bytes: number): number {
  return Math.ceil(bytes / BLOCK_BYTES) * BLOCK_BYTES;
}
