import { z } from 'zod';

/**
 * Id that a client may choose: 1 to 128 letters, digits, `.`, `_` or `-`, starting with a letter or digit. Only these safe characters are
 * allowed, because ids become parts of file names and URLs.
 */
export const idSchema = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/,
    'must be 1 to 128 of letters, digits, ".", "_", "-", starting with a letter or digit',
  );

/** An ISO 8601 timestamp in UTC. */
export const timestampSchema = z.iso.datetime();

/** A JSON object that floe stores and returns without interpreting it. */
export const metadataSchema = z.record(z.string(), z.unknown());

/** Largest value of an integer column in every supported database. */
const MAX_COUNT = 2 ** 31 - 1;

/** A count or an ordinal number, starting at 0. */
export const countSchema = z.int().min(0).max(MAX_COUNT);
