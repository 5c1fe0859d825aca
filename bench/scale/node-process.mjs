// A gateway node whose sandboxes, agents and evaluators only take time: everything else is what a real node runs.
import { NodeApi } from '../../dist/client/node-api.js';
import { sleep, systemClock } from '../../dist/core/clock.js';
import { newId } from '../../dist/core/ids.js';
import { enginePoolsOf } from '../../dist/engines/pool/managed-engine-pools.js';
import { NodeAgent } from '../../dist/gateway/node/node-agent.js';
import { NodeEngines } from '../../dist/gateway/node/node-engines.js';
import { StagePools } from '../../dist/gateway/node/stage-pools.js';
import { buildResult } from '../../dist/gateway/session/postrun-stage.js';
import { Sandboxes, StartLimits } from '../../dist/gateway/session/sandbox.js';
import { runSession } from '../../dist/gateway/session/session-runner.js';
import { shellHarness } from '../../dist/harnesses/shell.js';
import { silentLogger } from '../../dist/observe/log.js';
import { createGatewayMetrics } from '../../dist/observe/metrics.js';
import { builderRegistry } from '../../dist/tokens/builders/registry.js';

const ENDED_WELL = {
  exitCode: 0,
  signal: null,
  stdout: '',
  stderr: '',
  droppedBytes: 0,
  killedBy: null,
  wallMs: 1,
};
/** What packing says of a sandbox that the agent left empty. */
const NOTHING_LEFT = { ...ENDED_WELL, stdout: 'empty 1\n' };

const { url, nodeId, pools: sizes, policy = 'pipeline', mode } = JSON.parse(process.argv[2]);
const clock = systemClock;
const pools = new StagePools(sizes, policy);
const builders = builderRegistry();
const engines = enginePoolsOf([], { clock });
const startLimits = new StartLimits({});

const proxy = {
  origin: 'http://127.0.0.1:1',
  listen: async () => {},
  maxModelLen: () => null,
  open: async ({ sessionId, attempt }) => ({
    sessionId,
    attempt,
    completions: () => [],
    completionCount: 1,
    turns: 1,
    sampledTokens: 1,
    requests: 1,
    runningCalls: 0,
    lastError: null,
    close: async () => {},
  }),
  close: async () => {},
};

/** A sandbox, an agent and an evaluator that take as long as they are told to, and do nothing. */
function depsOf({ init_ms, run_ms, postrun_ms }) {
  const runtime = {
    backend: 'local',
    isolation: 'none',
    paths: { workdir: '/work', home: '/home', artifacts: '/artifacts', logs: '/logs' },
    proxyOrigin: proxy.origin,
    async exec({ withProxy }, signal) {
      // The agent is the only one who is shown the proxy.
      if (withProxy !== true) return NOTHING_LEFT;
      await sleep(clock, run_ms, signal);
      return ENDED_WELL;
    },
    writeFiles: async () => {},
    uploadDir: async () => {},
    readFile: async () => null,
    stop: async () => {},
  };
  const provider = {
    backend: 'local',
    probe: async () => null,
    async start(_, signal) {
      await sleep(clock, init_ms, signal);
      return runtime;
    },
  };
  const evaluator = {
    name: 'session_completed',
    checkConfig: () => {},
    async evaluate(_, signal) {
      await sleep(clock, postrun_ms, signal);
      return { reward: 1, details: {} };
    },
  };
  return {
    nodeId,
    clock,
    log: silentLogger,
    pools,
    recordStart: async () => {},
    assertLease: () => {},
    awaitsEngine: () => false,
    pendingCallFailure: () => null,
    stallSeconds: null,
    builders,
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
    evaluators: { names: () => [evaluator.name], check: () => {}, get: () => evaluator },
    socketDir: '/tmp',
    uploadRoots: [],
  };
}

/** Through all stages, in each of which the time that the task's metadata gives goes by. */
const staged = (attempt) => runSession(attempt, depsOf(attempt.lease.task.metadata));

/** A harness that does nothing: a result at once, through the same pools. */
async function noop(attempt) {
  const leaveInit = await pools.enterInit(attempt.signal);
  attempt.enter('INIT');
  attempt.enter('READY');
  const leaveRun = await pools.enterRun(leaveInit, attempt.signal);
  attempt.enter('RUNNING');
  leaveRun();
  const leavePostrun = await pools.enterPostrun(attempt.signal);
  attempt.enter('POSTRUN');
  try {
    return await buildResult(
      attempt,
      { reward: 1, details: {} },
      {
        runtime: null,
        freshRuntime: null,
        evaluator: null,
        completions: [],
        artifacts: null,
        builders,
        engines,
        nodeId,
      },
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
  },
  leaseWaitSeconds: 20,
  heartbeatSeconds: 5,
  runSession: mode === 'noop' ? noop : staged,
  onDelivered: () => {},
});
await agent.start();
process.send('started');

process.on('message', async (message) => {
  if (message === 'usage') {
    const { user, system } = process.cpuUsage();
    process.send({ cpuMs: (user + system) / 1000, ...pools.metrics() });
  }
  if (message === 'close') {
    await agent.close();
    await api.close();
    process.exit(0);
  }
});
process.on('disconnect', () => process.exit(0));
