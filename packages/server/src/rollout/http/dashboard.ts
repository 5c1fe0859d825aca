import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { assetPath } from '@floe-rl/core';
import { z } from 'zod';
import type { RouteSpec } from './api.ts';
import type { MountedRoute } from './compatible-api.ts';
import type { Handler } from './handler.ts';

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

/**
 * Content security policy of the page. The page may load its own files, the API of this server, and images that are in its data. A script in a
 * text of an agent never runs, and nothing is loaded from other servers.
 */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const HEADERS = {
  'content-security-policy': POLICY,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
};

/** Time in seconds for which browsers keep files whose names contain a digest of their content. */
const YEAR_SECONDS = 31_536_000;

const NOT_BUILT = 'The page was not built: run `npm run build` in the checkout, or install the package again.\n';

/**
 * Returns the routes of the dashboard, a page for people. The page itself needs no token, but its calls of the API do. `folder` has the files
 * of the page, as the package `dashboard/` builds them.
 */
export function dashboardRoutes(
  folder = join(dirname(assetPath(import.meta.url, 'package.json')), 'dist', 'dashboard'),
): MountedRoute[] {
  const page = route('/dashboard/', ({ reply }) => {
    reply.headers({ ...HEADERS, 'cache-control': 'no-cache' });
    const file = join(folder, 'index.html');
    if (!existsSync(file)) return reply.code(503).type('text/plain; charset=utf-8').send(NOT_BUILT);
    return reply.type(TYPES['.html'] ?? '').send(readFileSync(file));
  });
  // The address is relative, so that it holds below a path that a reverse proxy adds.
  const toPage = route('/dashboard', ({ reply }) => reply.code(308).header('location', 'dashboard/').send());
  return [page, toPage, ...filesBelow(folder).map((name) => fileRoute(folder, name))];
}

function fileRoute(folder: string, name: string): MountedRoute {
  const hasDigest = name.startsWith('assets/');
  return route(`/dashboard/${name}`, ({ reply }) => {
    const control = hasDigest ? `public, max-age=${YEAR_SECONDS}, immutable` : 'no-cache';
    reply.headers({ ...HEADERS, 'cache-control': control });
    return reply.type(TYPES[extname(name)] ?? '').send(readFileSync(join(folder, name)));
  });
}

/** Lists the files of a folder that the page consists of, without the page itself. */
function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => name.replaceAll('\\', '/'))
    .filter((name) => name !== 'index.html' && TYPES[extname(name)] !== undefined);
}

function route(path: string, handler: Handler<RouteSpec>): MountedRoute {
  const summary = 'A file of the page for people.';
  return { path, handler, spec: { method: 'GET', path, summary, roles: [], open: true, reply: z.unknown() } };
}
