import { Readable } from 'node:stream';
import { KIB } from '@floe-rl/core';
import { httpAgent, openHttp } from '@floe-rl/core/http';
import type { RolloutConfig } from '../config.ts';
import { checkedLookup } from './address.ts';

/**
 * Maximum number of bytes that are read of the body of a trainer's answer. Only the HTTP status of the answer is used; the body is read so
 * that the connection can be reused.
 */
const ANSWER_LIMIT_BYTES = 16 * KIB;

export type CallbackPost = {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** The callback's body in chunks. The whole body may be larger than memory. The transport reads it once. */
  readonly body: AsyncIterable<Buffer>;
  /** Aborting this signal aborts the HTTP request, and `post` then rejects. */
  readonly signal: AbortSignal;
};

/**
 * Sends callbacks to trainers. Simulations pass their own implementation, which must answer or reject every post and may be called
 * concurrently.
 */
export interface CallbackTransport {
  /**
   * Posts a callback, and resolves to the status code of the answer. The body of the answer is dropped, and redirects are not followed.
   * Rejects when no answer arrives.
   */
  post(callback: CallbackPost): Promise<number>;
  /** Aborts all posts in progress. */
  close(): Promise<void>;
}

/**
 * Creates a transport that sends callbacks over HTTP, to addresses that the configuration allows. The check takes place after the host name
 * of the URL was resolved.
 */
export function httpTransport(config: RolloutConfig): CallbackTransport {
  const agent = httpAgent({ lookup: checkedLookup(config) });
  return {
    async post({ url, headers, body, signal }) {
      const reply = await openHttp(url, {
        method: 'POST',
        agent,
        signal,
        headers,
        body: Readable.from(body, { objectMode: false }),
      });
      // The reply's status has already arrived, so an error while its body is read is ignored.
      await reply.drop(ANSWER_LIMIT_BYTES);
      return reply.status;
    },
    close: () => agent.destroy(),
  };
}
