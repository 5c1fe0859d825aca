// Runs a gateway node whose sandboxes, agents and evaluators do no work and only wait. All other code is the code of a real node. The only
// argument is JSON of NodeArguments.

import { builderRegistry, type ModelProxy, type ProxySession } from '@floe-rl/capture';
import { NodeApi } from '@floe-rl/client';
import { FloeError, newId, sleep, systemClock } from '@floe-rl/core';
import { type Evaluator, NO_EVALUATION } from '@floe-rl/evaluators';
import { Sandboxes, StartLimits } from '@floe-rl/node';
import { createGatewayMetrics, silentLogger } from '@floe-rl/observe';
import { enginePoolsOf } from '#capture/engines/pool/managed-engine-pools';
import { CallFailures } from '#capture/proxy/session/call-failures';
import { NodeAgent } from '#node/gateway/node/node-agent';
import { NodeEngines } from '#node/gateway/node/node-engines';
import { StagePools } from '#node/gateway/node/stage-pools';
import type { Attempt } from '#node/gateway/session/attempt';
import { buildSession, encodeResult } from '#node/gateway/session/postrun-stage';
import { PrewarmedRuntimes } from '#node/gateway/session/prewarmed-runtimes';
import type { ProxySockets } from '#node/gateway/session/proxy-sockets';
import { ReusedRuntimes } from '#node/gateway/session/reused-runtimes';
import { SandboxStops } from '#node/gateway/session/sandbox-stops';
import { type RunnerDeps, runSession } from '#node/gateway/session/session-runner';
import { shellHarness } from '#node/harnesses/shell';
import { type ExecResult, NO_SNAPSHOTS, type Runtime, type RuntimeProvider } from '#sandbox/api/runtime';
import { cpuUs, serveBench } from '../child.ts';
import type { NodeArguments } from './processes.ts';

const SUCCESS: ExecResult = {
  exitCode: 0,
  signal: null,
  stdout: '',
  stderr: '',
  droppedBytes: 0,
  killedBy: null,
  wallMs: 1,
};
/** Output of the script that collects artifacts when the agent wrote no artifacts. */
const NO_ARTIFACTS: ExecResult = { ...SUCCESS, stdout: 'empty 1\n' };

/** Duration of each stage of a session in ms, as stated in the task's metadata. */
type StageTimes = { readonly init_ms: number; readonly run_ms: number; readonly postrun_ms: number };

const { url, nodeId, pools: sizes, policy = 'pipeline', mode } = JSON.parse(process.argv[2] ?? '') as NodeArguments;
const clock = systemClock;
const pools = new StagePools(sizes, policy);
const builders = builderRegistry();
const engines = enginePoolsOf([], { clock });
const startLimits = new StartLimits({});

/** Returns a proxy session for an agent that makes no model calls. It has only the members that floe's session runner uses. */
function emptySession({ sessionId, attempt }: { sessionId: string; attempt: number }): ProxySession {
  const session = {
    sessionId,
    attempt,
    completions: () => [],
    completionCount: 1,
    turns: 1,
    sampledTokens: 1,
    requests: 1,
    runningCalls: 0,
    failures: new CallFailures(),
    pendingFailure: () => null,
    close: async () => {},
  };
  return session as unknown as ProxySession;
}

const proxy: ModelProxy = {
  origin: 'http://127.0.0.1:1',
  listen: async () => {},
  maxModelLen: () => null,
  open: async (spec) => emptySession(spec),
  close: async () => {},
};

/** Returns dependencies for floe's session runner. Their sandbox, agent and evaluator only wait for the given times. */
function depsOf({ init_ms, run_ms, postrun_ms }: StageTimes): RunnerDeps {
  const runtime: Runtime = {
    backend: 'local',
    isolation: 'none',
    paths: { workdir: '/work', home: '/home', artifacts: '/artifacts', logs: '/logs' },
    proxyOrigin: proxy.origin,
    mcpCommand: [],
    async exec({ withProxy }, signal) {
      // Only the agent is executed with access to the proxy. Any other command is the script that collects artifacts.
      if (withProxy !== true) return NO_ARTIFACTS;
      await sleep(clock, run_ms, signal);
      return SUCCESS;
    },
    writeFiles: async () => {},
    uploadDir: async () => {},
    readFile: async () => null,
    openTools: () => Promise.reject(new FloeError('unsupported', 'openTools')),
    snapshot: () => Promise.reject(new FloeError('unsupported', 'snapshot')),
    restore: () => Promise.reject(new FloeError('unsupported', 'restore')),
    asRoot: () => runtime,
    stop: async () => {},
  };
  const provider: RuntimeProvider = {
    backend: 'local',
    probe: async () => null,
    describe: async () => ({
      isolation: 'without isolation',
      weaknesses: [],
      capabilities: {
        isolation: 'none',
        limits: null,
        networks: [],
        snapshots: NO_SNAPSHOTS,
        privileges: 'any',
      },
    }),
    async start(_, signal) {
      await sleep(clock, init_ms, signal);
      return runtime;
    },
  };
  const evaluator: Evaluator = {
    name: 'session_completed',
    freshRuntimeByDefault: false,
    checkConfig: () => {},
    async evaluate(_, signal) {
      await sleep(clock, postrun_ms, signal);
      return { reward: 1, details: {} };
    },
  };
  const sockets: ProxySockets = {
    pathOf: (name) => `/tmp/${name}`,
    createDirectory: async () => {},
    removeDirectory: async () => {},
  };
  return {
    nodeId,
    clock,
    log: silentLogger,
    pools,
    recordStart: async () => {},
    assertLease: () => {},
    awaitsEngine: () => false,
    stallSeconds: null,
    cpu: { take: () => 0 },
    agentHost: { run: () => Promise.reject(new Error('no session here has a floe agent')) },
    builders,
    hooks: [],
    engines,
    proxy,
    sandboxes: new Sandboxes({
      providers: new Map([['local', provider]]),
      defaultBackend: 'local',
      uploadRoots: [],
      allowLocal: true,
      startLimits,
    }),
    harnesses: new Map([['shell', shellHarness]]),
    harnessInstallDir: async () => null,
    evaluators: { names: () => [evaluator.name], check: () => {}, get: () => evaluator, usesFreshRuntime: () => false },
    egressHosts: [],
    sockets,
    prewarmed: new PrewarmedRuntimes({
      ...{ clock, log: silentLogger, count: 0, maxMb: 0, idleMs: 0 },
      sockets,
      sandboxes: {
        awaitPermit: () => Promise.reject(new FloeError('unsupported', 'awaitPermit')),
        start: () => Promise.reject(new FloeError('unsupported', 'start')),
      },
      openEgress: async () => null,
    }),
    stops: new SandboxStops({ maxCount: 0, maxMb: 0 }),
    reused: new ReusedRuntimes({
      ...{ clock, log: silentLogger, sockets, maxCount: 0, maxMb: 0, idleMs: 0 },
      openEgress: async () => null,
    }),
    uploadRoots: [],
  };
}

/** Runs a session through all stages with floe's session runner. Each stage lasts as long as the task's metadata states. */
function runStaged(attempt: Attempt): ReturnType<typeof runSession> {
  return runSession(attempt, depsOf(attempt.lease.task.metadata as StageTimes));
}

/** Runs a session through the stage pools without doing any work in the stages. */
async function runNoop(attempt: Attempt): ReturnType<typeof runSession> {
  const leaveInit = await pools.enterInit(attempt.signal);
  attempt.enter('INIT');
  attempt.enter('READY');
  const leaveRun = await pools.enterRun(leaveInit, attempt.signal);
  attempt.enter('RUNNING');
  leaveRun();
  const leavePostrun = await pools.enterPostrun(attempt.signal);
  attempt.enter('POSTRUN');
  try {
    return encodeResult(
      attempt,
      await buildSession(attempt, { builders, completions: [], engines }),
      { ...NO_EVALUATION, reward: 1, dropped: null },
      { completions: [], engines, artifacts: null, egress: null, nodeId },
    );
  } finally {
    leavePostrun();
  }
}

const api = new NodeApi({ url, token: null, nodeId, instance: newId('proc', clock), clock });
const agent = new NodeAgent({
  api,
  clock,
  log: silentLogger,
  metrics: createGatewayMetrics(),
  pools,
  engines: new NodeEngines({ pool: engines, own: [], log: silentLogger, onChange: () => agent.reportSoon() }),
  registration: {
    host: null,
    dispatch_policy: policy,
    gateway_url: null,
    max_init_workers: pools.sizes.init,
    ready_size: pools.sizes.ready,
    max_run_workers: pools.sizes.run,
    max_postrun_workers: pools.sizes.postrun,
    memory_mb: null,
  },
  leaseWaitSeconds: 20,
  heartbeatSeconds: 5,
  runSession: mode === 'noop' ? runNoop : runStaged,
  onDelivered: () => {},
});
await agent.start();
serveBench({}, { usage: () => ({ cpuMs: cpuUs() / 1000, ...pools.metrics() }) }, async () => {
  await agent.close();
  await api.close();
});
