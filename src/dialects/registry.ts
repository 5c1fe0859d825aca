import { anthropic } from './anthropic/dialect.ts';
import type { Headers } from './call-kind.ts';
import type { Dialect, RouteKind } from './dialect.ts';
import { openaiChat } from './openai_chat/dialect.ts';

export const DIALECTS: readonly Dialect[] = [openaiChat, anthropic];

export type RouteMatch =
  | { readonly found: true; readonly dialect: Dialect; readonly kind: RouteKind }
  /** `allow`: the methods that the path has; empty for an unknown path. `dialect` shapes the error. */
  | { readonly found: false; readonly dialect: Dialect; readonly allow: readonly string[] };

/** Looks a path up in the route tables. A path of two dialects goes to the one that the headers speak. */
export function matchRoute(method: string, path: string, headers: Headers): RouteMatch {
  const preferred = guessDialect(path, headers);
  const ordered = [preferred, ...DIALECTS.filter((dialect) => dialect !== preferred)];
  const allow = new Set<string>();
  for (const dialect of ordered) {
    for (const route of dialect.routes) {
      if (route.path !== path) continue;
      if (route.method === method) return { found: true, dialect, kind: route.kind };
      allow.add(route.method);
    }
  }
  return { found: false, dialect: preferred, allow: [...allow] };
}

function guessDialect(path: string, headers: Headers): Dialect {
  const speaksAnthropic = headers['anthropic-version'] !== undefined || path.startsWith('/v1/messages');
  return speaksAnthropic ? anthropic : openaiChat;
}
