import { link, mkdir, readdir, readFile, rm, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs, parseJson } from '../../core/parse.ts';
import { encodeFrame, openAppendFile, readFrames } from '../../proxy/journal/append-file.ts';
import { idSchema, type Lease, leaseSchema } from '../../schema/index.ts';

/** What is known of an attempt before anything of it exists. */
const attemptRecordSchema = z.object({
  node_id: idSchema,
  instance: idSchema.describe('of the process that began it'),
  owner_id: z.string().describe('with the instance, the label of everything that was started for it'),
  begun_ms: z.number().describe('Unix time'),
  lease: leaseSchema,
});
export type AttemptRecord = z.infer<typeof attemptRecordSchema>;

/** Names one attempt in records and journal. */
export type AttemptKey = { readonly sessionId: string; readonly attempt: number; readonly epoch: number };

/** Ids hold dots, so the numbers are what stands last. */
const NAME = /^(.+)\.(\d+)\.(\d+)\.rec$/;

/**
 * One file for each attempt that has begun here and is not done with, in a directory of one live process. It is durable before
 * the attempt's sandbox is created, so that whatever a crash leaves can be told from what was finished.
 */
export class AttemptRecords {
  /** Files of earlier processes. They stay until {@link remove}. */
  readonly leftovers: readonly string[];
  private readonly dir: string;

  /** Rejects with `store_unavailable`. */
  static async open(dir: string): Promise<AttemptRecords> {
    try {
      await mkdir(dir, { recursive: true, mode: 0o700 });
      const names = (await readdir(dir)).filter((name) => NAME.test(name)).sort();
      return new AttemptRecords(
        dir,
        names.map((name) => join(dir, name)),
      );
    } catch (cause) {
      throw new FloeError('store_unavailable', `the attempt records in ${dir} cannot be read`, {}, cause);
    }
  }

  private constructor(dir: string, leftovers: readonly string[]) {
    this.dir = dir;
    this.leftovers = leftovers;
  }

  /** Resolves when the record is on the disk. Rejects with `store_unavailable`: then nothing may be created for it. */
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
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new FloeError('store_unavailable', `the attempt cannot be recorded: ${why}`, {}, cause);
    }
  }

  /** The attempt is done with. A removal that a crash undoes costs a delivery that the server refuses. */
  async end(lease: Lease): Promise<void> {
    await rm(this.pathOf(keyOf(lease)), { force: true });
  }

  private pathOf({ sessionId, attempt, epoch }: AttemptKey): string {
    return join(this.dir, `${sessionId}.${attempt}.${epoch}.rec`);
  }
}

export function keyOf(lease: Lease): AttemptKey {
  return { sessionId: lease.session_id, attempt: lease.attempt, epoch: lease.epoch };
}

/** Which attempt a record's file is of. */
export function keyOfPath(path: string): AttemptKey {
  const [, sessionId = '', attempt, epoch] = NAME.exec(basename(path)) ?? [];
  return { sessionId, attempt: Number(attempt), epoch: Number(epoch) };
}

/** Rejects with `corrupt_record`, `malformed_json` or `schema_violation` when the file is not a whole record. */
export async function readRecord(path: string): Promise<AttemptRecord> {
  const { frames, tornBytes, corrupt } = readFrames(await readFile(path));
  const [frame] = frames;
  if (frame === undefined || frames.length > 1 || tornBytes > 0 || corrupt.length > 0) {
    throw new FloeError('corrupt_record', `${path} is not a whole attempt record`, { path });
  }
  return parseAs(attemptRecordSchema, parseJson(frame), 'attempt record');
}

/** Puts a damaged file out of the way, beside what lies there under its name already. */
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
