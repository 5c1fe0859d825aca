import type { IncomingMessage } from 'node:http';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { ENVELOPE_TYPE } from '../../core/envelope.ts';
import { FloeError } from '../../core/errors.ts';
import { parseAs, parseJson } from '../../core/parse.ts';
import type { TlsMaterial } from '../../core/tls-files.ts';
import { idSchema } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { admission } from './admission.ts';
import { API, type Face, type RouteName, type RouteSpec } from './api.ts';
import { hasBody, watchBody } from './body-watch.ts';
import { DeliveryBudget } from './delivery-budget.ts';
import { refuseConnection, sendFailure } from './failures.ts';
import type { Call, Handler, Handlers } from './handler.ts';
import type { Caller } from './tokens.ts';

/** Enough for a task with its files; results have a limit of their own. */
const BODY_LIMIT_BYTES = 8 * 1024 * 1024;
/** A heartbeat of the largest node has a quarter of it; a body of as many empty objects takes 0.1 s to parse. */
const MAX_JSON_VALUES = 200_000;
/** All headers of a request together; clients of this API send less than one KiB. */
const HEADER_LIMIT_BYTES = 16 * 1024;
/** How often Node looks for connections that have taken too long. */
const CONNECTION_CHECK_MS = 1_000;
/** A TLS handshake takes three messages. */
const HANDSHAKE_TIMEOUT_MS = 10_000;
/** Longer than the usual poll interval, so that clients keep their connection. */
const KEEP_ALIVE_MS = 65_000;
/** Ids have at most 128 characters; longer parameters never match anything. */
const MAX_PARAM_LENGTH = 256;

const MAIN: readonly Face[] = ['main'];

export type AppOptions = {
  readonly handlers: Handlers<RouteName>;
  /** The routes that this listener has. */
  readonly faces: ReadonlySet<Face>;
  /** Null: plain HTTP. */
  readonly tls: TlsMaterial | null;
};

/** The HTTP face of the control plane: one route for each row of the table, errors in one shape, callers checked. */
export function buildApp(context: RolloutContext, options: AppOptions): FastifyInstance {
  const { log, config } = context;
  const app = fastifyFor(context, options);
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body));
  app.setErrorHandler((error, request, reply) => sendFailure(error, request, reply, log));

  const callers = new WeakMap<FastifyRequest, Caller>();
  const admit = admission(context);
  const deliveries = new DeliveryBudget(config.max_delivering_mb * 1024 * 1024, context.counters);
  app.addHook('onRequest', async (request, reply) => {
    const route = specOf(request);
    const caller = admit(request.raw, route);
    if (caller !== null) callers.set(request, caller);
    if (route?.rawBody === ENVELOPE_TYPE) reply.raw.once('close', deliveries.take(request.raw));
  });
  const watched = new WeakMap<FastifyRequest, () => void>();
  app.addHook('preParsing', async (request, reply) => {
    if (!hasBody(request.raw)) return;
    const cutOff = (): void => refuseConnection(request.raw.socket, 408, 'the body of the request came too slowly');
    const endWatch = watchBody(request.raw, context.clock, config.body_idle_seconds * 1000, cutOff);
    watched.set(request, endWatch);
    reply.raw.once('close', endWatch);
  });
  app.addHook('preValidation', async (request) => watched.get(request)?.());
  app.addHook('onSend', async (_, reply) => {
    // A request that was held until now came before fastify knew; its connection would stay open until the grace time ends.
    if (context.closing.aborted) reply.header('connection', 'close');
  });
  for (const [name, route] of routesOf(options.faces)) {
    addRoute(app, route, options.handlers[name] as Handler<RouteSpec>, (request) => callers.get(request));
  }
  app.setNotFoundHandler((request, reply) => refuseUnknown(request, reply, options.faces));
  return app;
}

function fastifyFor({ config, log }: RolloutContext, { tls }: AppOptions): FastifyInstance {
  const http = {
    maxHeaderSize: HEADER_LIMIT_BYTES,
    headersTimeout: config.headers_timeout_seconds * 1000,
    connectionsCheckingInterval: CONNECTION_CHECK_MS,
  };
  // Nodes have to show a certificate, people and trainers need not: the route decides.
  const client = tls?.ca === undefined ? {} : { requestCert: true, rejectUnauthorized: false };
  const https = { ...http, ...tls, ...client, handshakeTimeout: HANDSHAKE_TIMEOUT_MS };
  return Fastify({
    ...(tls === null ? { http } : { https }),
    bodyLimit: BODY_LIMIT_BYTES,
    // The head has a time limit, and a body must come forward: how long a whole request takes depends on its size.
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_MS,
    exposeHeadRoutes: false,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    frameworkErrors: (error, request, reply) => sendFailure(error, request, reply as FastifyReply, log),
    clientErrorHandler: (error, socket) => refuseUnreadable(error, socket),
  }) as FastifyInstance;
}

/** Bytes that are not HTTP, or that do not come. */
function refuseUnreadable(error: Error & { code?: string }, socket: IncomingMessage['socket']): void {
  if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    refuseConnection(socket, 408, 'the head of the request came too slowly');
  } else if (error.code === 'HPE_HEADER_OVERFLOW') {
    refuseConnection(socket, 431, `the headers have more than ${HEADER_LIMIT_BYTES} bytes`);
  } else refuseConnection(socket, 400, 'the request is not well-formed HTTP');
}

function routesOf(faces: ReadonlySet<Face>): [RouteName, RouteSpec][] {
  const routes = Object.entries<RouteSpec>(API) as [RouteName, RouteSpec][];
  return routes.filter(([, route]) => (route.faces ?? MAIN).some((face) => faces.has(face)));
}

function addRoute(
  app: FastifyInstance,
  route: RouteSpec,
  handler: Handler<RouteSpec>,
  callerOf: (request: FastifyRequest) => Caller | undefined,
): void {
  app.route({
    method: route.method,
    url: route.path,
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

/** Undefined where no route fits. */
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
  if (id !== undefined) parseAs(idSchema, id, 'id in the path');
  const query = route.query === undefined ? undefined : parseAs(route.query, { ...(request.query as object) }, 'query');
  return {
    id: id ?? '',
    query: query as Call<RouteSpec>['query'],
    body: bodyOf(route, request) as Call<RouteSpec>['body'],
    role: caller?.role ?? null,
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
  return route.body === undefined ? undefined : parseAs(route.body, parseJson(bytes, MAX_JSON_VALUES), 'body');
}

function goneSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) controller.abort(new FloeError('bad_request', 'the client hung up'));
  });
  return controller.signal;
}

function isStream(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'pipe' in value;
}

/** Tells a wrong method, and a wrong listener, from a wrong path. */
function refuseUnknown(request: FastifyRequest, reply: FastifyReply, faces: ReadonlySet<Face>): never {
  const path = request.url.split('?')[0] ?? '';
  const fits = (route: RouteSpec): boolean =>
    new RegExp(`^${route.path.replaceAll('.', '\\.').replace(':id', '[^/]+')}$`).test(path);
  const methods = routesOf(faces)
    .filter(([, route]) => fits(route))
    .map(([, route]) => route.method);
  if (methods.length === 0) {
    const elsewhere = Object.values<RouteSpec>(API).find((route) => route.method === request.method && fits(route));
    const where = elsewhere === undefined ? '' : ` here; it is on the ${(elsewhere.faces ?? MAIN)[0]} listener`;
    throw new FloeError('not_found', `there is no ${request.method} ${path}${where}`);
  }
  const allow = [...new Set(methods)].join(', ');
  reply.header('allow', allow);
  throw new FloeError('method_not_allowed', `${path} takes ${allow}, not ${request.method}`);
}
