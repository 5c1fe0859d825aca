import { anthropic } from './anthropic/dialect.ts';
import type { Dialect, Headers, Route, RouteKind } from './dialect.ts';
import { gemini } from './gemini/dialect.ts';
import { openaiChat } from './openai_chat/dialect.ts';
import { openaiResponses } from './openai_responses/dialect.ts';

export const DIALECTS: readonly Dialect[] = [openaiChat, openaiResponses, anthropic, gemini];

export type RouteMatch =
  | {
      readonly found: true;
      readonly dialect: Dialect;
      readonly kind: RouteKind;
      /** Name of the model in the path; `null` when the path has none. */
      readonly model: string | null;
      /** Whether the path requests a stream; `null` when the body states it. */
      readonly stream: boolean | null;
    }
  /**
   * Result for a path or method that no route has. `allow` lists the methods that the path supports, and is empty for an unknown path.
   * `dialect` encodes the error.
   */
  | { readonly found: false; readonly dialect: Dialect; readonly allow: readonly string[] };

/** Finds the route of a path. The headers decide when two dialects have the same path. */
export function matchRoute(method: string, path: string, headers: Headers): RouteMatch {
  const preferred = guessDialect(path, headers);
  const ordered = [preferred, ...DIALECTS.filter((dialect) => dialect !== preferred)];
  const allow = new Set<string>();
  for (const dialect of ordered) {
    for (const route of dialect.routes) {
      const model = matchPath(route, path);
      if (model === undefined) continue;
      if (route.method === method) {
        return { found: true, dialect, kind: route.kind, model, stream: route.stream ?? null };
      }
      allow.add(route.method);
    }
  }
  return { found: false, dialect: preferred, allow: [...allow] };
}

const MODEL = '{model}';

/** Returns the model in the path; `null` for a route without a model, and `undefined` when the path does not match the route. */
function matchPath(route: Route, path: string): string | null | undefined {
  const at = route.path.indexOf(MODEL);
  if (at < 0) return route.path === path ? null : undefined;
  const head = route.path.slice(0, at);
  const tail = route.path.slice(at + MODEL.length);
  if (path.length <= head.length + tail.length || !path.startsWith(head) || !path.endsWith(tail)) return undefined;
  const model = path.slice(head.length, path.length - tail.length);
  // A model name such as `org/model:7b` can be distinguished from further path segments only when a verb follows it.
  return tail === '' && /[/:]/.test(model) ? undefined : model;
}

const RESPONSES_PATH = /^(?:\/v1)?\/responses(?:\/|$)/;

/** Matches paths of Google's API: those of the beta version, and those that end in a verb after the model. */
const GEMINI_PATH = /^\/v1beta\/|^\/v1\/models\/.+:[a-zA-Z]+$/;

function guessDialect(path: string, headers: Headers): Dialect {
  if (RESPONSES_PATH.test(path)) return openaiResponses;
  if (GEMINI_PATH.test(path)) return gemini;
  const isAnthropic = headers['anthropic-version'] !== undefined || /^(\/v1)?\/messages\b/.test(path);
  if (isAnthropic) return anthropic;
  return headers['x-goog-api-key'] !== undefined ? gemini : openaiChat;
}
