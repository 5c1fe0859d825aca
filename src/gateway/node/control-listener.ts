import { createHash, timingSafeEqual } from 'node:crypto';
import type { Server as TlsServer } from 'node:tls';
import { type FastifyInstance, fastify } from 'fastify';
import { systemClock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { readTls, type TlsFiles, watchTls } from '../../core/tls-files.ts';
import type { EnginePool } from '../../engines/pool.ts';
import type { GatewayMetrics } from '../../observe/gateway-metrics.ts';
import type { Logger } from '../../observe/log.ts';
import type { CaptureJournal } from '../../proxy/journal/journal.ts';
import type { Sandboxes } from '../session/sandbox.ts';
import type { GatewayConfig } from './config.ts';
import type { NodeAgent } from './node-agent.ts';
import type { StagePools } from './stage-pools.ts';

export type ControlListener = { readonly url: string; close(): Promise<void> };

const TEXT_FORMAT = 'text/plain; version=0.0.4; charset=utf-8';

type Parts = {
  readonly agent: NodeAgent;
  readonly engines: EnginePool;
  readonly pools: StagePools;
  readonly sandboxes: Sandboxes;
  readonly journal: CaptureJournal;
  readonly metrics: GatewayMetrics;
};

/**
 * The node's own face for operators: `/health`, `/metrics`, `/metrics/engines` (what the engines tell of themselves), `/status`. It is a listener apart from the proxy's, so no
 * sandbox can reach it, and read-only. Throws `setup_failed` for a certificate that cannot be used.
 */
export async function openControlListener(config: GatewayConfig, parts: Parts, log: Logger): Promise<ControlListener> {
  const { control_tls } = config;
  const files = control_tls === null ? null : { ...control_tls, ca: null };
  // Operators send small requests; a head or body that does not come must not hold a connection for ever.
  const app = fastify({
    logger: false,
    bodyLimit: 1024,
    requestTimeout: 10_000,
    ...(files === null ? {} : { https: readTls(files) }),
  }) as FastifyInstance;
  app.addHook('onRequest', async (request, reply) => {
    if (request.url === '/health' || config.token === null) return;
    if (!sameToken(request.headers.authorization, `Bearer ${config.token}`)) {
      const error = new FloeError('unauthorized', 'send the control token as Authorization: Bearer');
      await reply
        .code(error.status)
        .send({ error: { code: error.code, message: error.message, details: {}, retryable: false } });
    }
  });
  app.get('/health', async () => ({ status: 'ok', node_id: config.node_id }));
  app.get('/metrics', async (_, reply) => {
    takeMetrics(parts);
    return reply.type(parts.metrics.registry.contentType).send(await parts.metrics.registry.metrics());
  });
  app.get('/metrics/engines', async (_, reply) => reply.type(TEXT_FORMAT).send(await parts.engines.metrics()));
  app.get('/status', async () => ({
    node_id: config.node_id,
    pools: config.pools,
    dispatch_policy: parts.pools.policy,
    metrics: parts.pools.metrics(),
    starts: Object.fromEntries(parts.sandboxes.starts()),
    engines: parts.engines.info(),
    sessions: parts.agent.live().map((attempt) => attempt.progress()),
  }));
  const url = await app.listen({ host: config.control.host, port: config.control.port });
  const unfollow = files === null ? () => {} : followCertificate(app, files, log);
  return {
    url,
    close: () => {
      unfollow();
      return app.close();
    },
  };
}

function followCertificate(app: FastifyInstance, files: TlsFiles, log: Logger): () => void {
  return watchTls(
    files,
    systemClock,
    (material) => (app.server as unknown as TlsServer).setSecureContext(material),
    (error) => log.error({ error: error.message }, 'the changed certificate cannot be used; the one before it stays'),
  );
}

function takeMetrics({ pools, sandboxes, journal, metrics }: Parts): void {
  metrics.calls.setJournalBytes(journal.bytes);
  const now = pools.metrics();
  const { sizes } = pools;
  const set = (stage: string, state: string, value: number): void => metrics.stageSlots.set({ stage, state }, value);
  set('init', 'used', now.init_inflight);
  set('init', 'size', sizes.init);
  set('ready', 'used', now.ready_depth);
  set('ready', 'size', sizes.ready);
  set('run', 'used', now.run_inflight);
  set('run', 'size', sizes.run);
  set('postrun', 'used', now.postrun_inflight);
  set('postrun', 'waiting', now.postrun_queue_depth);
  set('postrun', 'size', sizes.postrun);
  for (const [backend, { starting, waiting }] of sandboxes.starts()) {
    metrics.runtimeStarts.set({ backend, state: 'starting' }, starting);
    metrics.runtimeStarts.set({ backend, state: 'waiting' }, waiting);
  }
}

/** Compares digests, so that neither length nor content shows in the time taken. */
function sameToken(given: string | undefined, wanted: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given ?? ''), digest(wanted));
}
