import type { FastifyInstance } from 'fastify';

/** Time in seconds for which a browser caches the permission that it gets for a preflight request. */
const PERMISSION_SECONDS = 600;

/**
 * Permits web pages with the given origins to call the API and to read its replies (CORS). Their calls need a token as all others do, and
 * cookies are not used. The hook must run before the check of the caller, because the preflight requests of browsers have no token.
 */
export function permitPages(app: FastifyInstance, origins: readonly string[]): void {
  if (origins.length === 0) return;
  app.addHook('onRequest', async (request, reply) => {
    const { origin } = request.headers;
    reply.header('vary', 'origin');
    if (origin === undefined || !origins.includes(origin)) return;
    reply.header('access-control-allow-origin', origin);
    reply.header('access-control-expose-headers', 'x-next-cursor, retry-after');
    const isQuestion = request.method === 'OPTIONS' && request.headers['access-control-request-method'] !== undefined;
    if (!isQuestion) return;
    return reply
      .code(204)
      .header('access-control-allow-methods', 'GET, POST, DELETE')
      .header('access-control-allow-headers', 'authorization, content-type, accept')
      .header('access-control-max-age', String(PERMISSION_SECONDS))
      .send();
  });
}
