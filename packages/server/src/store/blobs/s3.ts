import { createHash } from 'node:crypto';
import type { S3Client } from '@aws-sdk/client-s3';
import { abortAfter, type Clock, FloeError, MIB } from '@floe-rl/core';
import { z } from 'zod';
import type { BlobRef } from '../rows.ts';
import { type BlobStore, intactBlob } from './blob-store.ts';

/** Matches the name of a blob: its SHA-256 in hex. The directory store uses the same names. */
const REF = /^[0-9a-f]{64}$/;

/**
 * Time limit in milliseconds of one operation including its retries, so that no caller waits longer for a bucket that does not respond. The
 * time to transfer a large blob is added to this limit.
 */
const OPERATION_TIMEOUT_MS = 60_000;
/**
 * Lowest assumed transfer rate, in bytes per millisecond: the rate of a slow line shared by many clients. The time limit of an operation grows
 * by the size of the blob divided by this rate.
 */
const MIN_BYTES_PER_MS = 500;
/**
 * Maximum size of a blob in bytes. The time limit of a read is computed from it, because the size of the blob is unknown before the read.
 */
const MAX_BLOB_BYTES = 320 * MIB;
const CONNECT_TIMEOUT_MS = 5_000;
/** Time in milliseconds without traffic after which a connection to the S3 server is closed. */
const IDLE_TIMEOUT_MS = 30_000;
const MAX_ATTEMPTS = 4;

/**
 * The AWS SDK takes a third of a second to load, so it is loaded when an S3 store is opened. This file imports only its type.
 */
type Sdk = typeof import('@aws-sdk/client-s3');

/**
 * Stores blobs as objects `<prefix><first two digits>/<sha256>`, the same layout as in the directory store. The bucket checks the hash of a
 * blob before it acknowledges a write, and this class checks the hash after a read. Credentials come from the usual sources of AWS clients:
 * environment, shared files, container or instance.
 */
export class S3BlobStore implements BlobStore {
  private readonly sdk: Sdk;
  private readonly client: S3Client;
  private readonly location: S3Location;
  private readonly clock: Clock;
  private readonly pending = new Map<string, Promise<BlobRef>>();

  private constructor(sdk: Sdk, location: S3Location, clock: Clock) {
    this.sdk = sdk;
    this.location = location;
    this.clock = clock;
    this.client = new sdk.S3Client({
      ...(location.endpoint === null ? {} : { endpoint: location.endpoint }),
      ...(location.region === null ? {} : { region: location.region }),
      forcePathStyle: location.pathStyle,
      maxAttempts: MAX_ATTEMPTS,
      requestHandler: {
        connectionTimeout: CONNECT_TIMEOUT_MS,
        socketTimeout: IDLE_TIMEOUT_MS,
      },
      // The SDK's default checksums are off, because not every S3-compatible server supports them. This class sends and checks SHA-256
      // itself.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
    });
  }

  /**
   * Opens a blob store from `s3://bucket/prefix?endpoint=…&region=…&path_style=true`. Throws `setup_failed` when `url` has another form,
   * the bucket does not exist or access is denied, and `store_unavailable` when the bucket does not respond.
   */
  static async open(url: string, clock: Clock): Promise<S3BlobStore> {
    const location = parseS3Location(url);
    const store = new S3BlobStore(await import('@aws-sdk/client-s3'), location, clock);
    try {
      await store.head();
      return store;
    } catch (thrown) {
      await store.close();
      throw thrown;
    }
  }

  async put(bytes: Buffer): Promise<BlobRef> {
    const hash = createHash('sha256').update(bytes).digest();
    const ref = hash.toString('hex');
    const running = this.pending.get(ref);
    if (running !== undefined) return running;
    // The object is written even if it exists. Checking for it would cost as much as writing, and writing restarts the blob's age.
    const put = new this.sdk.PutObjectCommand({
      Bucket: this.location.bucket,
      Key: this.keyOf(ref),
      Body: bytes,
      ContentLength: bytes.length,
      ChecksumSHA256: hash.toString('base64'),
    });
    const write = this.runOperation('write', (abortSignal) => this.client.send(put, { abortSignal }), bytes.length)
      .then(() => ({ ref, bytes: bytes.length }))
      .finally(() => this.pending.delete(ref));
    this.pending.set(ref, write);
    return write;
  }

  async get(ref: string): Promise<Buffer> {
    const get = new this.sdk.GetObjectCommand({ Bucket: this.location.bucket, Key: this.keyOf(ref) });
    const read = async (abortSignal: AbortSignal): Promise<Buffer> => {
      const { Body: body } = await this.client.send(get, { abortSignal });
      return Buffer.from((await body?.transformToByteArray()) ?? []);
    };
    const bytes = await this.runOperation('read', read, MAX_BLOB_BYTES).catch((thrown) => {
      if (FloeError.is(thrown) && thrown.cause instanceof this.sdk.NoSuchKey) return null;
      throw thrown;
    });
    return intactBlob(ref, bytes);
  }

  async *olderThan(beforeMs: number): AsyncGenerator<string> {
    let next: string | undefined;
    do {
      const list = new this.sdk.ListObjectsV2Command({
        Bucket: this.location.bucket,
        Prefix: this.location.prefix,
        ContinuationToken: next,
      });
      const page = await this.runOperation('list', (abortSignal) => this.client.send(list, { abortSignal }));
      for (const { Key: key = '', LastModified: modified } of page.Contents ?? []) {
        const ref = key.slice(-64);
        // Skips objects that are not named like a blob, because the bucket may contain objects of other programs.
        if (!REF.test(ref) || key !== this.keyOf(ref) || modified === undefined) continue;
        if (modified.getTime() < beforeMs) yield ref;
      }
      next = page.NextContinuationToken;
    } while (next !== undefined);
  }

  async remove(ref: string, beforeMs: number): Promise<void> {
    const object = { Bucket: this.location.bucket, Key: this.keyOf(ref) };
    const { HeadObjectCommand, DeleteObjectCommand } = this.sdk;
    await this.runOperation('remove', async (abortSignal) => {
      const { LastModified: modified } = await this.client.send(new HeadObjectCommand(object), { abortSignal });
      if (modified === undefined || modified.getTime() >= beforeMs) return;
      await this.client.send(new DeleteObjectCommand(object), { abortSignal });
    }).catch((thrown) => {
      if (!isMissing(thrown)) throw thrown;
    });
  }

  async close(): Promise<void> {
    await Promise.allSettled(this.pending.values());
    this.client.destroy();
  }

  private async head(): Promise<void> {
    const head = new this.sdk.HeadBucketCommand({ Bucket: this.location.bucket });
    try {
      await this.runOperation('open', (abortSignal) => this.client.send(head, { abortSignal }));
    } catch (thrown) {
      if (!FloeError.is(thrown) || !isRefusal(thrown.cause)) throw thrown;
      throw new FloeError('setup_failed', thrown.message, thrown.details, thrown.cause);
    }
  }

  private keyOf(ref: string): string {
    if (!REF.test(ref)) throw new FloeError('internal', `${JSON.stringify(ref)} is not the name of a blob`);
    return `${this.location.prefix}${ref.slice(0, 2)}/${ref}`;
  }

  /** Runs `work` with the time limit of an operation that transfers `bytes` bytes, and converts its failures to `store_unavailable`. */
  private async runOperation<T>(what: string, work: (signal: AbortSignal) => Promise<T>, bytes = 0): Promise<T> {
    const timeout = abortAfter(this.clock, OPERATION_TIMEOUT_MS + bytes / MIN_BYTES_PER_MS, () => undefined);
    try {
      return await work(timeout.signal);
    } catch (cause) {
      const { bucket } = this.location;
      throw new FloeError(
        'store_unavailable',
        `cannot ${what} in the bucket ${bucket}: ${reasonOf(cause)}`,
        { bucket },
        cause,
      );
    } finally {
      timeout.release();
    }
  }
}

function statusOf(cause: unknown): number | undefined {
  if (typeof cause !== 'object' || cause === null || !('$metadata' in cause)) return undefined;
  return (cause.$metadata as { httpStatusCode?: number }).httpStatusCode;
}

function isMissing(thrown: unknown): boolean {
  return FloeError.is(thrown) && statusOf(thrown.cause) === 404;
}

/** Whether the request failed because of the bucket, the permissions or the credentials. A retry cannot help then. */
function isRefusal(cause: unknown): boolean {
  const name = cause instanceof Error ? cause.name : '';
  const status = statusOf(cause) ?? 0;
  return (status >= 400 && status < 500 && status !== 429) || name === 'CredentialsProviderError';
}

function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  // A response without a body has no error message, so its HTTP status is added.
  const status = statusOf(cause);
  return [cause.name, cause.message, status].filter((part) => part !== undefined && part !== '').join(', ');
}

/** The parts of a parsed `s3://` URL that locate the blobs. */
export type S3Location = {
  readonly bucket: string;
  /** Start of the key of every blob's object: an empty string, or a text that ends with a slash. */
  readonly prefix: string;
  /** URL of an S3-compatible server; `null` for AWS itself. */
  readonly endpoint: string | null;
  /** The bucket's region; `null` when the environment or the shared AWS configuration determines it. */
  readonly region: string | null;
  /**
   * Whether request URLs contain the bucket's name in the path instead of the host name. Most S3-compatible servers other than AWS require
   * this.
   */
  readonly pathStyle: boolean;
};

const querySchema = z.strictObject({
  endpoint: z.url({ protocol: /^https?$/ }).optional(),
  region: z.string().min(1).optional(),
  path_style: z.enum(['true', 'false']).optional(),
});

/**
 * Parses an S3 location `s3://bucket/prefix?endpoint=…&region=…&path_style=true`. Throws `setup_failed` with the reason when the text has
 * another form.
 */
export function parseS3Location(text: string): S3Location {
  const wrong = (why: string): FloeError =>
    new FloeError(
      'setup_failed',
      `blobs must be given as s3://bucket/prefix?endpoint=…&region=…&path_style=true: ${why}`,
    );
  if (!URL.canParse(text)) throw wrong('this is not a URL');
  const url = new URL(text);
  if (url.protocol !== 's3:') throw wrong('the URL has another scheme');
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
