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
      /** Name of the model in the URL path; `null` when the path has none. */
      readonly model: string | null;
      /** Whether the URL path requests a streamed reply; `null` when the request body states it. */
      readonly stream: boolean | null;
    }
  /**
   * Result for a path or method without a route. `allow` lists the HTTP methods of the path and is empty for an unknown path. `dialect`
   * encodes the error response.
   */
  | { readonly found: false; readonly dialect: Dialect; readonly allow: readonly string[] };

/** Finds the route of a request. If several dialects have the path, the headers decide which dialect is used. */
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
  // A model name at the end of a path must not contain a slash or colon, because it would begin a further path segment or verb. A model
  // name such as `org/model:7b` is accepted when the route continues after it.
  return tail === '' && /[/:]/.test(model) ? undefined : model;
}

const RESPONSES_PATH = /^(?:\/v1)?\/responses(?:\/|$)/;

/** Matches paths of Google's API. They start with `/v1beta/`, or they have a verb after the model, such as `:generateContent`. */
const GEMINI_PATH = /^\/v1beta\/|^\/v1\/models\/.+:[a-zA-Z]+$/;

function guessDialect(path: string, headers: Headers): Dialect {
  if (RESPONSES_PATH.test(path)) return openaiResponses;
  if (GEMINI_PATH.test(path)) return gemini;
  const isAnthropic = headers['anthropic-version'] !== undefined || /^(\/v1)?\/messages\b/.test(path);
  if (isAnthropic) return anthropic;
  return headers['x-goog-api-key'] !== undefined ? gemini : openaiChat;
}
