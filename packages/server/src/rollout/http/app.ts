import type { IncomingMessage } from 'node:http';
import {
  FloeError,
  KIB,
  MAX_TASK_BYTES,
  MAX_TASK_VALUES,
  MIB,
  parseAs,
  parseJson,
  type TlsMaterial,
} from '@floe-rl/core';
import { ENVELOPE_TYPE } from '@floe-rl/core/protocol';
import { idSchema } from '@floe-rl/core/schema';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { RolloutContext } from '../context.ts';
import { admission, type Caller } from './admission.ts';
import { API, type Face, type RouteName, type RouteSpec } from './api.ts';
import { type CompatibleApi, type MountedRoute, mountRoutes } from './compatible-api.ts';
import { dashboardRoutes } from './dashboard.ts';
import { refuseConnection, refuseExpectation, sendError } from './error-replies.ts';
import type { Call, Handler, Handlers } from './handler.ts';
import { permitPages } from './page-origins.ts';
import { DeliveryBudget, hasBody, watchBody } from './request-bodies.ts';

/** Maximum size of a JSON request body in bytes. Rows of data sets and results have separate limits. */
const BODY_LIMIT_BYTES = MAX_TASK_BYTES;
/** Maximum number of bytes of all headers of a request together. Clients of this API send less than one KiB. */
const HEADER_LIMIT_BYTES = 16 * KIB;
/** Interval at which Node's HTTP server checks for connections whose request takes too long. */
const CONNECTION_CHECK_MS = 1_000;
/** Time limit of a TLS handshake. A handshake takes only three messages, so it normally ends much sooner. */
const HANDSHAKE_TIMEOUT_MS = 10_000;
/**
 * Time for which an idle connection is kept open: longer than the usual poll interval of clients, so that they can reuse their connection.
 */
const KEEP_ALIVE_MS = 65_000;
/** Maximum number of characters of a path parameter; fastify answers requests with longer parameters with 404. Ids have at most 128. */
const MAX_PARAM_LENGTH = 256;

const MAIN: readonly Face[] = ['main'];

export type AppOptions = {
  readonly handlers: Handlers<RouteName>;
  /** APIs of other systems, which the main listener serves. */
  readonly compatible: readonly CompatibleApi[];
  /** The groups of routes that this listener serves. */
  readonly faces: ReadonlySet<Face>;
  /** Certificate and key of the listener; `null` for plain HTTP. */
  readonly tls: TlsMaterial | null;
};

/**
 * Builds the HTTP application of one listener: a route for each entry of the API table, errors in one format, and a check of every caller.
 */
export function buildApp(context: RolloutContext, options: AppOptions): FastifyInstance {
  const { log, config } = context;
  const app = fastifyFor(context, options);
  app.server.on('checkExpectation', refuseExpectation);
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body));
  app.setErrorHandler((error, request, reply) =>
    sendError(error, request, reply, log, specOf(request)?.compatible !== undefined),
  );

  permitPages(app, config.page_origins);
  const callers = new WeakMap<FastifyRequest, Caller>();
  const admit = admission(context);
  const deliveries = new DeliveryBudget(config.max_delivering_mb * MIB, context.counters);
  app.addHook('onRequest', async (request, reply) => {
    const route = specOf(request);
    const caller = admit(request.raw, route);
    if (caller !== null) callers.set(request, caller);
    if (route?.rawBody === ENVELOPE_TYPE) reply.raw.once('close', deliveries.reserve(request.raw));
  });
  const bodyWatches = new WeakMap<FastifyRequest, () => void>();
  app.addHook('preParsing', async (request, reply) => {
    if (!hasBody(request.raw)) return;
    const refuse = (): void => refuseConnection(request.raw.socket, 408, 'the body of the request arrived too slowly');
    const endWatch = watchBody(request.raw, context.clock, config.body_idle_seconds * 1000, refuse);
    bodyWatches.set(request, endWatch);
    reply.raw.once('close', endWatch);
  });
  app.addHook('preValidation', async (request) => bodyWatches.get(request)?.());
  app.addHook('onSend', async (_, reply) => {
    // While the server closes, it also closes the connection after this reply. fastify does so only for requests that arrive after the close
    // began. The connection of a held request would therefore stay open until the grace time ends.
    if (context.closing.aborted) reply.header('connection', 'close');
  });
  const routes = routesOf(options);
  for (const route of routes) addRoute(app, route, (request) => callers.get(request));
  app.setNotFoundHandler((request, reply) => refuseUnknown(request, reply, routes));
  return app;
}

function fastifyFor({ config, log }: RolloutContext, { tls }: AppOptions): FastifyInstance {
  const http = {
    maxHeaderSize: HEADER_LIMIT_BYTES,
    // Node's own refusal of a request without a Host header is a response with an empty body. Node's check is therefore off, and
    // `refuseAmbiguous` refuses these requests with floe's error body.
    requireHostHeader: false,
    headersTimeout: config.headers_timeout_seconds * 1000,
    connectionsCheckingInterval: CONNECTION_CHECK_MS,
  };
  // TLS only requests a client certificate. Each route decides whether the certificate is required, because only nodes must present one.
  const client = tls?.ca === undefined ? {} : { requestCert: true, rejectUnauthorized: false };
  const https = { ...http, ...tls, ...client, handshakeTimeout: HANDSHAKE_TIMEOUT_MS };
  return Fastify({
    ...(tls === null ? { http } : { https }),
    bodyLimit: BODY_LIMIT_BYTES,
    // The duration of a whole request is not limited, because it depends on the size of the request. Instead, the head has a time limit,
    // and the body must make progress.
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_MS,
    exposeHeadRoutes: false,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    frameworkErrors: (error, request, reply) => sendError(error, request, reply as FastifyReply, log),
    clientErrorHandler: (error, socket) => refuseMalformed(error, socket),
  }) as FastifyInstance;
}

/** Refuses a connection whose bytes are not HTTP, or that sends no complete head in time. */
function refuseMalformed(error: Error & { code?: string }, socket: IncomingMessage['socket']): void {
  if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    refuseConnection(socket, 408, 'the head of the request arrived too slowly');
  } else if (error.code === 'HPE_HEADER_OVERFLOW') {
    refuseConnection(socket, 431, `the headers have more than ${HEADER_LIMIT_BYTES} bytes`);
  } else refuseConnection(socket, 400, 'the request is not well-formed HTTP');
}

function routesOf({ faces, handlers, compatible }: AppOptions): MountedRoute[] {
  const own = (Object.entries<RouteSpec>(API) as [RouteName, RouteSpec][])
    .filter(([, spec]) => (spec.faces ?? MAIN).some((face) => faces.has(face)))
    .map(([name, spec]) => ({ spec, handler: handlers[name] as Handler<RouteSpec> }));
  if (!faces.has('main')) return mountRoutes(own, []);
  return [...mountRoutes(own, compatible), ...dashboardRoutes()];
}

function addRoute(
  app: FastifyInstance,
  { path, spec: route, handler }: MountedRoute,
  callerOf: (request: FastifyRequest) => Caller | undefined,
): void {
  app.route({
    method: route.method,
    url: path,
    config: { route },
    ...(route.bodyLimitBytes === undefined ? {} : { bodyLimit: route.bodyLimitBytes }),
    handler: async (request, reply) => {
      const value = await handler(callOf(route, request, reply, callerOf(request)));
      if (reply.sent) return reply;
      if (Buffer.isBuffer(value) || typeof value === 'string' || isStream(value)) return reply.send(value);
      return reply.type('application/json').send(JSON.stringify(value));
    },
  });
}

/** Returns the API entry that a request matches; `undefined` when no route matches. */
function specOf(request: FastifyRequest): RouteSpec | undefined {
  return (request.routeOptions.config as { route?: RouteSpec } | undefined)?.route;
}

function callOf(
  route: RouteSpec,
  request: FastifyRequest,
  reply: FastifyReply,
  caller: Caller | undefined,
): Call<RouteSpec> {
  const { id } = request.params as { id?: string };
  if (id !== undefined && route.compatible === undefined) parseAs(idSchema, id, 'id in the path');
  const query = route.query === undefined ? undefined : parseAs(route.query, { ...(request.query as object) }, 'query');
  return {
    id: id ?? '',
    query: query as Call<RouteSpec>['query'],
    body: bodyOf(route, request) as Call<RouteSpec>['body'],
    role: caller?.role ?? null,
    disconnected: disconnectSignal(reply),
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
  return route.body === undefined ? undefined : parseAs(route.body, parseJson(bytes, MAX_TASK_VALUES), 'body');
}

/** Returns a signal that is aborted when the client closes the connection before the reply is complete. */
function disconnectSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) controller.abort(new FloeError('bad_request', 'the client closed the connection'));
  });
  return controller.signal;
}

function isStream(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'pipe' in value;
}

/**
 * Refuses a request that no route of this listener matches. Throws `method_not_allowed` when the path exists with another method, else
 * `not_found`. If another listener serves the path, the message of `not_found` names that listener.
 */
function refuseUnknown(request: FastifyRequest, reply: FastifyReply, routes: readonly MountedRoute[]): never {
  const path = request.url.split('?')[0] ?? '';
  const matches = (route: Pick<RouteSpec, 'path'>): boolean =>
    new RegExp(`^${route.path.replaceAll('.', '\\.').replace(':id', '[^/]+')}$`).test(path);
  const methods = routes.filter(matches).map(({ spec }) => spec.method);
  if (methods.length === 0) {
    const elsewhere = Object.values<RouteSpec>(API).find((route) => route.method === request.method && matches(route));
    const where = elsewhere === undefined ? '' : ` here; it is on the ${(elsewhere.faces ?? MAIN)[0]} listener`;
    throw new FloeError('not_found', `there is no ${request.method} ${path}${where}`);
  }
  const allow = [...new Set(methods)].join(', ');
  reply.header('allow', allow);
  throw new FloeError('method_not_allowed', `${path} accepts ${allow}, not ${request.method}`);
}
