import { Readable } from 'node:stream';
import { Agent, request } from 'undici';
import { KIB } from '../../core/bytes.ts';
import type { RolloutConfig } from '../config.ts';
import { checkedLookup } from './address.ts';

/**
 * Maximum number of bytes of the body of a trainer's answer that are read. Only the status of the answer is used; the body is read so that
 * the connection need not be reset.
 */
const ANSWER_LIMIT_BYTES = 16 * KIB;

export type CallbackPost = {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** The body in chunks, which may be larger than memory. It is read once. */
  readonly body: AsyncIterable<Buffer>;
  /** Aborting it aborts the request, which then rejects. */
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
  /** Aborts the requests in progress. */
  close(): Promise<void>;
}

/**
 * Creates a transport that sends callbacks over HTTP, to addresses that the configuration allows. An address is checked after the host
 * name was resolved.
 */
export function httpTransport(config: RolloutConfig): CallbackTransport {
  // The time limits are disabled, because the caller sets the deadline, and undici's defaults would end a slow upload.
  const agent = new Agent({ connect: { lookup: checkedLookup(config) }, headersTimeout: 0, bodyTimeout: 0 });
  return {
    async post({ url, headers, body, signal }) {
      const reply = await request(url, {
        method: 'POST',
        dispatcher: agent,
        signal,
        headers,
        body: Readable.from(body, { objectMode: false }),
      });
      // The status has arrived, so it does not matter whether the rest of the body breaks off or does not end.
      await reply.body.dump({ limit: ANSWER_LIMIT_BYTES }).catch(() => {});
      return reply.statusCode;
    },
    close: () => agent.destroy(),
  };
}
