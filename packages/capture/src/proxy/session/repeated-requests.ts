import { hash, webcrypto } from 'node:crypto';
import { KIB } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';
import { headerOf } from '../../dialects/call-kinds/harness-rules.ts';
import { threadKeyOf } from '../../dialects/call-kinds/label.ts';
import type { CallContext, Dialect } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { Call } from './call.ts';

/**
 * Headers with a name that a client gives to one logical request and repeats with every retry of it. The first is an Internet-Draft of the
 * IETF, and the second is its older spelling.
 */
const IDEMPOTENCY_HEADERS = ['idempotency-key', 'x-idempotency-key'] as const;

/**
 * Header in which clients count the retries of a request, from 0. All SDKs that Stainless generates send it, such as the SDKs of OpenAI and
 * Anthropic. The SDKs of Google, Mistral and Cohere, and Vercel's AI SDK, send nothing that identifies a retry.
 */
const RETRY_COUNT_HEADER = 'x-stainless-retry-count';
const POSITIVE_COUNT = /^0*[1-9][0-9]*$/;

/** Maximum number of requests of a session whose failures are remembered. A harness has a handful of requests that it may retry. */
const MAX_FAILED_REQUESTS = 1_024;

/** Minimum size in bytes of a body whose digest another thread computes: 256 KiB take the event loop about a millisecond. */
const MIN_THREADED_BYTES = 256 * KIB;

/**
 * Maximum number of characters of an identity that is stored unchanged. A longer identity, for example with long headers, is replaced by its
 * digest.
 */
const MAX_IDENTITY_CHARS = 256;

/** The properties of a request that identify it as a repetition of an earlier request. */
export type RequestIdentity = {
  /** A short text that is the same for equal requests and no others. */
  readonly digest: string;
  /**
   * Whether the headers of the request state that it is a retry. The first of several equal requests is never treated as a retry, even if its
   * headers state it.
   */
  readonly isRetry: boolean;
};

/**
 * Returns the identity of a request. Its digest covers the dialect, the agent thread, the model and streaming parameters in the path and
 * query, the idempotency key, and the bytes of the body.
 */
export function requestIdentity(
  dialect: Dialect,
  context: CallContext,
  body: Buffer,
): RequestIdentity | Promise<RequestIdentity> {
  if (body.length < MIN_THREADED_BYTES) return identityOf(dialect, context, hash('sha256', body, 'base64'));
  return digestInThread(body).then((digest) => identityOf(dialect, context, digest));
}

function identityOf(dialect: Dialect, context: CallContext, bodyDigest: string): RequestIdentity {
  const { headers, query, callRules, model, stream } = context;
  const [key = null] = IDEMPOTENCY_HEADERS.map((name) => headerOf(headers, name)).filter((value) => value !== null);
  const retries = headerOf(headers, RETRY_COUNT_HEADER);
  const thread = threadKeyOf(callRules, headers);
  const whole = JSON.stringify([dialect.name, thread, model, stream, query.get('alt'), key, bodyDigest]);
  const digest = whole.length <= MAX_IDENTITY_CHARS ? whole : hash('sha256', whole, 'base64');
  return { digest, isRetry: key !== null || (retries !== null && POSITIVE_COUNT.test(retries)) };
}

async function digestInThread(body: Buffer): Promise<string> {
  return Buffer.from(await webcrypto.subtle.digest('SHA-256', body)).toString('base64');
}

/**
 * Distinguishes retries from requests that are equal on purpose, as when an agent samples one prompt several times. A request is a retry only
 * with one of three kinds of evidence:
 * - the client of an equal request disconnected before it had the reply;
 * - the headers state it;
 * - the session's harness is known to send a request again when it cannot use the reply.
 *
 * Every other request gets a sample of its own, which is kept.
 */
export class RepeatedRequests {
  /**
   * The calls that a retry may refer to: all calls whose reply has not been delivered, and the latest call whose reply has been delivered.
   * They are keyed by the digest of their request, in order of arrival.
   */
  private readonly calls = new Map<string, readonly Call[]>();
  /**
   * The number of failed calls and refused requests that no retry has followed yet, keyed by the digest of the request; `null` before the first
   * one, because most sessions have none.
   */
  private failures: LRUCache<string, number> | null = null;
  private readonly harnessResends: boolean;

  /** `harnessResends`: whether the harness repeats a request when it cannot use the reply, without a header that marks the retry. */
  constructor(harnessResends: boolean) {
    this.harnessResends = harnessResends;
  }

  /**
   * Returns the earlier call whose reply also answers this request, because the request is a retry of that call. Returns `null` when the
   * request needs a sample of its own.
   *
   * A request is a retry of an equal call whose client disconnected. When no equal call lost its client and no equal request failed, a retry
   * header decides. A request with the header is then a retry of the latest equal call whose reply has not been delivered. That call's client
   * may have gone away unnoticed, because a program between client and proxy can keep the connection open.
   */
  joinedCall({ digest, isRetry }: RequestIdentity): Call | null {
    const calls = this.callsOf(digest);
    const lost = calls.find((call) => call.lost);
    if (lost !== undefined) return lost;
    if (!isRetry || this.failures?.has(digest) === true) return null;
    return calls.findLast((call) => !call.delivered) ?? null;
  }

  /**
   * Registers a new call. Some harnesses and SDKs receive a complete reply, cannot use it, and send the same request again. If the new call is
   * such a repetition, returns the completion of the earlier call, which is then abandoned. Otherwise returns `null`.
   */
  add({ digest, isRetry }: RequestIdentity, call: Call): Completion | null {
    const calls = this.callsOf(digest);
    const last = calls.findLast(({ delivered }) => delivered);
    this.calls.set(digest, [...calls.filter((other) => !other.delivered || other === last), call]);
    if (!isRetry && !this.harnessResends) return null;
    return this.takeFailure(digest) ? null : (last?.completion ?? null);
  }

  /**
   * Registers that a request was refused, or that its call failed. A later retry then counts as a retry of this request, and not of another
   * request with the same digest.
   */
  addFailure(digest: string, call: Call | null): void {
    this.failures ??= new LRUCache({ max: MAX_FAILED_REQUESTS });
    this.failures.set(digest, (this.failures.get(digest) ?? 0) + 1);
    const others = this.callsOf(digest).filter((other) => other !== call);
    if (others.length > 0) this.calls.set(digest, others);
    else this.calls.delete(digest);
  }

  private callsOf(digest: string): readonly Call[] {
    return this.calls.get(digest) ?? [];
  }

  private takeFailure(digest: string): boolean {
    const { failures } = this;
    const count = failures?.get(digest);
    if (failures === null || count === undefined) return false;
    if (count > 1) failures.set(digest, count - 1);
    else failures.delete(digest);
    return true;
  }
}
