import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';

export type S3Location = {
  readonly bucket: string;
  /** Empty, or ends with a slash. */
  readonly prefix: string;
  /** Null: that of AWS. */
  readonly endpoint: string | null;
  /** Null: from the environment or the shared configuration. */
  readonly region: string | null;
  /** The bucket in the path instead of the host name, as most servers beside AWS want it. */
  readonly pathStyle: boolean;
};

const querySchema = z.strictObject({
  endpoint: z.url({ protocol: /^https?$/ }).optional(),
  region: z.string().min(1).optional(),
  path_style: z.enum(['true', 'false']).optional(),
});

/** Reads `s3://bucket/prefix?endpoint=…&region=…&path_style=true`. Throws `setup_failed`, naming what is wrong. */
export function parseS3Location(text: string): S3Location {
  const wrong = (why: string): FloeError =>
    new FloeError('setup_failed', `blobs are given as s3://bucket/prefix?endpoint=…&region=…&path_style=true: ${why}`);
  if (!URL.canParse(text)) throw wrong('this is no URL');
  const url = new URL(text);
  if (url.protocol !== 's3:') throw wrong('the URL is of another kind');
  if (url.username !== '' || url.password !== '') {
    throw wrong('credentials are taken from the environment or the shared AWS files, never from the URL');
  }
  if (url.hostname === '') throw wrong('the bucket is missing');
  const query = querySchema.safeParse(Object.fromEntries(url.searchParams));
  if (!query.success) throw wrong(z.prettifyError(query.error));
  const path = decodeURIComponent(url.pathname).replace(/^\/+|\/+$/g, '');
  return {
    bucket: url.hostname,
    prefix: path === '' ? '' : `${path}/`,
    endpoint: query.data.endpoint ?? null,
    region: query.data.region ?? null,
    pathStyle: query.data.path_style === 'true',
  };
}
