// Sessions per second through submit, lease, stages and delivery; memory per session in flight; what floe adds to one pi run.
// Each figure stands beside its baseline from the same run: the same commands without floe.
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chooseBackend } from '../dist/cli/backend.js';
import { harnessDir } from '../dist/cli/home.js';
import { FloeClient } from '../dist/client/index.js';
import { harnessInstallDir, installHarness } from '../dist/harnesses/install/install.js';
import { piHarness } from '../dist/harnesses/pi.js';
import { startSim } from '../dist/sim/server.js';
import { machine, median, printReport, round } from './report.mjs';

const SESSIONS = 400;
const IN_FLIGHT = 1_000;
const PI_ROUNDS = 12;
const WORKERS = 16;
const here = dirname(fileURLToPath(import.meta.url));

/** One model call with nothing but bash, so that the harness costs as little as a process can. */
const ONE_CALL = `exec bash -c '
url=\${OPENAI_BASE_URL#http://}; host=\${url%%/*}; body="{\\"model\\":\\"policy\\",\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"hi\\"}]}"
exec 3<>/dev/tcp/\${host%:*}/\${host#*:}
printf "POST %s HTTP/1.1\\r\\nHost: floe\\r\\nAuthorization: Bearer %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s" "/\${url#*/}/chat/completions" "$OPENAI_API_KEY" "\${#body}" "$body" >&3
cat <&3 >/dev/null'`;

const PI_SCENARIO = {
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

async function startStack(options) {
  const child = fork(join(here, 'stack-process.mjs'), [JSON.stringify(options)], { execArgv: ['--expose-gc'] });
  const [{ url }] = await once(child, 'message');
  const ask = async (what) => {
    child.send(what);
    return (await once(child, 'message'))[0];
  };
  return {
    client: new FloeClient({ url }),
    usage: () => ask('usage'),
    async close() {
      child.send('close');
      await once(child, 'exit');
    },
  };
}

const node = (sim, pools) => ({
  harness_dir: harnessDir(),
  engines: [{ base_url: sim.url }],
  default_backend: 'local',
  pools,
});

const shellTask = (custom_shell, num_samples) => ({
  instruction: '',
  num_samples,
  max_attempts: 1,
  agent: { harness: 'shell', custom_shell },
  evaluator: { strategy: 'session_completed' },
});

async function collect(client, count, after = 0) {
  let done = 0;
  let completed = 0;
  for await (const result of client.results({ after })) {
    if (result.outcome === 'completed') completed++;
    if (++done === count) return { completed, cursor: result.cursor };
  }
}

/** `count` runs of `work`, `width` at a time. */
async function parallel(count, width, work) {
  let next = 0;
  const lane = async () => {
    while (next++ < count) await work();
  };
  await Promise.all(Array.from({ length: width }, lane));
}

async function benchRate(sim) {
  const stack = await startStack(node(sim, { init: WORKERS, ready: WORKERS, run: WORKERS, postrun: WORKERS }));
  const warm = await stack.client.submit(shellTask(ONE_CALL, 30)).then(() => collect(stack.client, 30));

  const before = await stack.usage();
  const start = performance.now();
  await stack.client.submit(shellTask(ONE_CALL, SESSIONS));
  const { completed } = await collect(stack.client, SESSIONS, warm.cursor);
  const seconds = (performance.now() - start) / 1000;
  const { cpuMs } = await stack.usage();
  await stack.close();
  if (completed !== SESSIONS) throw new Error(`only ${completed} of ${SESSIONS} sessions completed`);

  const env = { PATH: process.env.PATH, OPENAI_BASE_URL: `${sim.url}/v1`, OPENAI_API_KEY: 'none' };
  const bareStart = performance.now();
  await parallel(SESSIONS, WORKERS, async () => {
    await once(spawn('/bin/sh', ['-c', ONE_CALL], { env, stdio: 'ignore' }), 'exit');
  });
  const bareSeconds = (performance.now() - bareStart) / 1000;
  return {
    perSecond: SESSIONS / seconds,
    cpuMsEach: (cpuMs - before.cpuMs) / SESSIONS,
    barePerSecond: SESSIONS / bareSeconds,
  };
}

async function benchMemory(sim) {
  const stack = await startStack(node(sim, { init: 32, ready: 32, run: IN_FLIGHT, postrun: WORKERS }));
  await stack.client.submit(shellTask(ONE_CALL, 50)).then(() => collect(stack.client, 50));
  const idle = await stack.usage();
  const { task_id } = await stack.client.submit(
    shellTask(`${ONE_CALL.replace('exec bash', 'bash')}; sleep 600`, IN_FLIGHT),
  );
  for await (const event of stack.client.events()) {
    if (event.type !== 'session.state_changed') continue;
    const { nodes, sessions } = await stack.client.status();
    if (nodes[0].metrics.run_inflight === IN_FLIGHT || sessions.RUNNING === IN_FLIGHT) break;
  }
  const busy = await stack.usage();
  await stack.client.cancel(task_id);
  await stack.close();
  return (busy.rss - idle.rss) / 1024 / IN_FLIGHT;
}

/** pi as floe runs it: submit to result, in the best sandbox that this machine has, without preparation or grading. */
async function piThroughFloe(stack) {
  const start = performance.now();
  const { session_ids } = await stack.client.submit({
    instruction: 'Please count to three.',
    max_attempts: 1,
    agent: { harness: 'pi' },
  });
  for await (const result of stack.client.results({ after: piThroughFloe.cursor ?? 0 })) {
    piThroughFloe.cursor = result.cursor;
    if (result.session_id !== session_ids[0]) continue;
    if (result.outcome !== 'completed') throw new Error(`pi: ${result.outcome}: ${result.error?.message}`);
    return performance.now() - start;
  }
}

/** The same files, environment and command without floe: straight to the engine, without a sandbox. */
async function piBare(sim, installDir) {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-pi-'));
  const paths = { workdir: join(dir, 'work'), home: join(dir, 'home'), logs: join(dir, 'logs') };
  for (const path of Object.values(paths)) await mkdir(path);
  const agent = { harness: 'pi', model_name: sim.model, env: {}, settings: {} };
  const launch = piHarness.launch({
    instruction: 'Please count to three.',
    agent,
    baseUrl: sim.url,
    apiKey: 'none',
    contextWindow: 32_768,
    paths,
    installDir,
  });
  for (const file of launch.files) {
    await mkdir(dirname(file.path), { recursive: true });
    await writeFile(file.path, file.content);
  }
  const argv = typeof launch.command === 'string' ? ['/bin/sh', '-c', launch.command] : launch.command;
  const start = performance.now();
  const child = spawn(argv[0], argv.slice(1), {
    cwd: paths.workdir,
    env: { PATH: process.env.PATH, HOME: paths.home, ...launch.env },
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  child.stdin.end(launch.stdin ?? '');
  const [code] = await once(child, 'exit');
  const elapsed = performance.now() - start;
  await rm(dir, { recursive: true, force: true });
  if (code !== 0) throw new Error(`pi without floe exited with ${code}`);
  return elapsed;
}

async function benchPi(sim) {
  await installHarness('pi', { cacheDir: harnessDir(), log: console.error });
  const installDir = await harnessInstallDir(piHarness, harnessDir());
  const { backend } = await chooseBackend();
  const stack = await startStack({ ...node(sim, {}), default_backend: backend });
  const through = [];
  const bare = [];
  for (let round = -1; round < PI_ROUNDS; round++) {
    const pair = [await piThroughFloe(stack), await piBare(sim, installDir)];
    // The first round warms caches.
    if (round < 0) continue;
    through.push(pair[0]);
    bare.push(pair[1]);
  }
  await stack.close();
  const differences = through.map((value, i) => value - bare[i]);
  return { backend, through: median(through), bare: median(bare), added: median(differences) };
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
  `bench:sessions: ${SESSIONS} sessions of one model call each, local runtime, SQLite with full sync`,
  [
    ['sessions per second', round(rate.perSecond, 1), `${WORKERS} workers per stage`],
    ['  same commands without floe', round(rate.barePerSecond, 1), 'baseline'],
    ['  CPU ms per session', round(rate.cpuMsEach), 'of server and node'],
    ['KB per session in flight', round(kbPerSession, 1), `${IN_FLIGHT} running`],
    ['pi through floe, ms', round(pi.through, 0), `submit to result, ${pi.backend}, median of ${PI_ROUNDS}`],
    ['pi without floe, ms', round(pi.bare, 0), 'baseline: same files and command, no sandbox'],
    ['floe adds, ms', round(pi.added, 0), 'median of the pairs'],
  ],
  {
    sessions_per_s: round(rate.perSecond, 1),
    kb_per_session: round(kbPerSession, 1),
    pi_overhead_ms: round(pi.added, 0),
    baseline_commands_per_s: round(rate.barePerSecond, 1),
  },
);
