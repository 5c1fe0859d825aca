import { cpus } from 'node:os';
import { join } from 'node:path';
import { acquireLock, ensureWritableDir, parseAs, systemClock } from '@floe-rl/core';
import { evaluatorOfNodes, evaluatorRegistry } from '@floe-rl/evaluators';
import {
  createTaskCheck,
  type Gateway,
  type GatewayConfigInput,
  gatewayConfigSchema,
  harnessRegistry,
  startProcesses,
  startTracedGateway,
} from '@floe-rl/node';
import { type Logger, ServerMetrics, tracingFromEnvironment } from '@floe-rl/observe';
import {
  createRolloutServer,
  type ListenerUrls,
  type OpenStore,
  openStore,
  type RolloutConfigInput,
} from '@floe-rl/server';
import { loadBatchFilters } from './batch-filters.ts';
import { letHeapGrow } from './heap-growth.ts';
import { EMBEDDED_STORAGE, type Storage } from './storage.ts';
import { loadTokenTexts } from './token-texts.ts';

export type RunningServer = ListenerUrls & { close(): Promise<void> };

/**
 * Starts a rollout server in this process. Resolves when it accepts requests. Its data is in `storage`, by default in an embedded database
 * in `dir`. Tasks may name floe's own trace builders and those in `customBuilders`, which must also be installed on the nodes.
 */
export async function startServer(
  dir: string,
  config: RolloutConfigInput,
  log: Logger,
  customBuilders: readonly string[] = [],
  storage: Storage = EMBEDDED_STORAGE,
): Promise<RunningServer> {
  ensureWritableDir(dir, 'choose another data directory with --dir or $FLOE_HOME');
  letHeapGrow();
  // Locks the directory when it contains an embedded database, because only one server may use that. Several servers may share one
  // PostgreSQL.
  const unlock =
    storage.database === null
      ? await acquireLock(join(dir, 'server.lock'), `the server directory ${dir}`)
      : async () => {};
  try {
    const data = await openStore({
      dir,
      ...storage,
      clock: systemClock,
      notify: (notice) => log.warn({ dir }, notice),
    });
    return await openServer(data, config, log, { unlock, customBuilders });
  } catch (error) {
    await unlock();
    throw error;
  }
}

async function openServer(
  { store, blobs }: OpenStore,
  config: RolloutConfigInput,
  log: Logger,
  { unlock, customBuilders }: { unlock: () => Promise<void>; customBuilders: readonly string[] },
): Promise<RunningServer> {
  const closeData = async (): Promise<void> => {
    await blobs.close();
    await store.close();
  };
  const metrics = new ServerMetrics();
  const tracing = tracingFromEnvironment(process.env, 'floe-server', {}, { clock: systemClock, log });
  try {
    const evaluators = evaluatorRegistry(systemClock, {}, (config.evaluators ?? []).map(evaluatorOfNodes));
    const server = await createRolloutServer(config, {
      store,
      blobs,
      clock: systemClock,
      log,
      tracer: tracing.tracer,
      metricsRegistry: metrics,
      batchFilters: await loadBatchFilters(config.batch_filters ?? {}),
      tokenTexts: await loadTokenTexts(config.tokenizers ?? {}),
      usesFreshRuntime: evaluators.usesFreshRuntime,
      validateTask: createTaskCheck(harnessRegistry(), evaluators, { customBuilders, plugins: config.plugins ?? [] }),
    });
    metrics.observe(server);
    const urls = await server.listen();
    return {
      ...urls,
      async close() {
        await server.close();
        await tracing.close();
        await closeData();
        await unlock();
      },
    };
  } catch (error) {
    await closeData();
    throw error;
  }
}

/** Starts a gateway node in this process, and in child processes if it has several. Resolves when the node is registered with its server. */
export async function startNode(input: GatewayConfigInput, log: Logger): Promise<Gateway> {
  const config = parseAs(gatewayConfigSchema, input, 'gateway options');
  const { processes } = config;
  if (processes === 1) return startTracedGateway(config, log);
  const cores = cpus().length;
  if (processes > cores) log.warn({ processes, cores }, 'the node has more processes than the machine has cores');
  return startProcesses(config, { log });
}
