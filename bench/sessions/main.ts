// Measures the sessions per second from submission to delivery, the memory per running session, and the time that floe adds to one run of
// the harness pi. For the rate and for pi, the same commands are also run without floe as a baseline.
//
//   npm run bench -- sessions [--json]
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { systemClock } from '@floe-rl/core';
import { agentSpecSchema, type TaskRequestInput } from '@floe-rl/core/schema';
import { harnessInstallDir, installHarness } from '@floe-rl/node';
import { type ScenarioInput, type SimServer, startSim } from '@floe-rl/sim';
import { chooseBackend } from '#floe/commands/backend';
import { harnessDir } from '#floe/commands/home';
import type { GatewayConfigInput, PoolSizes } from '#node/gateway/node/config';
import { piHarness } from '#node/harnesses/pi';
import { inParallel, startChild } from '../child.ts';
import { machine, median, printReport, round } from '../report.ts';

const SESSIONS = 400;
const IN_FLIGHT = 1_000;
const PI_ROUNDS = 12;
const WORKERS = 16;

/** A shell command that makes one model call with bash alone, so that the agent itself uses as little CPU time as possible. */
const ONE_CALL = `exec bash -c '
url=\${OPENAI_BASE_URL#http://}; host=\${url%%/*}; body="{\\"model\\":\\"policy\\",\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"hi\\"}]}"
exec 3<>/dev/tcp/\${host%:*}/\${host#*:}
printf "POST %s HTTP/1.1\\r\\nHost: floe\\r\\nAuthorization: Bearer %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s" "/\${url#*/}/chat/completions" "$OPENAI_API_KEY" "\${#body}" "$body" >&3
cat <&3 >/dev/null'`;

const PI_SCENARIO: ScenarioInput = {
  name: 'bench',
  match: { contains: 'count to three' },
  rules: [
    {
      when: { assistant_turns: { max: 2 } },
      reply: [{ text: 'One more.' }, { call: { tool: 'bash', arguments: { command: 'echo counting' } } }],
    },
    { reply: [{ text: 'Done.' }] },
  ],
};

type Usage = { readonly rss: number; readonly cpuMs: number };

type Stack = {
  readonly client: FloeClient;
  usage(): Promise<Usage>;
  close(): Promise<void>;
};

/** Starts a rollout server and a node together in one child process. */
async function startStack(options: Partial<GatewayConfigInput>): Promise<Stack> {
  const child = await startChild(new URL('./stack-process.js', import.meta.url), [JSON.stringify(options)]);
  const client = new FloeClient({ url: String(child.ready.url) });
  return {
    client,
    usage: async () => (await child.request('usage')) as Usage,
    close: async () => {
      await client.close();
      await child.close();
    },
  };
}

const nodeConfig = (sim: SimServer, pools: Partial<PoolSizes>): Partial<GatewayConfigInput> => ({
  harness_dir: harnessDir(),
  engines: [{ base_url: sim.url }],
  default_backend: 'local',
  pools,
});

const shellTask = (custom_shell: string, num_samples: number): TaskRequestInput => ({
  instruction: '',
  num_samples,
  max_attempts: 1,
  agent: { harness: 'shell', custom_shell },
  evaluator: { strategy: 'session_completed' },
});

type Collected = { readonly completed: number; readonly cursor: number };

async function collect(client: FloeClient, count: number, after = 0): Promise<Collected> {
  let done = 0;
  let completed = 0;
  for await (const result of client.results({ after })) {
    if (result.outcome === 'completed') completed++;
    if (++done === count) return { completed, cursor: result.cursor ?? 0 };
  }
  throw new Error(`only ${done} of ${count} results`);
}

type RateFigures = { readonly perSecond: number; readonly cpuMsEach: number; readonly barePerSecond: number };

async function benchRate(sim: SimServer): Promise<RateFigures> {
  const stack = await startStack(nodeConfig(sim, { init: WORKERS, ready: WORKERS, run: WORKERS, postrun: WORKERS }));
  const warm = await stack.client.submit(shellTask(ONE_CALL, 30)).then(() => collect(stack.client, 30));

  const before = await stack.usage();
  const start = systemClock.monotonicMs();
  await stack.client.submit(shellTask(ONE_CALL, SESSIONS));
  const { completed } = await collect(stack.client, SESSIONS, warm.cursor);
  const seconds = (systemClock.monotonicMs() - start) / 1000;
  const { cpuMs } = await stack.usage();
  await stack.close();
  if (completed !== SESSIONS) throw new Error(`only ${completed} of ${SESSIONS} sessions completed`);

  const env = { PATH: process.env.PATH, OPENAI_BASE_URL: `${sim.url}/v1`, OPENAI_API_KEY: 'none' };
  const bareStart = systemClock.monotonicMs();
  await inParallel(SESSIONS, WORKERS, async () => {
    await once(spawn('/bin/sh', ['-c', ONE_CALL], { env, stdio: 'ignore' }), 'exit');
  });
  const bareSeconds = (systemClock.monotonicMs() - bareStart) / 1000;
  return {
    perSecond: SESSIONS / seconds,
    cpuMsEach: (cpuMs - before.cpuMs) / SESSIONS,
    barePerSecond: SESSIONS / bareSeconds,
  };
}

/** Measures the memory of the process with server and node per running session, in KiB. */
async function benchMemory(sim: SimServer): Promise<number> {
  const stack = await startStack(nodeConfig(sim, { init: 32, ready: 32, run: IN_FLIGHT, postrun: WORKERS }));
  await stack.client.submit(shellTask(ONE_CALL, 50)).then(() => collect(stack.client, 50));
  const idle = await stack.usage();
  const { task_id } = await stack.client.submit(
    shellTask(`${ONE_CALL.replace('exec bash', 'bash')}; sleep 600`, IN_FLIGHT),
  );
  for await (const event of stack.client.events()) {
    if (event.type !== 'session.state_changed') continue;
    const { nodes, sessions } = await stack.client.status();
    if (nodes[0]?.metrics.run_inflight === IN_FLIGHT || sessions.RUNNING === IN_FLIGHT) break;
  }
  const busy = await stack.usage();
  await stack.client.cancel(task_id);
  await stack.close();
  return (busy.rss - idle.rss) / 1024 / IN_FLIGHT;
}

/** Runs the harness pi in a session of floe. Resolves to the time in ms from submission to result, and to the cursor of the result. */
async function piThroughFloe(
  { client }: Stack,
  after: number,
): Promise<{ readonly ms: number; readonly cursor: number }> {
  const start = systemClock.monotonicMs();
  const { session_ids } = await client.submit({
    instruction: 'Please count to three.',
    max_attempts: 1,
    agent: { harness: 'pi' },
  });
  for await (const result of client.results({ after })) {
    if (result.session_id !== session_ids[0]) continue;
    if (result.outcome !== 'completed') throw new Error(`pi: ${result.outcome}: ${result.error?.message}`);
    return { ms: systemClock.monotonicMs() - start, cursor: result.cursor ?? after };
  }
  throw new Error('the results ended before that of pi');
}

/**
 * Runs the harness pi without floe and without a sandbox, with the same files, environment and command, directly against the engine.
 * Resolves to its duration in ms.
 */
async function piBare(sim: SimServer, installDir: string): Promise<number> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-pi-'));
  const paths = { workdir: join(dir, 'work'), home: join(dir, 'home'), logs: join(dir, 'logs') };
  for (const path of Object.values(paths)) await mkdir(path);
  const agent = agentSpecSchema.parse({ harness: 'pi', model_name: sim.model });
  const launch = piHarness.launch({
    instruction: 'Please count to three.',
    agent,
    skills: [],
    baseUrl: sim.url,
    apiKey: 'none',
    contextWindow: 32_768,
    paths,
    toolServer: { command: [], env: {} },
    installDir,
  });
  for (const file of launch.files) {
    await mkdir(dirname(file.path), { recursive: true });
    await writeFile(file.path, file.content);
  }
  const [program = '', ...args] =
    typeof launch.command === 'string' ? ['/bin/sh', '-c', launch.command] : launch.command;
  const start = systemClock.monotonicMs();
  const child = spawn(program, args, {
    cwd: paths.workdir,
    env: { PATH: process.env.PATH, HOME: paths.home, ...launch.env },
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  child.stdin.end(launch.stdin ?? '');
  const [code] = await once(child, 'exit');
  const elapsed = systemClock.monotonicMs() - start;
  await rm(dir, { recursive: true, force: true });
  if (code !== 0) throw new Error(`pi without floe exited with ${code}`);
  return elapsed;
}

type PiFigures = {
  readonly backend: string;
  readonly through: number;
  readonly bare: number;
  readonly added: number;
};

async function benchPi(sim: SimServer): Promise<PiFigures> {
  await installHarness('pi', { cacheDir: harnessDir(), log: console.error });
  const installDir = await harnessInstallDir(piHarness, harnessDir());
  if (installDir === null) throw new Error('pi is not installed');
  const { backend } = await chooseBackend();
  const stack = await startStack({ ...nodeConfig(sim, {}), default_backend: backend });
  const through: number[] = [];
  const bare: number[] = [];
  let cursor = 0;
  for (let i = -1; i < PI_ROUNDS; i++) {
    const run = await piThroughFloe(stack, cursor);
    const bareMs = await piBare(sim, installDir);
    cursor = run.cursor;
    // The first round fills caches and is not counted.
    if (i < 0) continue;
    through.push(run.ms);
    bare.push(bareMs);
  }
  await stack.close();
  const differences = through.map((value, i) => value - (bare[i] ?? 0));
  const middle = (values: readonly number[]): number => median(values) ?? 0;
  return { backend, through: middle(through), bare: middle(bare), added: middle(differences) };
}

const sim = await startSim({ scenarios: [PI_SCENARIO] });
console.error(`measuring on ${machine().cpu}; about two minutes`);
const rate = await benchRate(sim);
console.error('  rate done');
const pi = await benchPi(sim);
console.error('  pi done');
const kbPerSession = await benchMemory(sim);
await sim.close();

printReport(
  `sessions: ${SESSIONS} sessions of one model call each, local runtime, SQLite with full sync`,
  [
    [
      'time of a session over its command',
      round(rate.barePerSecond / rate.perSecond),
      'the floor is the same command without floe',
    ],
    ['sessions per second', round(rate.perSecond, 1), `${WORKERS} workers per stage`],
    ['  same commands without floe', round(rate.barePerSecond, 1), 'floor'],
    ['  CPU ms per session', round(rate.cpuMsEach), 'of server and node'],
    ['KB per running session', round(kbPerSession, 1), `${IN_FLIGHT} running`],
    ['pi through floe over pi without it', round(pi.through / pi.bare), 'medians'],
    ['pi through floe, ms', round(pi.through, 0), `submit to result, ${pi.backend}, median of ${PI_ROUNDS}`],
    ['pi without floe, ms', round(pi.bare, 0), 'baseline: same files and command, no sandbox'],
    ['floe adds, ms', round(pi.added, 0), 'median of the pairs'],
  ],
  {
    session_over_floor: round(rate.barePerSecond / rate.perSecond),
    pi_over_floor: round(pi.through / pi.bare),
    sessions_per_s: round(rate.perSecond, 1),
    kb_per_session: round(kbPerSession, 1),
    pi_overhead_ms: round(pi.added, 0),
    baseline_commands_per_s: round(rate.barePerSecond, 1),
  },
);
