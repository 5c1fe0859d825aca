// `npm run verify -- swebench-guide`: runs the commands of docs/guides/run-swe-bench-rows.md as they are written there, and checks the results.
// The rows have the form of SWE-bench: sources of Django 2.2 from PyPI, in which names of users may end with a newline. Their image is made of
// packages of this machine, laid out as the published images. The simulated engine resolves the first row and fails at the second. Ends with
// "swebench-guide: commands C, sessions S, resolved R, as expected E, rows generated G".
//
//   npm run verify -- swebench-guide [--json [FILE]]

import { type ChildProcess, spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { loadScenarios, startSim } from '@floe-rl/sim';
import { sweBenchImage } from '#data/datasets/images';
import { takeJsonOption } from '../../tools/json-option.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { debianImageMissing, makeDebianImage } from '../fixtures/debian-image.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';
import { freePort } from '../services/ports.ts';
import { run, type Venv, venvAt } from '../services/venv.ts';

const { json } = takeJsonOption(process.argv.slice(2));

const GUIDE = join(repositoryRoot(), 'docs', 'guides', 'run-swe-bench-rows.md');
const SOURCES = join(repositoryRoot(), 'verify', 'swebench');
const DJANGO = 'Django==2.2.28';
/** Python packages: what Django needs, and what the guide uses to convert the rows. */
const IN_IMAGE = ['pytz==2025.2', 'sqlparse==0.4.4'];
const IN_GUIDE = ['pandas==2.3.3', 'pyarrow==22.0.0'];
const PACKAGES = [
  ...['base-files', 'bash', 'coreutils', 'dash', 'diffutils', 'findutils', 'grep', 'gzip', 'sed', 'tar'],
  ...['git', 'libstdc++6', 'python3', 'util-linux'],
];
/** Rows by instance: whether the simulated engine resolves them, and how their issue calls the character. */
const ROWS = {
  'django__django-11099': { isResolved: true, character: 'newline' },
  'django__django-11100': { isResolved: false, character: 'line feed' },
};
const SAMPLES = 4;
/** Rows that `floe generate` gets: the one of step 2, which the simulated engine resolves. */
const GENERATED_ROWS = 1;
/** Maximum time in milliseconds until `floe up` listens. */
const START_TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 200;

const TESTS = 'auth_tests.test_validators.UsernameValidatorsTests';
const TEST_PATCH = `diff --git a/tests/auth_tests/test_validators.py b/tests/auth_tests/test_validators.py
--- a/tests/auth_tests/test_validators.py
+++ b/tests/auth_tests/test_validators.py
@@ -236,3 +236,4 @@ class UsernameValidatorsTests(SimpleTestCase):
             "zerowidth\\u200Bspace", "nonbreaking\\u00A0space",
             "en\\u2013dash",
+            "trailingnewline\\u000A",
         ]
`;

type Result = {
  readonly reward: number | null;
  readonly metadata: { readonly instance_id: string };
  readonly trajectory: { readonly traces: readonly { readonly loss_mask: readonly number[] }[] } | null;
};

function rowOf(instance: string, character: string, commit: string): Record<string, unknown> {
  return {
    repo: 'django/django',
    instance_id: instance,
    base_commit: commit,
    patch: '',
    test_patch: TEST_PATCH,
    problem_statement: `UsernameValidator accepts names with a ${character} at the end`,
    hints_text: '',
    created_at: '2019-03-20T00:00:00Z',
    version: '2.2',
    FAIL_TO_PASS: JSON.stringify([`test_unicode_validator (${TESTS}.test_unicode_validator)`]),
    PASS_TO_PASS: JSON.stringify([`test_ascii_validator (${TESTS}.test_ascii_validator)`]),
    environment_setup_commit: commit,
  };
}

/** Makes the root file system of an image with Django's sources in `/testbed`, laid out as the images of SWE-bench. */
function makeImage(dir: string, { pip }: Venv): { readonly root: string; readonly commit: string } {
  makeDebianImage(dir, PACKAGES);
  const root = join(dir, 'root');
  pip('-q', 'download', '--no-deps', '--no-binary', ':all:', '-d', dir, DJANGO);
  const testbed = join(root, 'testbed');
  mkdirSync(testbed);
  run('tar', ['-C', testbed, '--strip-components=1', '-xzf', join(dir, `${DJANGO.replace('==', '-')}.tar.gz`)]);
  const git = (...args: string[]): string => run('git', ['-C', testbed, '-c', 'gc.auto=0', ...args]).trim();
  git('init', '-q', '-b', 'main');
  git('add', '-A', '-f');
  git('-c', 'user.name=x', '-c', 'user.email=x@localhost', 'commit', '-q', '-m', 'Django 2.2');
  const library = join(root, 'usr', 'lib', 'python3', 'dist-packages');
  mkdirSync(library, { recursive: true });
  pip('-q', 'install', '--no-deps', '--target', library, ...IN_IMAGE);
  // What "pip install -e ." and Conda leave in the published images.
  writeFileSync(join(library, 'testbed.pth'), '/testbed\n');
  mkdirSync(join(root, 'opt', 'miniconda3', 'bin'), { recursive: true });
  writeFileSync(join(root, 'opt', 'miniconda3', 'bin', 'activate'), 'conda() { :; }\n');
  run('ln', ['-s', 'python3', join(root, 'usr', 'bin', 'python')]);
  return { root, commit: git('rev-parse', 'HEAD') };
}

/** Returns the commands of the guide, a text for each block. */
function commandsOf(guide: string): string[] {
  return [...guide.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block = '']) => block);
}

/** Makes the program `floe` of the guide: this checkout, with a data directory and a Docker daemon of its own. */
function makeProgram(dir: string, socketPath: string, port: number): string {
  const bin = join(dir, 'bin');
  mkdirSync(bin);
  const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
  const own = `--port ${port} --dir ${join(dir, 'data')} --docker-socket ${socketPath} --log-level warn`;
  const lines = ['#!/bin/sh', `[ "$1" = up ] && set -- "$@" ${own}`, `exec '${process.execPath}' '${main}' "$@"`, ''];
  writeFileSync(join(bin, 'floe'), lines.join('\n'));
  chmodSync(join(bin, 'floe'), 0o755);
  return bin;
}

/** Starts a command of the guide. */
function start(command: string, dir: string, env: NodeJS.ProcessEnv): ChildProcess {
  process.stdout.write(`▸ ${command.trimEnd().replaceAll('\n', '\n  ')}\n`);
  // A server runs until it is interrupted, so it takes the place of the shell, and gets its signals.
  const line = isServer(command) ? `exec ${command}` : command;
  return spawn('bash', ['-euo', 'pipefail', '-c', line], { cwd: dir, env, stdio: ['ignore', 'inherit', 'inherit'] });
}

function isServer(command: string): boolean {
  return command.startsWith('floe up ');
}

function statusOf(child: ChildProcess): Promise<number | null> {
  return new Promise((resolve) => child.once('exit', resolve));
}

async function becameReady(url: string): Promise<void> {
  const giveUpMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
  while (
    !(await fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    ))
  ) {
    if (systemClock.monotonicMs() > giveUpMs) throw new Error(`${url} does not respond`);
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

async function runGuide(commands: readonly string[], dir: string, env: NodeJS.ProcessEnv): Promise<void> {
  const servers: ChildProcess[] = [];
  try {
    for (const command of commands) {
      const child = start(command, dir, env);
      if (isServer(command)) {
        servers.push(child);
        await becameReady(env.FLOE_URL ?? '');
        continue;
      }
      const status = await statusOf(child);
      if (status !== 0) throw new Error(`the command ended with ${status}`);
    }
  } finally {
    for (const server of servers) {
      server.kill('SIGTERM');
      await statusOf(server);
    }
  }
}

/** Whether a session has the reward that its row should get, and a trace to train on. */
function isAsExpected({ reward, metadata, trajectory }: Result): boolean {
  const row = ROWS[metadata.instance_id as keyof typeof ROWS];
  const isTrained = trajectory?.traces.some(({ loss_mask }) => loss_mask.includes(1)) ?? false;
  return reward === (row.isResolved ? 1 : 0) && isTrained;
}

async function main(dir: string): Promise<void> {
  const venv = venvAt(join(homedir(), '.cache', 'floe', 'swebench-guide'));
  venv.pip('-q', 'install', ...IN_GUIDE);
  const { root, commit } = makeImage(dir, venv);
  const daemon = await startDockerDaemon();
  const sim = await startSim({ scenarios: await loadScenarios([join(SOURCES, 'guide-scenario.yaml')]) });
  try {
    for (const instance of Object.keys(ROWS)) {
      await daemon.importImage(sweBenchImage(instance, 'x86_64').replace(/:latest$/, ''), root);
    }
    const rows = Object.entries(ROWS).map(([instance, { character }]) => rowOf(instance, character, commit));
    writeFileSync(join(dir, 'rows.json'), JSON.stringify(rows));
    const toParquet = 'import pandas; pandas.read_json("rows.json", dtype=False).to_parquet("test.parquet")';
    run('bash', ['-c', `cd '${dir}' && '${venv.python}' -c '${toParquet}'`]);
    const port = await freePort();
    const bin = makeProgram(dir, daemon.socketPath, port);
    const commands = commandsOf(readFileSync(GUIDE, 'utf8')).map((text) => text.replace('http://gpu:8000', sim.url));
    await runGuide(commands, dir, {
      ...process.env,
      PATH: `${bin}:${join(venv.dir, 'bin')}:${process.env.PATH}`,
      FLOE_URL: `http://127.0.0.1:${port}`,
      FLOE_HOME: join(dir, 'home'),
    });
    report(commands.length, readResults(dir), readGenerated(dir));
  } finally {
    await sim.close();
    await daemon.stop();
  }
}

function readResults(dir: string): Result[] {
  const lines = readFileSync(join(dir, 'results.jsonl'), 'utf8').trim().split('\n');
  return lines.map((line) => JSON.parse(line) as Result);
}

/** How many rows got training data from `floe generate`. */
function readGenerated(dir: string): number {
  const { total } = JSON.parse(readFileSync(join(dir, 'out', 'acceptance.json'), 'utf8'));
  return total.rows_accepted;
}

function report(commands: number, results: readonly Result[], generated: number): void {
  const resolved = results.filter(({ reward }) => reward === 1).length;
  const keys = {
    commands,
    sessions: results.length,
    resolved,
    as_expected: results.filter(isAsExpected).length,
    generated,
  };
  console.log(
    `swebench-guide: commands ${commands}, sessions ${keys.sessions}, resolved ${resolved}, as expected ${keys.as_expected}, rows generated ${generated}`,
  );
  if (json.line) console.log(JSON.stringify(keys));
  if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(keys)}\n`);
  if (keys.as_expected !== SAMPLES * Object.keys(ROWS).length || generated !== GENERATED_ROWS) process.exitCode = 1;
}

const reason = (await dockerMissing()) ?? debianImageMissing(PACKAGES);
if (reason !== null) console.log(`swebench-guide: skipped, because ${reason}`);
else {
  const dir = mkdtempSync(join(tmpdir(), 'floe-guide-'));
  try {
    await main(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
