import { channel, hasSubscribers } from 'node:diagnostics_channel';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { Dialect } from '../../dialects/dialect.ts';
import type { Target } from './routes.ts';

/** Name of the `node:diagnostics_channel` on which the proxy publishes every request of a session. */
export const REQUEST_CHANNEL = 'floe:proxy:request';

/**
 * One request as a harness sent it, without secrets: `path` does not contain the session key, and headers that may contain secrets are
 * omitted from `headers`.
 */
export type ProxyRequestMessage = {
  readonly sessionId: string;
  readonly dialect: string;
  readonly method: string;
  /** The request path with its query, but without the prefix that contains the session key. */
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  /** The decompressed body; an empty buffer when the request has no body or its body was not read. */
  readonly body: Buffer;
};

const SECRET_HEADERS = new Set(['authorization', 'proxy-authorization', 'cookie', 'x-api-key', 'x-goog-api-key']);

/** Publishes a request on {@link REQUEST_CHANNEL}. Does nothing when the channel has no subscriber. */
export function publishRequest(
  request: IncomingMessage,
  target: Target,
  session: { readonly sessionId: string; readonly key: string },
  dialect: Dialect,
  body: Buffer,
): void {
  if (!hasSubscribers(REQUEST_CHANNEL)) return;
  const query = new URLSearchParams(target.query);
  query.delete('key');
  const headers = Object.fromEntries(
    Object.entries(request.headers).filter(
      ([name, value]) => !SECRET_HEADERS.has(name) && !String(value).includes(session.key),
    ),
  );
  const text = query.toString();
  const message: ProxyRequestMessage = {
    sessionId: session.sessionId,
    dialect: dialect.name,
    method: request.method ?? '',
    path: `${target.path}${text === '' ? '' : `?${text}`}`.replaceAll(session.key, '<key>'),
    headers,
    body,
  };
  channel(REQUEST_CHANNEL).publish(message);
}
