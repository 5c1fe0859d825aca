import { z } from 'zod';

/**
 * Ids that clients choose become parts of file names and URLs, so they are held to one safe alphabet:
 * 1 to 128 of letters, digits, `.`, `_`, `-`, starting with a letter or digit.
 */
export const idSchema = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/,
    'must be 1 to 128 of letters, digits, ".", "_", "-", starting with a letter or digit',
  );

/** ISO-8601 UTC time stamp. */
export const timestampSchema = z.iso.datetime();

/** Free-form JSON object that floe stores and returns but never reads. */
export const metadataSchema = z.record(z.string(), z.unknown());

/** What every store holds in an integer column. */
const MAX_COUNT = 2 ** 31 - 1;

/** A number of things, or of a try, from 0. */
export const countSchema = z.int().min(0).max(MAX_COUNT);
