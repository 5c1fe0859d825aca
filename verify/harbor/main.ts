// `npm run verify -- harbor`: runs the tasks in examples/harbor in Docker, Podman and Apptainer. With their reference solutions they must get
// the reward 1, and without an agent the reward 0. They also run with the harnesses pi and shell and the simulated engine. Builds the base
// image of packages of this machine. Ends, for each runtime, with "harbor: docker, tasks T, as expected E of N, sessions S, completed C,
// rewarded R".
//
//   npm run verify -- harbor [--samples N] [--only TEXT] [--json [FILE]]
//
// Apptainer runs as a user without root privileges, and a rootless Podman builds its images. `--only` selects the runtimes whose name contains
// TEXT.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { installHarness } from '@floe-rl/node';
import { harnessDir } from '#floe/commands/home';
import { repositoryRoot } from '../../tools/repository.ts';
import { debianImageMissing, makeDebianImage } from '../fixtures/debian-image.ts';
import { runFloe } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { tableOf } from '../runner/report.ts';
import type { PrivateEngine } from '../services/container-engine.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';
import { podmanMissing, startPodmanService } from '../services/podman-service.ts';
import { findTool } from '../services/tools.ts';
import { APPTAINER_VARIABLE, runNode, unprivilegedMissing } from '../services/unprivileged.ts';

const { options, json } = readOptions({
  samples: { type: 'string', default: '3' },
  only: { type: 'string', default: '' },
});

/** Packages of the base image: the programs that the tasks use, and the programs that floe needs. */
const PACKAGES = [
  ...['base-files', 'bash', 'coreutils', 'dash', 'diffutils', 'findutils', 'grep', 'gzip', 'mawk', 'sed', 'tar'],
  ...['git', 'sqlite3', 'python3', 'gcc', 'libc6-dev', 'make', 'libpam-modules', 'util-linux'],
];
const BASE_IMAGE = 'floe-harbor-base';
const TASKS = join(repositoryRoot(), 'examples', 'harbor');

type Reference = { readonly task: string; readonly agent: string; readonly reward: number | null };
type Row = {
  readonly task: string;
  readonly sessions: number;
  readonly outcomes: string;
  readonly mean_reward: number | null;
};

/** The counts of one runtime. */
type Totals = {
  readonly backend: string;
  readonly tasks: number;
  readonly references: number;
  readonly as_expected: number;
  readonly sessions: number;
  readonly completed: number;
  readonly rewarded: number;
};

/** Runs a command of floe and returns what it prints as JSON, also when it fails. */
async function floe(words: readonly string[]): Promise<Record<string, unknown>> {
  const { text, errors } = await runFloe([...words, '--json']);
  if (text === '') throw new Error(`floe ${words.slice(0, 2).join(' ')} printed nothing: ${errors}`);
  return JSON.parse(text) as Record<string, unknown>;
}

/** How the tasks are run on one runtime. */
type Variant = {
  readonly backend: RuntimeBackend;
  /** Why the runtime cannot be used; `null` when it can. */
  readonly missing: string | null;
  /** Starts the container engine that builds the images. */
  readonly start: () => Promise<PrivateEngine>;
  /** Options of floe in addition to the engine's options. */
  readonly more: readonly string[];
};

async function variants(): Promise<Variant[]> {
  const apptainer = process.env[APPTAINER_VARIABLE] ?? findTool('apptainer');
  const noApptainer = apptainer === null ? 'apptainer is not installed: npm run verify -- install' : null;
  // An Apptainer sandbox has only one user, so the user that one of the tasks names is ignored.
  const more = ['--apptainer-command', apptainer ?? '', '--ignore-users'];
  return [
    { backend: 'docker', missing: await dockerMissing(), start: startDockerDaemon, more: [] },
    { backend: 'podman', missing: podmanMissing(), start: startPodmanService, more: [] },
    { backend: 'apptainer', missing: noApptainer ?? podmanMissing(), start: startPodmanService, more },
  ];
}

async function main(): Promise<void> {
  const imageMissing = debianImageMissing(PACKAGES);
  const dir = mkdtempSync(join(tmpdir(), 'floe-harbor-'));
  const totals: Totals[] = [];
  try {
    if (imageMissing === null) makeDebianImage(dir, PACKAGES);
    for (const variant of await variants()) {
      const { backend, missing } = variant;
      if (!backend.includes(options.only)) continue;
      const reason = imageMissing ?? missing;
      if (reason !== null) console.log(`harbor: ${backend} is skipped, because ${reason}`);
      else if (backend === 'apptainer' && process.getuid?.() === 0) totals.push(...(await runAsUser(backend)));
      else totals.push(await runOn(variant, dir));
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
  if (json.line) console.log(JSON.stringify(totals));
  if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(totals, null, 1)}\n`);
}

async function runOn({ backend, start, more }: Variant, dir: string): Promise<Totals> {
  const engine = await start();
  // The images get a new, empty folder, so that every image is built.
  const previous = process.env.FLOE_IMAGE_DIR;
  process.env.FLOE_IMAGE_DIR = join(dir, 'images');
  try {
    await engine.importImage(BASE_IMAGE, join(dir, 'root'));
    const socket =
      backend === 'docker' ? ['--docker-socket', engine.socketPath] : ['--podman-socket', engine.socketPath];
    return await runAll(backend, ['--backend', backend, ...socket, ...more, '--build-network', 'none']);
  } finally {
    if (previous === undefined) delete process.env.FLOE_IMAGE_DIR;
    else process.env.FLOE_IMAGE_DIR = previous;
    await engine.stop();
  }
}

/** Runs the tasks on a runtime as a user without root privileges, in a process of its own. */
async function runAsUser(backend: string): Promise<Totals[]> {
  const missing = unprivilegedMissing();
  if (missing !== null) {
    console.log(`harbor: ${backend} is skipped, because ${missing}`);
    return [];
  }
  const words = [fileURLToPath(import.meta.url), '--only', backend, '--samples', options.samples, '--json'];
  const log = (text: string): void => console.error(text);
  const pi = (await installHarness('pi', { cacheDir: harnessDir(), log })) ?? '';
  const place = join('harnesses', 'pi');
  const { status, stdout } = await runNode(words, {
    asUser: true,
    folders: { [join(place, basename(pi))]: pi },
    env: (home) => ({ FLOE_HARNESS_DIR: join(home, 'harnesses') }),
  });
  const lines = stdout.trimEnd().split('\n');
  const last = lines.pop() ?? '';
  console.log(lines.join('\n'));
  if (status !== 0) process.exitCode = 1;
  return last.startsWith('[') ? (JSON.parse(last) as Totals[]) : [];
}

async function runAll(backend: string, setup: readonly string[]): Promise<Totals> {
  const checked = (await floe(['harbor', 'check', TASKS, ...setup])) as { results?: Reference[]; error?: unknown };
  if (checked.results === undefined) throw new Error(`floe harbor check failed: ${JSON.stringify(checked.error)}`);
  const { results } = checked;
  console.log(
    tableOf(
      ['task', 'agent', 'reward'],
      results.map(({ task, agent, reward }) => [task, agent, String(reward)]),
    ),
  );
  const engine = ['--sim', '--scenario', join(TASKS, 'scenario.yaml'), '--samples', options.samples];
  const agent = readFileSync(join(repositoryRoot(), 'verify', 'harbor', 'agent.py'), 'utf8');
  const harnesses = { pi: ['--harness', 'pi'], shell: ['--harness', 'shell', '--custom-shell', pythonCommand(agent)] };
  const rows: (Row & { harness: string })[] = [];
  for (const [harness, words] of Object.entries(harnesses)) {
    const ran = (await floe(['harbor', 'run', TASKS, ...setup, ...engine, ...words])) as {
      tasks?: Row[];
      error?: unknown;
    };
    if (ran.tasks === undefined)
      throw new Error(`floe harbor run --harness ${harness} failed: ${JSON.stringify(ran.error)}`);
    for (const row of ran.tasks) rows.push({ harness, ...row });
  }
  const cells = rows.map((row) => [row.task, row.harness, row.sessions, row.outcomes, String(row.mean_reward)]);
  console.log(`\n${tableOf(['task', 'harness', 'sessions', 'outcomes', 'mean reward'], cells)}`);
  return report(backend, results, rows);
}

function report(backend: string, results: readonly Reference[], rows: readonly Row[]): Totals {
  const sum = (of: (row: Row) => number): number => rows.reduce((total, row) => total + of(row), 0);
  const totals = {
    backend,
    tasks: new Set(results.map(({ task }) => task)).size,
    references: results.length,
    as_expected: results.filter(({ agent, reward }) => reward === (agent === 'oracle' ? 1 : 0)).length,
    sessions: sum((row) => row.sessions),
    completed: sum((row) => (row.outcomes === 'completed' && row.mean_reward !== null ? row.sessions : 0)),
    rewarded: Math.round(sum((row) => row.sessions * (row.mean_reward ?? 0))),
  };
  const { tasks, references, as_expected, sessions, completed, rewarded } = totals;
  console.log(
    `\nharbor: ${backend}, tasks ${tasks}, as expected ${as_expected} of ${references}, sessions ${sessions}, completed ${completed}, rewarded ${rewarded}`,
  );
  if (as_expected !== references || completed !== sessions || rewarded === 0) process.exitCode = 1;
  return totals;
}

/** Returns a shell command that runs a Python program with the instruction on stdin. */
function pythonCommand(program: string): string {
  return `cat > /tmp/agent.py <<'PYTHON'\n${program}\nPYTHON\nexec python3 /tmp/agent.py "$FLOE_INSTRUCTION_FILE"`;
}

await main();
