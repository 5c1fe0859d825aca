import { builderRegistry, type ProxySession, type ProxySessionSpec } from '@floe-rl/capture';
import { FloeError, raceAbort, VirtualClock } from '@floe-rl/core';
import { leaseSchema, runtimeSpecSchema, type TaskRequestInput } from '@floe-rl/core/schema';
import type { Evaluator, PostRunHook } from '@floe-rl/evaluators';
import { silentLogger } from '@floe-rl/observe';
import { CallFailures } from '../../../capture/src/proxy/session/call-failures.ts';
import { type ExecResult, NO_SNAPSHOTS, type Runtime, type StartRequest } from '../../../sandbox/src/api/runtime.ts';
import { StagePools } from '../../src/gateway/node/stage-pools.ts';
import { Attempt } from '../../src/gateway/session/attempt.ts';
import { PrewarmedRuntimes } from '../../src/gateway/session/prewarmed-runtimes.ts';
import type { ProxySockets } from '../../src/gateway/session/proxy-sockets.ts';
import { ReusedRuntimes } from '../../src/gateway/session/reused-runtimes.ts';
import { Sandboxes, StartLimits } from '../../src/gateway/session/sandbox.ts';
import { SandboxStops } from '../../src/gateway/session/sandbox-stops.ts';
import type { RunnerDeps } from '../../src/gateway/session/session-runner.ts';
import { shellHarness } from '../../src/harnesses/shell.ts';

export const ENDED_WELL: ExecResult = {
  exitCode: 0,
  signal: null,
  stdout: '',
  stderr: '',
  droppedBytes: 0,
  killedBy: null,
  wallMs: 1,
};

/** Result of the command that packs artifacts in a sandbox without artifacts. */
const NO_ARTIFACTS: ExecResult = { ...ENDED_WELL, stdout: 'empty 1\n' };

/** Returns a promise that never resolves. It rejects with the reason of `signal` when `signal` aborts. */
export function untilAborted(signal: AbortSignal): Promise<never> {
  return raceAbort(new Promise<never>(() => {}), signal);
}

/** Paths of sockets in directories that are only recorded, in `directories`. */
export function fakeSockets(directories = new Set<string>()): ProxySockets {
  return {
    pathOf: (name) => `/tmp/${name}`,
    createDirectory: async (path) => void directories.add(path),
    removeDirectory: async (path) => void directories.delete(path),
  };
}

/**
 * Fakes that a test uses instead of the default ones, for an attempt, its sandbox and its proxy session. Each default fake succeeds without
 * doing anything.
 */
export type BenchParts = {
  readonly task?: Partial<TaskRequestInput>;
  readonly startLimit?: number;
  readonly awaitsEngine?: () => boolean;
  readonly recordStart?: () => Promise<void>;
  /** Maximum time that a stage may make no progress, in seconds. Default: no limit. */
  readonly stallSeconds?: number;
  /** Starts the sandbox of the agent or of the evaluator. By default all commands in the sandbox succeed. */
  readonly start?: (purpose: 'agent' | 'eval', request: StartRequest, signal: AbortSignal) => Promise<Runtime>;
  readonly exec?: (signal: AbortSignal) => Promise<ExecResult>;
  /** Runs the command that packs the artifacts in the sandbox. By default there are no artifacts. */
  readonly pack?: (signal: AbortSignal) => Promise<ExecResult>;
  /** Reads the packed archive from the sandbox. By default there is none. */
  readonly readFile?: Runtime['readFile'];
  readonly session?: Partial<ProxySession>;
  readonly openSession?: (spec: ProxySessionSpec) => Promise<ProxySession>;
  readonly evaluate?: Evaluator['evaluate'];
  /** Checks the task's evaluator on the node. By default it is accepted. */
  readonly checkEvaluator?: () => void;
  readonly hooks?: readonly PostRunHook[];
};

export type Bench = {
  readonly attempt: Attempt;
  readonly deps: RunnerDeps;
  readonly clock: VirtualClock;
  /** The sandboxes that were started and not yet stopped. */
  readonly alive: Set<Runtime>;
};

export function runtimeOf(
  exec: (signal: AbortSignal) => Promise<ExecResult>,
  alive: Set<Runtime>,
  parts: Pick<BenchParts, 'pack' | 'readFile'> = {},
): Runtime {
  const { pack = async () => NO_ARTIFACTS, readFile = async () => null } = parts;
  const runtime: Runtime = {
    backend: 'local',
    isolation: 'none',
    paths: { workdir: '/work', home: '/home', artifacts: '/artifacts', logs: '/logs' },
    proxyOrigin: 'http://127.0.0.1:1',
    mcpCommand: [],
    // Two kinds of commands run here. The agent's command uses the proxy; the command that packs artifacts does not.
    exec: ({ withProxy }, signal) => (withProxy === true ? exec(signal) : pack(signal)),
    writeFiles: async () => {},
    uploadDir: async () => {},
    readFile,
    openTools: () => Promise.reject(new FloeError('unsupported', 'openTools')),
    snapshot: () => Promise.reject(new FloeError('unsupported', 'snapshot')),
    restore: () => Promise.reject(new FloeError('unsupported', 'restore')),
    asRoot: () => runtime,
    stop: async () => void alive.delete(runtime),
  };
  alive.add(runtime);
  return runtime;
}

/** Creates an attempt with a virtual clock and with fakes of everything that it uses. `parts` replaces some of the fakes. */
export function bench(parts: BenchParts = {}): Bench {
  const clock = new VirtualClock();
  const alive = new Set<Runtime>();
  const exec = parts.exec ?? (async () => ENDED_WELL);
  const session = {
    sessionId: 'ses_1',
    attempt: 1,
    completions: () => [],
    completionCount: 1,
    turns: 1,
    sampledTokens: 1,
    requests: 1,
    failures: new CallFailures(),
    pendingFailure: () => null,
    runningCalls: 0,
    close: async () => {},
    ...parts.session,
  } as ProxySession;
  const lease = leaseSchema.parse({
    session_id: 'ses_1',
    task_id: 'tsk_1',
    sample_index: 0,
    attempt: 1,
    epoch: 1,
    lease_seconds: 60,
    queued_ms: 0,
    task: {
      instruction: 'x',
      timeout_seconds: 100,
      agent: { harness: 'shell', custom_shell: 'true' },
      evaluator: { strategy: 'fake', refresh_runtime: true },
      ...parts.task,
    },
  });
  const attempt = new Attempt(lease, lease.task.runtime ?? runtimeSpecSchema.parse({}), clock, () => {});
  const deps = {
    recordStart: parts.recordStart ?? (async () => {}),
    assertLease: () => {},
    awaitsEngine: () => parts.awaitsEngine?.() ?? false,
    stallSeconds: parts.stallSeconds ?? null,
    nodeId: 'node',
    cpu: { take: () => 1000 },
    clock,
    log: silentLogger,
    pools: new StagePools({ init: 1, ready: 1, run: 1, postrun: 1 }),
    proxy: {
      origin: 'http://127.0.0.1:1',
      listen: async () => {},
      maxModelLen: () => null,
      open: parts.openSession ?? (async () => session),
      close: async () => {},
    },
    harnesses: new Map([['shell', shellHarness]]),
    harnessInstallDir: async () => null,
    evaluators: {
      names: () => ['fake'],
      usesFreshRuntime: ({ refresh_runtime }) => refresh_runtime === true,
      check: parts.checkEvaluator ?? (() => {}),
      get: () => ({
        name: 'fake',
        freshRuntimeByDefault: false,
        checkConfig: () => {},
        evaluate: parts.evaluate ?? (async () => ({ reward: 0, details: {} })),
      }),
    },
    agentHost: { run: () => refuse() },
    builders: builderRegistry(),
    hooks: parts.hooks ?? [],
    engines: { info: () => [], modeOf: () => refuse(), detokenize: () => refuse() },
    egressHosts: [],
    sockets: fakeSockets(),
    sandboxes: new Sandboxes({
      providers: new Map([
        [
          'local' as const,
          {
            backend: 'local' as const,
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
            start: async (request: StartRequest, signal: AbortSignal) => {
              const purpose = request.name.endsWith('-agent') ? 'agent' : 'eval';
              return parts.start?.(purpose, request, signal) ?? runtimeOf(exec, alive, parts);
            },
          },
        ],
      ]),
      defaultBackend: 'local' as const,
      uploadRoots: [],
      allowLocal: true,
      startLimits: new StartLimits(parts.startLimit === undefined ? {} : { local: parts.startLimit }),
    }),
    uploadRoots: [],
    prewarmed: new PrewarmedRuntimes({
      ...{ clock, log: silentLogger, count: 0, maxMb: 0, idleMs: 0 },
      sockets: fakeSockets(),
      sandboxes: { awaitPermit: () => refuse(), start: () => refuse() },
      openEgress: async () => null,
    }),
    stops: new SandboxStops({ maxCount: 0, maxMb: 0 }),
    reused: new ReusedRuntimes({
      ...{ clock, log: silentLogger, maxCount: 2, maxMb: 100_000, idleMs: 60_000 },
      sockets: fakeSockets(),
      openEgress: async () => null,
    }),
  } satisfies RunnerDeps;
  return { attempt, deps, clock, alive };
}

function refuse(): never {
  throw new Error('there is no engine');
}

/** Lets pending promise callbacks and immediates run. */
export async function settle(): Promise<void> {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
}
