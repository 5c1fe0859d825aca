import { Channel, floeErrors, processPort } from '@floe-rl/core';
import { createLogger } from '@floe-rl/observe';
import type { Gateway } from '../node/gateway.ts';
import type { NodeReports } from '../node/node-reports.ts';
import { startTracedGateway } from '../node/traced-gateway.ts';
import type { ParentOperations, WorkerOperations, WorkerSetup } from './protocol.ts';

/*
 * The program of one of several processes of a node. It runs sessions as a node of one process does, and its parent makes the calls to the
 * server that concern the whole node.
 */

type Part = { readonly gateway: Gateway; readonly reports: NodeReports };

let part: Part | null = null;

function running(): Part {
  if (part === null) throw new Error('the process has not started');
  return part;
}

async function start({ config, index, count, instance, logLevel, unusedDirs }: WorkerSetup): Promise<Part> {
  const reported: NodeReports[] = [];
  const gateway = await startTracedGateway(config, createLogger('floe-gateway', logLevel).child({ process: index }), {
    worker: {
      instance,
      count,
      calls: {
        register: (description, signal) => parent.call('register', description, { signal, awaitsPeer: true }),
        heartbeat: (beat, signal, replySeconds) =>
          parent.call('heartbeat', { beat, replySeconds }, { signal, awaitsPeer: true }),
        lease: (request, signal) => parent.call('lease', request, { signal, awaitsPeer: true }),
      },
      unusedDirs,
      onReports: (reports) => void reported.push(reports),
    },
  });
  const [reports] = reported;
  if (reports === undefined) throw new Error('the gateway has no reports');
  void gateway.takenOver.then((error) => parent.call('takenOver', floeErrors.encode(error))).catch(() => {});
  return { gateway, reports };
}

const operations: WorkerOperations = {
  start: async (setup) => {
    part = await start(setup);
    return { proxyOrigin: part.gateway.proxyOrigin };
  },
  reports: async () => {
    const { reports } = running();
    const registry = await reports.registry();
    return { status: await reports.status(), metrics: await registry.getMetricsAsJSON() };
  },
  engineMetrics: () => running().reports.engineMetrics(),
  recovered: () => running().gateway.recovered(),
  drain: () => running().gateway.drain(),
  close: async () => part?.gateway.close(),
};

const parent: Channel<ParentOperations> = new Channel<ParentOperations>(processPort(process), { operations });

// The parent decides when the process ends. A signal to all processes of the node must not end it before.
process.on('SIGINT', () => {});
process.on('SIGTERM', () => {});
// The spawn helper of this process then ends its sandboxes, and the next gateway recovers what was recorded.
process.on('disconnect', () => process.exit(0));
