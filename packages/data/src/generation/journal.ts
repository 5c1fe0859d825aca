import { type FileHandle, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { crc32 } from 'node:zlib';
import { FloeError, systemError } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';

/** Identifies one generation: a sample of a row, or the repetition of a sample that was empty. All numbers count from 0. */
export type SampleId = {
  /** Number of the row in the data set. */
  readonly row: number;
  readonly sample: number;
  /** 0 for the first generation of the sample, 1 for its repetition. */
  readonly retry: number;
};

/** One line of a journal. The first line of each journal is the `run` to which it belongs. */
export type JournalRecord =
  | { readonly kind: 'run'; readonly run: string; readonly shard: string }
  | ({ readonly kind: 'result'; readonly result: SessionResult } & SampleId)
  /** A row whose task the server refused, with the server's message. */
  | { readonly kind: 'refused'; readonly row: number; readonly message: string };

/** Place of a line in a journal, in bytes, without its newline. */
export type LineLocation = { readonly path: string; readonly offset: number; readonly length: number };

/** A line of a journal. `record` is `null` when the line fails its checksum. `number` counts from 1. */
export type JournalLine = {
  readonly record: JournalRecord | null;
  readonly number: number;
  readonly location: LineLocation;
};

const NEWLINE = 0x0a;
/** Number of bytes that are read from a journal at once. */
const CHUNK_BYTES = 1 << 20;

/** A line is `{"crc32":"89abcdef","record":…}`: the checksum covers the bytes of the record as they are written. */
const HEAD = /^\{"crc32":"([0-9a-f]{8})","record":/;
const HEAD_BYTES = '{"crc32":"00000000","record":'.length;

function encodeLine(record: JournalRecord): Buffer {
  const text = Buffer.from(JSON.stringify(record));
  return Buffer.concat([Buffer.from(`{"crc32":"${checksum(text)}","record":`), text, Buffer.from('}\n')]);
}

/** Returns the record of a line without its newline; `null` when the line is damaged. */
function decodeLine(line: Buffer): JournalRecord | null {
  const [, expected] = HEAD.exec(line.toString('latin1', 0, HEAD_BYTES)) ?? [];
  const text = line.subarray(HEAD_BYTES, -1);
  if (expected === undefined || expected !== checksum(text)) return null;
  return JSON.parse(text.toString('utf8')) as JournalRecord;
}

function checksum(bytes: Buffer): string {
  return crc32(bytes).toString(16).padStart(8, '0');
}

/**
 * Yields the lines of a journal in order. Bytes after the last newline are left out: a process that was killed, or that is still writing,
 * leaves an incomplete line. Throws `setup_failed` when the file cannot be read.
 */
export async function* readJournal(path: string): AsyncGenerator<JournalLine> {
  const file = await open(path, 'r').catch((thrown) => {
    throw systemError(thrown, { path, verb: 'read' }) ?? thrown;
  });
  try {
    yield* linesOf(file, path);
  } finally {
    await file.close();
  }
}

async function* linesOf(file: FileHandle, path: string): AsyncGenerator<JournalLine> {
  let pieces: Buffer[] = [];
  let start = 0;
  let position = 0;
  let number = 1;
  for (;;) {
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(CHUNK_BYTES), 0, CHUNK_BYTES, position);
    if (bytesRead === 0) return;
    const chunk = buffer.subarray(0, bytesRead);
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      const line = Buffer.concat([...pieces, chunk.subarray(from, end)]);
      yield { record: decodeLine(line), number, location: { path, offset: start, length: line.length } };
      pieces = [];
      start = position + end + 1;
      from = end + 1;
      number++;
    }
    pieces.push(chunk.subarray(from));
    position += bytesRead;
  }
}

/** Reads the result at a location that {@link readJournal} returned. Throws `corrupt_record` when the line has been damaged since. */
export async function readResult(location: LineLocation): Promise<SessionResult> {
  const file = await open(location.path, 'r');
  try {
    const { buffer, bytesRead } = await file.read(
      Buffer.allocUnsafe(location.length),
      0,
      location.length,
      location.offset,
    );
    const record = decodeLine(buffer.subarray(0, bytesRead));
    if (record?.kind === 'result') return record.result;
  } finally {
    await file.close();
  }
  throw new FloeError(
    'corrupt_record',
    `${location.path} is damaged at byte ${location.offset}; run the command again`,
    {
      ...location,
    },
  );
}

/**
 * The journal of one shard: a file of JSON lines that only one process at a time may append to. A record is on the disk when {@link append}
 * resolves. After `append` has rejected, the journal must not be used any more. If an incomplete line was left, it is removed when the journal
 * is opened the next time.
 */
export class Journal {
  private readonly path: string;
  private readonly file: FileHandle;
  private bytes: number;

  private constructor(path: string, file: FileHandle, bytes: number) {
    this.path = path;
    this.file = file;
    this.bytes = bytes;
  }

  /**
   * Opens a journal, or creates it with its first line, and removes an incomplete line at its end. `onLine` gets every other line. Throws
   * `setup_failed` when the file cannot be written, and `conflict` when it belongs to another run or shard.
   */
  static async open(
    path: string,
    header: Extract<JournalRecord, { kind: 'run' }>,
    onLine: (line: JournalLine) => void,
  ): Promise<Journal> {
    return onDisk(path, async () => {
      const file = await open(path, 'a+', 0o600);
      try {
        let end = 0;
        for await (const line of linesOf(file, path)) {
          if (line.number === 1) checkHeader(line, header);
          else onLine(line);
          end = line.location.offset + line.location.length + 1;
        }
        await file.truncate(end);
        await file.sync();
        await syncFolder(dirname(path));
        const journal = new Journal(path, file, end);
        if (end === 0) await journal.append(header);
        return journal;
      } catch (thrown) {
        await file.close();
        throw thrown;
      }
    });
  }

  async append(record: JournalRecord): Promise<LineLocation> {
    const line = encodeLine(record);
    return onDisk(this.path, async () => {
      await this.file.appendFile(line);
      await this.file.datasync();
      const location = { path: this.path, offset: this.bytes, length: line.length - 1 };
      this.bytes += line.length;
      return location;
    });
  }

  async close(): Promise<void> {
    await this.file.close();
  }
}

/** Throws `conflict` when the first line of a journal is not the expected one. */
export function checkHeader({ record, location }: JournalLine, { run, shard }: { run: string; shard: string }): void {
  if (record?.kind === 'run' && record.run === run && record.shard === shard) return;
  const owner = record?.kind === 'run' ? `run ${record.run}, shard ${record.shard}` : 'no run that can be read';
  throw new FloeError(
    'conflict',
    `${location.path} belongs to ${owner}, not to run ${run}, shard ${shard}; use another directory`,
    { path: location.path },
  );
}

/** Makes the entry of a file in its folder durable. */
export async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

async function onDisk<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    const remedy = 'repair this and run the same command to continue; the samples in the journal are kept';
    throw systemError(thrown, { path, verb: 'write to', remedy }) ?? thrown;
  }
}
