import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { FloeError } from '../core/errors.ts';
import type { StoreLocation } from '../store/index.ts';

export type StorageOptions = { database?: string; databaseFile?: string; blobs?: string };

/** Where a server keeps its rows and blobs when that is not its own directory. */
export type Storage = Pick<StoreLocation, 'database' | 'blobs'>;

export const EMBEDDED: Storage = { database: null, blobs: null };

/** Adds the options that say where a server keeps its data. */
export function withStorage(command: Command): Command {
  return command
    .option(
      '--database <url>',
      'PostgreSQL, without the password (default: $FLOE_DATABASE_URL, else an embedded database)',
    )
    .option('--database-file <file>', 'a file with the URL, password and all')
    .option(
      '--blobs <place>',
      'a directory, or s3://bucket/prefix?endpoint=… (default: $FLOE_BLOBS, else in the data)',
    );
}

/** Options first, then the environment. Throws `bad_request` for a password in the arguments, where everyone on the machine reads it. */
export function storageOf(options: StorageOptions): Storage {
  if (options.database !== undefined && options.databaseFile !== undefined) {
    throw new FloeError('bad_request', '--database and --database-file name one thing: give one of them');
  }
  if (options.database !== undefined && hasPassword(options.database)) {
    throw new FloeError(
      'bad_request',
      '--database: everyone on this machine can read a password in the arguments; use --database-file, $FLOE_DATABASE_URL or $PGPASSWORD',
    );
  }
  const file = options.databaseFile === undefined ? undefined : readUrl(options.databaseFile);
  return {
    database: options.database ?? file ?? nonEmpty(process.env.FLOE_DATABASE_URL),
    blobs: options.blobs ?? nonEmpty(process.env.FLOE_BLOBS),
  };
}

function hasPassword(url: string): boolean {
  if (!URL.canParse(url)) return false;
  const { password, searchParams } = new URL(url);
  return password !== '' || searchParams.has('password');
}

function readUrl(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch (cause) {
    throw new FloeError('bad_request', `--database-file: ${path} cannot be read`, { path }, cause);
  }
}

function nonEmpty(text: string | undefined): string | null {
  return text === undefined || text === '' ? null : text;
}
