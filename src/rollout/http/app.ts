import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { FloeError } from '../../core/errors.ts';
import { parseAs, parseJson } from '../../core/parse.ts';
import { idSchema } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { API, type RouteName, type RouteSpec } from './api.ts';
import { errorBody, sendFailure } from './failures.ts';
import { bearerCheck, refuseAmbiguous } from './guard.ts';
import type { Call, Handler, Handlers } from './handler.ts';

/** Enough for a task with its files; results have a limit of their own. */
const BODY_LIMIT_BYTES = 8 * 1024 * 1024;
/** A client that takes longer to send its request is cut off. */
const REQUEST_TIMEOUT_MS = 120_000;
/** Longer than the usual poll interval, so that clients keep their connection. */
const KEEP_ALIVE_MS = 65_000;
/** Ids have at most 128 characters; longer parameters never match anything. */
const MAX_PARAM_LENGTH = 256;

/** The HTTP face of the control plane: one route for each row of the table, errors in one shape, tokens checked. */
export function buildApp(context: RolloutContext, handlers: Handlers<RouteName>): FastifyInstance {
  const { log } = context;
  const app = Fastify({
    bodyLimit: BODY_LIMIT_BYTES,
    requestTimeout: REQUEST_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_MS,
    exposeHeadRoutes: false,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    frameworkErrors: (error, request, reply) => sendFailure(error, request, reply as FastifyReply, log),
    clientErrorHandler: (_, socket) => refuseConnection(socket),
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body));
  app.setErrorHandler((error, request, reply) => sendFailure(error, request, reply, log));

  const checkToken = bearerCheck(context.config.token);
  app.addHook('onRequest', async (request) => {
    refuseAmbiguous(request.raw);
    if (!isOpen(request)) checkToken(request.headers.authorization);
  });
  app.addHook('onSend', async (_, reply) => {
    // A request that was held until now came before fastify knew; its connection would stay open until the grace time ends.
    if (context.closing.aborted) reply.header('connection', 'close');
  });
  for (const name of Object.keys(API) as RouteName[]) {
    addRoute(app, API[name], handlers[name] as Handler<RouteSpec>);
  }
  app.setNotFoundHandler((request, reply) => refuseUnknown(request, reply));
  return app;
}

function addRoute(app: FastifyInstance, route: RouteSpec, handler: Handler<RouteSpec>): void {
  app.route({
    method: route.method,
    url: route.path,
    ...(route.bodyLimitBytes === undefined ? {} : { bodyLimit: route.bodyLimitBytes }),
    handler: async (request, reply) => {
      const value = await handler(callOf(route, request, reply));
      if (reply.sent) return reply;
      if (Buffer.isBuffer(value) || typeof value === 'string' || isStream(value)) return reply.send(value);
      return reply.type('application/json').send(JSON.stringify(value));
    },
  });
}

function callOf(route: RouteSpec, request: FastifyRequest, reply: FastifyReply): Call<RouteSpec> {
  const { id } = request.params as { id?: string };
  if (id !== undefined) parseAs(idSchema, id, 'id in the path');
  const query = route.query === undefined ? undefined : parseAs(route.query, { ...(request.query as object) }, 'query');
  return {
    id: id ?? '',
    query: query as Call<RouteSpec>['query'],
    body: bodyOf(route, request) as Call<RouteSpec>['body'],
    gone: goneSignal(reply),
    request,
    reply,
  };
}

function bodyOf(route: RouteSpec, request: FastifyRequest): unknown {
  const bytes = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
  if (route.rawBody !== undefined) {
    const given = request.headers['content-type']?.split(';')[0]?.trim();
    if (given !== route.rawBody) throw new FloeError('bad_request', `content-type must be ${route.rawBody}`);
    return bytes;
  }
  return route.body === undefined ? undefined : parseAs(route.body, parseJson(bytes), 'body');
}

function goneSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) controller.abort(new FloeError('bad_request', 'the client hung up'));
  });
  return controller.signal;
}

function isOpen(request: FastifyRequest): boolean {
  const path = request.routeOptions.url;
  return Object.values<RouteSpec>(API).some((route) => route.open === true && route.path === path);
}

function isStream(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'pipe' in value;
}

/** Tells a wrong method from a wrong path. */
function refuseUnknown(request: FastifyRequest, reply: FastifyReply): never {
  const path = request.url.split('?')[0] ?? '';
  const methods = Object.values<RouteSpec>(API)
    .filter((route) => new RegExp(`^${route.path.replaceAll('.', '\\.').replace(':id', '[^/]+')}$`).test(path))
    .map((route) => route.method);
  if (methods.length === 0) throw new FloeError('not_found', `there is no ${request.method} ${path}`);
  const allow = [...new Set(methods)].join(', ');
  reply.header('allow', allow);
  throw new FloeError('method_not_allowed', `${path} takes ${allow}, not ${request.method}`);
}

/** Answers bytes that are not HTTP, then closes the connection. */
function refuseConnection(socket: { writable: boolean; end(text: string): unknown; destroy(): unknown }): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const body = JSON.stringify(errorBody(new FloeError('bad_request', 'the request is not well-formed HTTP')));
  socket.end(
    `HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
