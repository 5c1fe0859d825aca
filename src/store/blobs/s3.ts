import { createHash } from 'node:crypto';
import type { S3Client } from '@aws-sdk/client-s3';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { BlobRef } from '../rows.ts';
import type { BlobStore } from './blob-store.ts';
import { parseS3Location, type S3Location } from './s3-location.ts';

/** SHA-256 in hex, as in the directory store. */
const REF = /^[0-9a-f]{64}$/;

/** One request and the waits between its tries, all together: no caller waits longer for a bucket that does not answer. */
const OPERATION_TIMEOUT_MS = 60_000;
/** What moves bytes may take longer by these: a slow line, shared by many. */
const BYTES_PER_MS = 500;
/** The most that any blob has. */
const LARGEST_BYTES = 320 * 1024 * 1024;
const CONNECT_TIMEOUT_MS = 5_000;
/** A connection on which nothing moves for so long is given up. */
const IDLE_TIMEOUT_MS = 30_000;
const MAX_ATTEMPTS = 4;

/** The SDK takes a third of a second to load, so only those who use it do. */
type Sdk = typeof import('@aws-sdk/client-s3');

/**
 * Blobs as objects `<prefix><first two digits>/<sha256>`, the layout of the directory store. The bucket checks the
 * hash of what it is given before it acknowledges; what it gives is checked here. Credentials come from where all AWS
 * clients take them: environment, shared files, container or instance.
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
      // Hashes are given and checked here; other kinds are not understood by every server that speaks S3.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
    });
  }

  /**
   * `url` is `s3://bucket/prefix?endpoint=…&region=…&path_style=true`. Throws `setup_failed` when it is not, or the bucket
   * does not exist or may not be used, and `store_unavailable` when the bucket does not answer.
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
    // Written even when it is there: that costs no more than asking, and makes it young.
    const put = new this.sdk.PutObjectCommand({
      Bucket: this.location.bucket,
      Key: this.keyOf(ref),
      Body: bytes,
      ContentLength: bytes.length,
      ChecksumSHA256: hash.toString('base64'),
    });
    const write = this.attempt('write', (abortSignal) => this.client.send(put, { abortSignal }), bytes.length)
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
    const bytes = await this.attempt('read', read, LARGEST_BYTES);
    if (createHash('sha256').update(bytes).digest('hex') !== ref) {
      throw new FloeError('store_unavailable', `blob ${ref} is damaged: its bytes no longer match its name`, { ref });
    }
    return bytes;
  }

  async *olderThan(beforeMs: number): AsyncGenerator<string> {
    let next: string | undefined;
    do {
      const list = new this.sdk.ListObjectsV2Command({
        Bucket: this.location.bucket,
        Prefix: this.location.prefix,
        ContinuationToken: next,
      });
      const page = await this.attempt('list', (abortSignal) => this.client.send(list, { abortSignal }));
      for (const { Key: key = '', LastModified: modified } of page.Contents ?? []) {
        const ref = key.slice(-64);
        // The bucket may hold what is not ours.
        if (!REF.test(ref) || key !== this.keyOf(ref) || modified === undefined) continue;
        if (modified.getTime() < beforeMs) yield ref;
      }
      next = page.NextContinuationToken;
    } while (next !== undefined);
  }

  async remove(ref: string, beforeMs: number): Promise<void> {
    const object = { Bucket: this.location.bucket, Key: this.keyOf(ref) };
    const { HeadObjectCommand, DeleteObjectCommand } = this.sdk;
    await this.attempt('remove', async (abortSignal) => {
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
      await this.attempt('open', (abortSignal) => this.client.send(head, { abortSignal }));
    } catch (thrown) {
      if (!FloeError.is(thrown) || !isRefusal(thrown.cause)) throw thrown;
      throw new FloeError('setup_failed', thrown.message, thrown.details, thrown.cause);
    }
  }

  private keyOf(ref: string): string {
    if (!REF.test(ref)) throw new FloeError('internal', `${JSON.stringify(ref)} is not the name of a blob`);
    return `${this.location.prefix}${ref.slice(0, 2)}/${ref}`;
  }

  private async attempt<T>(what: string, work: (signal: AbortSignal) => Promise<T>, bytes = 0): Promise<T> {
    const timeout = new AbortController();
    const cancelTimer = this.clock.schedule(OPERATION_TIMEOUT_MS + bytes / BYTES_PER_MS, () => timeout.abort());
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
      cancelTimer();
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

/** The bucket is not there or not ours, or nobody has said who we are: no retry helps. */
function isRefusal(cause: unknown): boolean {
  const name = cause instanceof Error ? cause.name : '';
  const status = statusOf(cause) ?? 0;
  return (status >= 400 && status < 500 && status !== 429) || name === 'CredentialsProviderError';
}

function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  // Answers without a body have no message of their own.
  const status = statusOf(cause);
  return [cause.name, cause.message, status].filter((part) => part !== undefined && part !== '').join(', ');
}
