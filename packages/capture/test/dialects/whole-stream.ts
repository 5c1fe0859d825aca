import type { CanonicalReply, CanonicalRequest, Dialect, StreamEnd } from '../../src/dialects/dialect.ts';
import { SentDeltas } from '../../src/dialects/reply-stream.ts';

/** Encodes a complete reply as a stream, as the proxy does when the engine returned the reply in one piece. */
export function streamOf(dialect: Dialect, reply: CanonicalReply, request: CanonicalRequest): StreamEnd {
  const stream = dialect.openStream(reply, request);
  let body = stream.start();
  for (const delta of new SentDeltas().missingFrom(reply.message)) body += stream.delta(delta);
  const { body: close, end } = stream.end(reply);
  return { body: body + close, end };
}
