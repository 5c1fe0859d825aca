import { Readable } from 'node:stream';
import { Agent, request } from 'undici';
import type { RolloutConfig } from '../config.ts';
import { checkedLookup } from './address.ts';

/** The rest of an answer that is read, so that the trainer's connection ends in order; its status says all that is asked. */
const ANSWER_LIMIT_BYTES = 16 * 1024;

export type CallbackPost = {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** May be larger than memory; is read once. */
  readonly body: AsyncIterable<Buffer>;
  /** Ends the post; it then rejects. */
  readonly signal: AbortSignal;
};

/**
 * How callbacks reach trainers. A simulation gives its own, which must answer or reject for every post, and may be asked for
 * several at a time.
 */
export interface CallbackTransport {
  /** Resolves to the status of the answer, whose body nobody sees. Follows no redirect. Rejects when there was no answer. */
  post(callback: CallbackPost): Promise<number>;
  /** Ends what is under way. */
  close(): Promise<void>;
}

/** Over HTTP, to addresses that the configuration allows: each is checked after its name was resolved, and is the one connected to. */
export function httpTransport(config: RolloutConfig): CallbackTransport {
  // Timeouts are the caller's; undici's own would end a slow upload.
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
      // The status has arrived, so an answer that breaks off or does not end changes nothing.
      await reply.body.dump({ limit: ANSWER_LIMIT_BYTES }).catch(() => {});
      return reply.statusCode;
    },
    close: () => agent.destroy(),
  };
}
