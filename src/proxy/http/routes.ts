import type { IncomingMessage, ServerResponse } from 'node:http';
import { FloeError } from '../../core/errors.ts';
import type { Dialect, RouteKind } from '../../dialects/dialect.ts';
import { matchRoute, type RouteMatch } from '../../dialects/registry.ts';
import { quoted } from '../session/request-limits.ts';

/** The dialect that shapes a request's errors, told from whatever its target looks like. */
export function dialectOf(request: IncomingMessage): Dialect {
  const path = (request.url ?? '').replace(/\?.*$/s, '').replace(/^\/s\/[^/]*/, '');
  return matchRoute(request.method ?? '', path, request.headers).dialect;
}

/** What a request is for; null: there is no such path. A `HEAD` of any path that there is asks whether somebody is there. */
export function kindOf(match: RouteMatch, method: string): RouteKind | null {
  if (match.found) return match.kind;
  return method === 'HEAD' && match.allow.length > 0 ? 'probe' : null;
}

/** A path that only answers probes is no path for anything else. */
export function noRoute(allow: readonly string[], method: string, path: string, response: ServerResponse): FloeError {
  if (allow.every((other) => other === 'HEAD')) return new FloeError('not_found', `no such path: ${quoted(path)}`);
  response.setHeader('allow', allow.join(', '));
  return new FloeError('method_not_allowed', `${quoted(path)} takes ${allow.join(', ')}, not ${method}`);
}
