import { raceAbort } from '../../src/core/abort.ts';
import type { FloeError } from '../../src/core/errors.ts';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import type { Evaluator } from '../../src/evaluators/evaluator.ts';
import { StagePools } from '../../src/gateway/node/stage-pools.ts';
import { Attempt } from '../../src/gateway/session/attempt.ts';
import { Sandboxes, StartLimits } from '../../src/gateway/session/sandbox.ts';
import type { RunnerDeps } from '../../src/gateway/session/session-runner.ts';
import { shellHarness } from '../../src/harnesses/shell.ts';
import { silentLogger } from '../../src/observe/log.ts';
import type { ProxySession } from '../../src/proxy/session/session.ts';
import type { ExecResult, Runtime, StartRequest } from '../../src/runtimes/runtime.ts';
import { leaseSchema, runtimeSpecSchema, type TaskRequestInput } from '../../src/schema/index.ts';
import { builderRegistry } from '../../src/tokens/builders/registry.ts';

export const ENDED_WELL: ExecResult = {
  exitCode: 0,
  signal: null,
  stdout: '',
  stderr: '',
  droppedBytes: 0,
  killedBy: null,
  wallMs: 1,
};

/** Result of the command that packs artifacts, for a sandbox that has none. */
const NO_ARTIFACTS: ExecResult = { ...ENDED_WELL, stdout: 'empty 1\n' };

/** Returns a promise that never resolves and rejects with the reason of `signal` when that aborts. */
export function untilAborted(signal: AbortSignal): Promise<never> {
  return raceAbort(new Promise<never>(() => {}), signal);
}

/** Parts of the attempt, its runtime and its proxy session that a test replaces. The default parts succeed without doing anything. */
export type BenchParts = {
  readonly task?: Partial<TaskRequestInput>;
  readonly startLimit?: number;
  readonly awaitsEngine?: () => boolean;
  readonly pendingCallFailure?: () => FloeError;
  readonly recordStart?: () => Promise<void>;
  /** Longest time without progress, in seconds. Default: no limit. */
  readonly stallSeconds?: number;
  /** Starts the runtime for the agent or the evaluator. By default it starts a runtime whose commands succeed. */
  readonly start?: (purpose: 'agent' | 'eval', request: StartRequest, signal: AbortSignal) => Promise<Runtime>;
  readonly exec?: (signal: AbortSignal) => Promise<ExecResult>;
  /** Runs the command that packs the artifacts; `readFile` reads the archive. By default there are no artifacts. */
  readonly pack?: (signal: AbortSignal) => Promise<ExecResult>;
  readonly readFile?: Runtime['readFile'];
  readonly session?: Partial<ProxySession>;
  readonly openSession?: () => Promise<ProxySession>;
  readonly evaluate?: Evaluator['evaluate'];
};

export type Bench = {
  readonly attempt: Attempt;
  readonly deps: RunnerDeps;
  readonly clock: VirtualClock;
  /** Runtimes that were started and have not been stopped. */
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
    // The agent's command is the only one that uses the proxy, so every other command is the packing.
    exec: ({ withProxy }, signal) => (withProxy === true ? exec(signal) : pack(signal)),
    writeFiles: async () => {},
    uploadDir: async () => {},
    readFile,
    stop: async () => void alive.delete(runtime),
  };
  alive.add(runtime);
  return runtime;
}

/** Creates one attempt on a virtual clock, with fakes of everything that it uses. `parts` replaces some of the fakes. */
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
    lastError: null,
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
  const attempt = new Attempt(lease, runtimeSpecSchema.parse({}), clock, () => {});
  const deps = {
    recordStart: parts.recordStart ?? (async () => {}),
    assertLease: () => {},
    awaitsEngine: () => parts.awaitsEngine?.() ?? false,
    pendingCallFailure: () => parts.pendingCallFailure?.() ?? null,
    stallSeconds: parts.stallSeconds ?? null,
    nodeId: 'node',
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
      check: () => {},
      get: () => ({
        name: 'fake',
        checkConfig: () => {},
        evaluate: parts.evaluate ?? (async () => ({ reward: 0, details: {} })),
      }),
    },
    builders: builderRegistry(),
    engines: { info: () => [], modeOf: () => refuse(), detokenize: () => refuse() },
    socketDir: '/tmp',
    sandboxes: new Sandboxes({
      providers: new Map([
        [
          'local' as const,
          {
            backend: 'local' as const,
            probe: async () => null,
            start: async (request: StartRequest, signal: AbortSignal) => {
              const purpose = request.name.endsWith('-eval') ? 'eval' : 'agent';
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
  } satisfies RunnerDeps;
  return { attempt, deps, clock, alive };
}

function refuse(): never {
  throw new Error('there is no engine');
}

/** Resolves when all pending callbacks have run. */
export async function settle(): Promise<void> {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
}
