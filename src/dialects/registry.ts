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
      /** The model in the path; null where the path has none. */
      readonly model: string | null;
      /** Whether the path asks for a stream; null where the body says it. */
      readonly stream: boolean | null;
    }
  /** `allow`: the methods that the path has; empty for an unknown path. `dialect` shapes the error. */
  | { readonly found: false; readonly dialect: Dialect; readonly allow: readonly string[] };

/** Looks a path up in the route tables. A path of two dialects goes to the one that the headers speak. */
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

/** The model in the path, null for a route without one; undefined when the path is another one. */
function matchPath(route: Route, path: string): string | null | undefined {
  const at = route.path.indexOf(MODEL);
  if (at < 0) return route.path === path ? null : undefined;
  const head = route.path.slice(0, at);
  const tail = route.path.slice(at + MODEL.length);
  if (path.length <= head.length + tail.length || !path.startsWith(head) || !path.endsWith(tail)) return undefined;
  const model = path.slice(head.length, path.length - tail.length);
  // Names such as `org/model:7b` are told from further path segments by the verb behind them.
  return tail === '' && /[/:]/.test(model) ? undefined : model;
}

const RESPONSES_PATH = /^(?:\/v1)?\/responses(?:\/|$)/;

/** Google's paths end in a verb behind the model, except for those that only its beta version has. */
const GEMINI_PATH = /^\/v1beta\/|^\/v1\/models\/.+:[a-zA-Z]+$/;

function guessDialect(path: string, headers: Headers): Dialect {
  if (RESPONSES_PATH.test(path)) return openaiResponses;
  if (GEMINI_PATH.test(path)) return gemini;
  const speaksAnthropic = headers['anthropic-version'] !== undefined || /^(\/v1)?\/messages\b/.test(path);
  if (speaksAnthropic) return anthropic;
  return headers['x-goog-api-key'] !== undefined ? gemini : openaiChat;
}
