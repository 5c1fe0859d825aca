import { link, mkdir, readdir, readFile, rm, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { encodeFrame, openAppendFile, readFrames } from '@floe-rl/capture';
import { FloeError, messageOf, parseAs, parseJson } from '@floe-rl/core';
import { idSchema, type Lease, leaseSchema } from '@floe-rl/core/schema';
import { z } from 'zod';

/** Schema of the record of a started attempt. The record is written before the sandbox of the attempt is created. */
const attemptRecordSchema = z.object({
  node_id: idSchema,
  instance: idSchema.describe('id of the process that started the attempt'),
  owner_id: z
    .string()
    .describe('id of the state directory; with `instance`, it labels every process that was started for the attempt'),
  begun_ms: z.number().describe('start of the attempt, in Unix milliseconds'),
  lease: leaseSchema,
});
export type AttemptRecord = z.infer<typeof attemptRecordSchema>;

/** Identifies an attempt. The name of its record file is made of these three values. */
type AttemptKey = { readonly sessionId: string; readonly attempt: number; readonly epoch: number };

/**
 * Matches the name of a record file: session id, attempt number and lease epoch, separated by dots. The session id itself may contain dots.
 */
const FILE_NAME = /^(.+)\.(\d+)\.(\d+)\.rec$/;

/**
 * A directory with one record file for each attempt that has started and is not yet delivered. Only one live process uses the directory. A
 * file is on disk before the sandbox of its attempt is created, so that recovery finds every attempt that a crash interrupted.
 */
export class AttemptRecords {
  /** Paths of the record files that earlier processes left. Recovery delivers these attempts and removes the files. */
  readonly earlierFiles: readonly string[];
  private readonly dir: string;

  /**
   * Creates the directory if needed and lists the record files of earlier processes. Rejects with `store_unavailable` when the file system
   * fails.
   */
  static async open(dir: string): Promise<AttemptRecords> {
    try {
      await mkdir(dir, { recursive: true, mode: 0o700 });
      const names = (await readdir(dir)).filter((name) => FILE_NAME.test(name)).sort();
      return new AttemptRecords(
        dir,
        names.map((name) => join(dir, name)),
      );
    } catch (cause) {
      throw new FloeError('store_unavailable', `the attempt records in ${dir} cannot be read`, {}, cause);
    }
  }

  private constructor(dir: string, earlierFiles: readonly string[]) {
    this.dir = dir;
    this.earlierFiles = earlierFiles;
  }

  /**
   * Writes the record of an attempt and resolves when it is on disk. When this method rejects with `store_unavailable`, the caller must not
   * start a process for the attempt.
   */
  async begin(record: AttemptRecord): Promise<void> {
    const path = this.pathOf(keyOf(record.lease));
    try {
      const file = await openAppendFile(path);
      try {
        await file.append(encodeFrame(Buffer.from(JSON.stringify(record))));
      } finally {
        await file.close();
      }
    } catch (cause) {
      await rm(path, { force: true }).catch(() => {});
      const why = messageOf(cause);
      throw new FloeError('store_unavailable', `the start of the attempt cannot be recorded: ${why}`, {}, cause);
    }
  }

  /**
   * Removes the record of a delivered attempt. If a crash undoes the removal, recovery delivers the attempt a second time and the server
   * refuses the second delivery.
   */
  async end(lease: Lease): Promise<void> {
    await rm(this.pathOf(keyOf(lease)), { force: true });
  }

  private pathOf({ sessionId, attempt, epoch }: AttemptKey): string {
    return join(this.dir, `${sessionId}.${attempt}.${epoch}.rec`);
  }
}

function keyOf(lease: Lease): AttemptKey {
  return { sessionId: lease.session_id, attempt: lease.attempt, epoch: lease.epoch };
}

/** Returns the attempt that the file name of a record identifies. */
export function keyOfPath(path: string): AttemptKey {
  const [, sessionId = '', attempt, epoch] = FILE_NAME.exec(basename(path)) ?? [];
  return { sessionId, attempt: Number(attempt), epoch: Number(epoch) };
}

/** Reads a record file. Rejects with `corrupt_record`, `malformed_json` or `schema_violation` when the file is not a complete record. */
export async function readRecord(path: string): Promise<AttemptRecord> {
  const { frames, tornBytes, corrupt } = readFrames(await readFile(path));
  const [frame] = frames;
  if (frame === undefined || frames.length > 1 || tornBytes > 0 || corrupt.length > 0) {
    throw new FloeError('corrupt_record', `${path} is not a complete attempt record`, { path });
  }
  return parseAs(attemptRecordSchema, parseJson(frame), 'attempt record');
}

/**
 * Moves a damaged file to the directory `dir` and returns its new path. Appends a number when `dir` already contains a file of the same
 * name.
 */
export async function quarantine(path: string, dir: string): Promise<string> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  for (let count = 0; ; count++) {
    const target = join(dir, count === 0 ? basename(path) : `${basename(path)}.${count}`);
    try {
      await link(path, target);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') continue;
      throw error;
    }
    await unlink(path);
    return target;
  }
}
