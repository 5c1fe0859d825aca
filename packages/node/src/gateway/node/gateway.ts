import { AgentHost, agentEnv, checkPythonPlugins } from '@floe-rl/agents';
import {
  CaptureJournal,
  type CompletionJournal,
  createEnginePools,
  createProxy,
  type EngineNotice,
  type EnginePools,
  type ModelProxy,
} from '@floe-rl/capture';
import { NodeApi } from '@floe-rl/client';
import {
  asFloeError,
  type Clock,
  type FloeError,
  MIB,
  newId,
  passThroughTracer,
  systemClock,
  type Tracer,
  undoAll,
} from '@floe-rl/core';
import { evaluatorRegistry, mathChecker } from '@floe-rl/evaluators';
import { createGatewayMetrics, type GatewayMetrics, type Logger } from '@floe-rl/observe';
import {
  allowedSource,
  createRuntimeProviders,
  createSpawner,
  HELPER_NAME,
  labelOf,
  nodeImages,
  type Owner,
} from '@floe-rl/sandbox';
import { harnessInstallDir } from '../../harnesses/install/install.ts';
import { mathVerifyPython } from '../../harnesses/install/math-verify.ts';
import { harnessRegistry } from '../../harnesses/registry.ts';
import { openSessionEgress } from '../egress/session-egress.ts';
import { AttemptRecords } from '../recovery/attempt-records.ts';
import { Recovery } from '../recovery/recovery.ts';
import { openStateDir, type ReapedCounts } from '../recovery/state-dir.ts';
import { reapUnusedDirs, withUnusedDirs } from '../recovery/worker-dirs.ts';
import { PreparedSnapshots } from '../session/prepared-snapshots.ts';
import { PrewarmedRuntimes } from '../session/prewarmed-runtimes.ts';
import { proxySocketsIn } from '../session/proxy-sockets.ts';
import { type ReusedOptions, ReusedRuntimes } from '../session/reused-runtimes.ts';
import { Sandboxes, StartLimits } from '../session/sandbox.ts';
import { SandboxStops } from '../session/sandbox-stops.ts';
import { runSession } from '../session/session-runner.ts';
import { sandboxNames } from '../session/session-sandboxes.ts';
import type { GatewayConfig } from './config.ts';
import { openControlListener } from './control-listener.ts';
import { CpuMeter } from './cpu-meter.ts';
import { DiskWatch } from './disk-watch.ts';
import { Janitor } from './janitor.ts';
import { judgeEngine } from './judge-engine.ts';
import { NodeAgent, type NodeCalls } from './node-agent.ts';
import { NodeEngines } from './node-engines.ts';
import { type NodeReports, nodeReports } from './node-reports.ts';
import { ownAddress } from './own-address.ts';
import { loadBuilders, loadEngines, loadEvaluators, loadPostRunHooks } from './plugins.ts';
import { StagePools } from './stage-pools.ts';

export type GatewayDeps = {
  readonly log: Logger;
  readonly clock?: Clock;
  /**
   * Records the tracing spans of sessions. By default no span is recorded, and the trace context of a task is passed on to other processes.
   */
  readonly tracer?: Tracer;
  /** Parts for a process that runs only some of the node's sessions. By default the process is the whole node. */
  readonly worker?: WorkerDeps;
};

/** Parts of a process that is one of several processes of a node. A node of one process does not have them. */
type WorkerDeps = {
  /** Id of the node's process towards the server, which all processes of the node share. */
  readonly instance: string;
  /** Number of processes of the node. */
  readonly count: number;
  /** The calls to the server that the node makes for all its processes. */
  readonly calls: Pick<NodeCalls, 'register' | 'heartbeat' | 'lease'>;
  /** State directories that no process uses now. Recovery includes the attempts that have records in them. */
  readonly unusedDirs: readonly string[];
  /** Receives what the process reports to operators, instead of a control listener. */
  readonly onReports: (reports: NodeReports) => void;
};

/** A running gateway, which is a node. */
export type Gateway = {
  readonly nodeId: string;
  /** Empty for one of several processes, which has no control listener. */
  readonly controlUrl: string;
  readonly proxyOrigin: string;
  /** The proxy listeners of all processes of the node. */
  readonly proxyOrigins: readonly string[];
  /** Resolves when a newer process has registered with this node's id, or all child processes have ended. After this, the only permitted call is `close`. */
  readonly takenOver: Promise<FloeError>;
  /**
   * Resolves when the server has accepted or refused the partial result of every attempt that earlier processes left unfinished in the
   * state directory.
   */
  recovered(): Promise<void>;
  /** Stops leasing sessions. Resolves when the results of all live sessions are delivered. */
  drain(): Promise<void>;
  /**
   * Stops every session, so that each returns to the queue of the server, and then closes all other parts of the node. May be called twice.
   */
  close(): Promise<void>;
};

/**
 * Starts a node. When the promise resolves, the engines are probed, the listeners and the helper process that starts sandboxes run, and the
 * node is registered at the rollout server. When it rejects (with `setup_failed`, `engine_unavailable` or the error of a refused
 * registration), everything that was started has ended.
 */
export async function startGateway(config: GatewayConfig, deps: GatewayDeps): Promise<Gateway> {
  const cleanups: (() => Promise<unknown>)[] = [];
  const close = (): Promise<void> => undoAll(cleanups);
  try {
    return await assemble(config, deps, cleanups, close);
  } catch (error) {
    await close();
    throw error;
  }
}

async function assemble(
  config: GatewayConfig,
  deps: GatewayDeps,
  cleanups: (() => Promise<unknown>)[],
  close: () => Promise<void>,
): Promise<Gateway> {
  const { clock = systemClock, tracer = passThroughTracer, worker } = deps;
  const log = deps.log.child({ node_id: config.node_id });
  const state = await openStateDir(config.state_dir, clock);
  cleanups.push(() => state.release());
  const unusedDirs = worker?.unusedDirs ?? (await reapUnusedDirs(config.state_dir, 1, clock));
  const builders = await loadBuilders(config.builders);
  const customEvaluators = await loadEvaluators(config.evaluators);
  const kinds = await loadEngines(config.plugins.engines);
  const hooks = await loadPostRunHooks(config.post_run_hooks, clock);
  const host = config.host ?? (await ownAddress(config.server_url));

  const instance = worker?.instance ?? newId('proc', clock);
  const owner: Owner = { id: state.ownerId, instance };
  const spawner = await createSpawner(labelOf(owner, HELPER_NAME));
  cleanups.push(() => spawner.close());
  const notice: EngineNotice = (message, details) => log.warn(details, message);
  const engines: EnginePools = await createEnginePools(config.engines, {
    clock,
    notice,
    policy: config.engine_policy,
    locality: config.engine_locality,
    kinds,
    place: config.place,
    host,
  });
  cleanups.push(() => engines.close());
  const metrics = createGatewayMetrics();
  const { calls } = metrics;
  const journal = await CaptureJournal.open(state.journal, { clock, mode: config.journal, onSync: calls.recordSync });
  cleanups.push(() => journal.close());
  const records = await AttemptRecords.open(state.attempts);
  const disk = new DiskWatch(config.state_dir);
  const proxy: ModelProxy = createProxy({
    engines,
    journal: fenced(journal, disk, () => agent),
    clock,
    notice,
    observer: calls.recordCall,
  });
  await proxy.listen(config.proxy);
  cleanups.push(() => proxy.close());

  const prepared = new PreparedSnapshots({
    maxCount: config.prepared.max_count,
    maxBytes: config.prepared.max_mb * MIB,
    onStart: calls.recordPrepared,
  });
  cleanups.push(() => prepared.close());
  const sandboxes = new Sandboxes({
    prepared,
    providers: createRuntimeProviders({
      spawner,
      clock,
      stateDir: state.sessions,
      owner,
      allowHostNetwork: config.allow_host_network,
      dockerSocket: config.docker_socket,
      images: nodeImages(config.images, clock),
      podmanSocket: config.podman_socket ?? undefined,
      apptainerCommand: config.apptainer_command,
    }),
    defaultBackend: config.default_backend,
    allowLocal: config.allow_local,
    uploadRoots: config.upload_roots,
    startLimits: new StartLimits(config.start_limits, config.start_rates, clock),
    observer: { clock, started: calls.recordStart, killed: calls.recordKill },
  });
  const sockets = proxySocketsIn(state.sockets);
  const openEgress: ReusedOptions['openEgress'] = (spec, socketPath) =>
    openSessionEgress(spec, config.egress_hosts, { socketPath, log, names: {} });
  const prewarmed = new PrewarmedRuntimes({
    ...{ clock, log, sockets, sandboxes, openEgress },
    count: config.prewarmed.count,
    maxMb: config.prewarmed.max_mb,
    idleMs: config.prewarmed.idle_seconds * 1000,
    onTake: calls.recordPrewarmed,
  });
  cleanups.push(() => prewarmed.close());
  const reused = new ReusedRuntimes({
    ...{ clock, log, sockets, openEgress },
    maxCount: config.reused_runtimes.max_count,
    maxMb: config.reused_runtimes.max_mb,
    idleMs: config.reused_runtimes.idle_seconds * 1000,
    onEvent: calls.recordReuse,
  });
  cleanups.push(() => reused.close());
  const { background_stops } = config;
  const stops = new SandboxStops({ maxCount: background_stops.max_count, maxMb: background_stops.max_mb });
  cleanups.push(() => stops.close());
  for (const { problem, remedy } of await sandboxes.weaknesses()) log.warn({ remedy }, problem);
  const pools = new StagePools(config.pools, config.dispatch_policy);
  const { services, mcp_servers: mcpServers, env, processes, blocked_seconds, engines: _, ...modules } = config.plugins;
  // The label lets the next process of this node end the plugins' processes if this process is killed while their code blocks.
  const pluginEnv = { ...env, ...labelOf(owner, HELPER_NAME) };
  await checkPythonPlugins(modules.python, agentEnv(pluginEnv), clock);
  const cpu = new CpuMeter();
  const agentHost = new AgentHost({
    ...{ clock, modules, services, mcpServers, processes },
    env: pluginEnv,
    blockedMs: blocked_seconds * 1000,
  });
  cleanups.push(() => agentHost.close());
  const harnesses = harnessRegistry();
  const math = mathChecker(async () => config.math_python ?? (await mathVerifyPython(config.harness_dir)));
  cleanups.push(() => math.close());
  const hostSource = (path: string): Promise<string> => allowedSource(path, config.upload_roots);
  const evaluators = evaluatorRegistry(clock, { math, judge: judgeEngine(engines), hostSource }, customEvaluators);
  const api = new NodeApi({
    url: config.server_url,
    token: config.token,
    tls: config.server_tls ?? undefined,
    nodeId: config.node_id,
    instance,
    clock,
  });
  cleanups.push(() => api.close());
  const nodeCalls: NodeCalls =
    worker === undefined
      ? api
      : {
          ...worker.calls,
          nodeId: api.nodeId,
          deliverResult: (result, signal) => api.deliverResult(result, signal),
          deliverPartial: (partial, signal) => api.deliverPartial(partial, signal),
        };
  const agent: NodeAgent = new NodeAgent({
    api: nodeCalls,
    processes: worker?.count ?? 1,
    clock,
    log,
    tracer,
    metrics,
    pools,
    engines: new NodeEngines({
      pool: engines,
      own: config.engines,
      log,
      onChange: () => agent.reportSoon(),
    }),
    registration: {
      host,
      dispatch_policy: pools.policy,
      gateway_url: null,
      max_init_workers: pools.sizes.init,
      ready_size: pools.sizes.ready,
      max_run_workers: pools.sizes.run,
      max_postrun_workers: pools.sizes.postrun,
      memory_mb: config.memory_mb,
    },
    leaseWaitSeconds: config.lease_wait_seconds,
    heartbeatSeconds: config.heartbeat_seconds,
    undeliveredBytes: config.undelivered_mb * MIB,
    problem: () => disk.problem(),
    runSession: (attempt) =>
      runSession(attempt, {
        recordStart: (lease) =>
          disk.watch(
            records.begin({
              node_id: config.node_id,
              instance,
              owner_id: owner.id,
              begun_ms: clock.nowMs(),
              lease,
            }),
          ),
        assertLease: (live) => agent.assertLease(live),
        awaitsEngine: (sessionId) => engines.isWaiting(sessionId),
        stallSeconds: config.stall_seconds,
        sandboxes,
        prewarmed,
        reused,
        stops,
        nodeId: config.node_id,
        cpu,
        clock,
        log,
        pools,
        proxy,
        harnesses,
        harnessInstallDir: (adapter) => harnessInstallDir(adapter, config.harness_dir),
        evaluators,
        agentHost,
        builders,
        hooks,
        engines,
        sockets,
        egressHosts: config.egress_hosts,
        uploadRoots: config.upload_roots,
      }),
    onDelivered: (lease) => {
      // The attempt's record is removed before its recorded completions, because recovery ignores completions of an attempt without a
      // record.
      records
        .end(lease)
        .then(() => journal.release(lease.session_id, lease.attempt))
        .catch((error: unknown) => {
          const { task_id, session_id, attempt, epoch } = lease;
          const names = { task_id, session_id, attempt, epoch };
          log.warn(
            { ...names, error: asFloeError(error).message },
            'the records of a delivered attempt cannot be removed',
          );
        });
    },
  });
  const { quarantine: quarantineDir } = state;
  const recovery = new Recovery({
    clock,
    log,
    builders,
    engines,
    nodeId: config.node_id,
    ...(await withUnusedDirs({ records: records.earlierFiles, segments: journal.earlierSegments }, unusedDirs)),
    quarantineDir,
    deliver: (partial, signal) => api.deliverPartial(partial, signal),
    onRecovered: (outcome) => metrics.recovered.inc({ outcome }),
    onDamaged: (count) => metrics.damaged.inc(count),
  });
  cleanups.push(() => recovery.close());
  const janitor = new Janitor({
    clock,
    log,
    owner,
    sessionsDir: state.sessions,
    expectedNames: () =>
      new Set([
        ...agent.live().flatMap(sandboxNames),
        ...prepared.sandboxes,
        ...reused.sandboxes,
        ...stops.sandboxes,
        ...prewarmed.sandboxes,
      ]),
    onLeaked: (count) => metrics.leaked.inc({ when: 'running' }, count),
  });
  janitor.start();
  cleanups.push(() => janitor.close());
  reportReaped(state.reaped, metrics, log);
  const reports = nodeReports(config, { agent, engines, pools, sandboxes, journal, metrics });
  worker?.onReports(reports);
  const control = worker === undefined ? await openControlListener(config, reports, { clock, log }) : null;
  cleanups.push(async () => control?.close());
  await agent.start();
  cleanups.push(() => agent.close());
  // Recovery of earlier sessions starts last, so that new sessions do not wait for it.
  recovery.start();
  return {
    nodeId: config.node_id,
    controlUrl: control?.url ?? '',
    proxyOrigin: proxy.origin,
    proxyOrigins: [proxy.origin],
    takenOver: agent.takenOver,
    recovered: () => recovery.done,
    drain: async () => void (await Promise.all([agent.drain(), reused.drain(), prewarmed.drain()])),
    close,
  };
}

/**
 * Wraps the capture journal so that it refuses to record a completion when the lease of its attempt expired while this process was
 * suspended. The proxy then does not send the reply to the agent.
 */
function fenced(journal: CompletionJournal, disk: DiskWatch, agent: () => NodeAgent): CompletionJournal {
  return {
    append: async (completion, earlier) => {
      const attempt = agent().findAttempt(completion.sessionId, completion.attempt);
      if (attempt !== undefined) agent().assertLease(attempt);
      return await disk.watch(journal.append(completion, earlier));
    },
  };
}

/** Logs and counts the processes and files of an earlier gateway process that were removed when this process started. */
export function reportReaped(reaped: ReapedCounts, metrics: GatewayMetrics, log: Logger): void {
  const { processes, cgroups, mounts, directories, sockets, survivors } = reaped;
  const total = processes + cgroups + mounts + directories + sockets + survivors.length;
  if (total === 0) return;
  metrics.leaked.inc({ when: 'start' }, total);
  log.warn({ ...reaped }, 'ended the leftover processes and files of an earlier gateway process');
}
