import { type FileHandle, open } from 'node:fs/promises';
import { crc32, inflateRawSync } from 'node:zlib';
import { FloeError, MIB } from '@floe-rl/core';
import { decompress } from 'fzstd';

/** Records and fields of ZIP files (APPNOTE.TXT of PKWARE, version 6.3.10). */
const END_RECORD = 0x06054b50;
const END_BYTES = 22;
const END64_LOCATOR = 0x07064b50;
const END64_LOCATOR_BYTES = 20;
const END64_RECORD = 0x06064b50;
const ENTRY_RECORD = 0x02014b50;
const ENTRY_BYTES = 46;
const LOCAL_BYTES = 30;
const ZIP64_FIELD = 1;
const MAX_UINT16 = 0xffff;
const MAX_UINT32 = 0xffffffff;
/** The longest comment after the end record. */
const MAX_COMMENT = 65_535;
/** Maximum size of an unpacked entry. An entry that was made to unpack to a huge size is refused. */
const MAX_ENTRY_BYTES = 1024 * MIB;

type ZipEntry = {
  readonly name: string;
  readonly method: number;
  readonly crc: number;
  readonly packedBytes: number;
  readonly bytes: number;
  readonly offset: number;
};

/**
 * Reads entries of a ZIP file that are stored, deflated or compressed with Zstandard. The file is not trusted.
 * Decision 92 in docs/decisions/data.md explains why no library is used.
 */
export class ZipFile {
  readonly entries: ReadonlyMap<string, ZipEntry>;
  private readonly path: string;
  private readonly file: FileHandle;

  private constructor(path: string, file: FileHandle, entries: ReadonlyMap<string, ZipEntry>) {
    this.path = path;
    this.file = file;
    this.entries = entries;
  }

  /** Opens a file. Throws `schema_violation` when it is not a complete ZIP file. */
  static async open(path: string): Promise<ZipFile> {
    const file = await open(path);
    try {
      return new ZipFile(path, file, await readEntries(path, file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  close(): Promise<void> {
    return this.file.close();
  }

  /** Returns the content of an entry. Throws `schema_violation` with the entry's name when the content is damaged. */
  async read(entry: ZipEntry): Promise<Buffer> {
    const { name, method, offset, packedBytes, bytes, crc } = entry;
    if (bytes > MAX_ENTRY_BYTES) throw broken(this.path, `${name} has more than ${MAX_ENTRY_BYTES / MIB} MiB`);
    const head = await readAt(this.path, this.file, offset, LOCAL_BYTES);
    const start = offset + LOCAL_BYTES + head.readUInt16LE(26) + head.readUInt16LE(28);
    const packed = await readAt(this.path, this.file, start, packedBytes);
    let content: Buffer;
    try {
      content = unpack(method, packed, bytes);
    } catch (cause) {
      throw broken(this.path, `${name} cannot be unpacked: ${(cause as Error).message}`);
    }
    if (content.length !== bytes || crc32(content) !== crc) throw broken(this.path, `${name} is damaged`);
    return content;
  }
}

function unpack(method: number, packed: Buffer, bytes: number): Buffer {
  if (method === 0) return packed;
  if (method === 8) return inflateRawSync(packed, { maxOutputLength: Math.max(1, bytes) });
  if (method === 93) return Buffer.from(decompress(packed, new Uint8Array(bytes)));
  throw new Error(`the compression method ${method} is not supported`);
}

async function readEntries(path: string, file: FileHandle): Promise<Map<string, ZipEntry>> {
  const { size } = await file.stat();
  const tailBytes = Math.min(size, END_BYTES + MAX_COMMENT);
  const tail = await readAt(path, file, size - tailBytes, tailBytes);
  let at = tail.length - END_BYTES;
  while (at >= 0 && tail.readUInt32LE(at) !== END_RECORD) at--;
  if (at < 0) throw broken(path, 'is no complete ZIP file: the list of its entries is missing');
  let [bytes, offset] = [tail.readUInt32LE(at + 12), tail.readUInt32LE(at + 16)];
  const locatorAt = at - END64_LOCATOR_BYTES;
  if (locatorAt >= 0 && tail.readUInt32LE(locatorAt) === END64_LOCATOR) {
    const record = await readAt(path, file, Number(tail.readBigUInt64LE(locatorAt + 8)), 56);
    if (record.readUInt32LE(0) !== END64_RECORD) throw broken(path, 'has a damaged list of entries');
    [bytes, offset] = [Number(record.readBigUInt64LE(40)), Number(record.readBigUInt64LE(48))];
  }
  const list = await readAt(path, file, offset, bytes);
  const entries = new Map<string, ZipEntry>();
  for (let next = 0; next + ENTRY_BYTES <= list.length; ) {
    if (list.readUInt32LE(next) !== ENTRY_RECORD) throw broken(path, 'has a damaged list of entries');
    const [nameBytes, extraBytes] = [list.readUInt16LE(next + 28), list.readUInt16LE(next + 30)];
    const nameEnd = next + ENTRY_BYTES + nameBytes;
    const name = list.toString('utf8', next + ENTRY_BYTES, nameEnd);
    entries.set(name, entryOf(name, list.subarray(next, nameEnd), list.subarray(nameEnd, nameEnd + extraBytes)));
    next = nameEnd + extraBytes + list.readUInt16LE(next + 32);
  }
  return entries;
}

/** Returns an entry. Sizes that do not fit into 32 bits are in the extra field of ZIP64, in this order. */
function entryOf(name: string, head: Buffer, extra: Buffer): ZipEntry {
  const sizes = [head.readUInt32LE(24), head.readUInt32LE(20), head.readUInt32LE(42)];
  let wide = Buffer.alloc(0);
  for (let at = 0; at + 4 <= extra.length; at += 4 + extra.readUInt16LE(at + 2)) {
    if (extra.readUInt16LE(at) === ZIP64_FIELD)
      wide = Buffer.from(extra.subarray(at + 4, at + 4 + extra.readUInt16LE(at + 2)));
  }
  let used = 0;
  const [bytes = 0, packedBytes = 0, offset = 0] = sizes.map((size) => {
    if (size !== MAX_UINT32 || used + 8 > wide.length) return size;
    used += 8;
    return Number(wide.readBigUInt64LE(used - 8));
  });
  return { name, method: head.readUInt16LE(10) & MAX_UINT16, crc: head.readUInt32LE(16), packedBytes, bytes, offset };
}

async function readAt(path: string, file: FileHandle, position: number, length: number): Promise<Buffer> {
  if (length > MAX_ENTRY_BYTES) throw broken(path, 'has a damaged list of entries');
  // Node 24 throws a RangeError for a position that no file can have.
  if (!Number.isSafeInteger(position)) throw broken(path, 'ends too early');
  const bytes = Buffer.alloc(length);
  const { bytesRead } = await file.read(bytes, 0, length, position);
  if (bytesRead < length) throw broken(path, 'ends too early');
  return bytes;
}

function broken(path: string, problem: string): FloeError {
  return new FloeError('schema_violation', `${path}: ${problem}`, { where: path });
}
