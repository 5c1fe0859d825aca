import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Server as TlsServer } from 'node:tls';
import { asFloeError, type Clock, FloeError, listenError, readTls, type TlsFiles, watchTls } from '@floe-rl/core';
import type { ErrorReply } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import { type FastifyInstance, fastify } from 'fastify';
import type { GatewayConfig } from './config.ts';
import type { NodeReports } from './node-reports.ts';

export type ControlListener = { readonly url: string; close(): Promise<void> };

const LISTEN_OPTIONS = { host: '--control-host', port: '--control-port' };

const TEXT_FORMAT = 'text/plain; version=0.0.4; charset=utf-8';

/**
 * Opens the HTTP listener for operators, which serves `/health`, `/metrics`, `/metrics/engines` (the metrics of the engines) and
 * `/status`. The listener is read-only and separate from the proxy's, so that no sandbox can reach it. Throws `setup_failed` when the
 * certificate cannot be used or the listener cannot be opened.
 */
export async function openControlListener(
  config: GatewayConfig,
  reports: NodeReports,
  { clock, log }: { readonly clock: Clock; readonly log: Logger },
): Promise<ControlListener> {
  const { control_tls } = config;
  const files = control_tls === null ? null : { ...control_tls, ca: null };
  // Request bodies are limited because all requests are small. The timeout closes the connection of a request that never arrives
  // completely.
  const app = fastify({
    logger: false,
    bodyLimit: 1024,
    requestTimeout: 10_000,
    ...(files === null ? {} : { https: readTls(files) }),
  }) as FastifyInstance;
  app.server.on('checkExpectation', (_: IncomingMessage, response: ServerResponse) => {
    const body = errorBody(new FloeError('bad_request', 'only `Expect: 100-continue` is supported'));
    response.writeHead(417, { connection: 'close', 'content-type': 'application/json' }).end(JSON.stringify(body));
  });
  app.setErrorHandler((thrown, _, reply) => {
    const error = asFloeError(thrown);
    return reply.code(error.status).send(errorBody(error));
  });
  app.addHook('onRequest', async (request) => {
    if (request.url === '/health' || config.token === null) return;
    const given = request.raw.headersDistinct.authorization;
    if (given !== undefined && given.length > 1) {
      throw new FloeError('bad_request', 'the request has more than one authorization');
    }
    if (given?.[0] === undefined || !isSameToken(given[0], `Bearer ${config.token}`)) {
      throw new FloeError('unauthorized', 'send the control token as Authorization: Bearer');
    }
  });
  app.get('/health', async () => ({ status: 'ok', node_id: config.node_id }));
  app.get('/metrics', async (_, reply) => {
    const registry = await reports.registry();
    return reply.type(registry.contentType).send(await registry.metrics());
  });
  app.get('/metrics/engines', async (_, reply) => reply.type(TEXT_FORMAT).send(await reports.engineMetrics()));
  app.get('/status', () => reports.status());
  // A copy is passed, because fastify writes into its options. The configuration must not change: processes of the node get it too.
  const url = await app.listen({ ...config.control }).catch((cause: unknown) => {
    throw listenError('the control listener', config.control, LISTEN_OPTIONS, cause);
  });
  const unwatch = files === null ? () => {} : watchCertificate(app, files, clock, log);
  return {
    url,
    close: () => {
      unwatch();
      return app.close();
    },
  };
}

function errorBody({ code, message, details, retryable }: FloeError): ErrorReply {
  return { error: { code, message, details, retryable } };
}

/**
 * Watches the files of the TLS certificate and uses a changed certificate for new connections. Returns a function that stops the watching.
 */
function watchCertificate(app: FastifyInstance, files: TlsFiles, clock: Clock, log: Logger): () => void {
  return watchTls(
    files,
    clock,
    (material) => (app.server as unknown as TlsServer).setSecureContext(material),
    (error) =>
      log.error({ error: error.message }, 'the changed certificate cannot be used; the previous one stays in use'),
  );
}

/**
 * Compares digests of two control tokens, so that the duration of the comparison reveals neither the length nor the content of the expected
 * token.
 */
function isSameToken(given: string, expected: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(expected));
}
