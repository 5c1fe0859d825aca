// `npm run verify -- swebench-guide`: runs the commands of docs/guides/run-swe-bench-rows.md as they are written there, and checks the results.
// The rows have the form of SWE-bench: sources of Django 2.2 from PyPI, in which names of users may end with a newline. Their image is made of
// packages of this machine, laid out as the published images. The simulated engine resolves the first row and fails at the second. Ends with
// "swebench-guide: commands C, sessions S, resolved R, as expected E, rows generated G".
//
//   npm run verify -- swebench-guide [--json [FILE]]

import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadScenarios, startSim } from '@floe-rl/sim';
import { sweBenchImage } from '#data/datasets/images';
import { repositoryRoot } from '../../tools/repository.ts';
import { debianImageMissing, makeDebianImage } from '../fixtures/debian-image.ts';
import { blocksOf, isShell } from '../pages/blocks.ts';
import { runPage } from '../pages/page-run.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';
import { run, type Venv, venvWith } from '../services/venv.ts';

const { json } = readOptions({});

const SOURCES = join(repositoryRoot(), 'verify', 'swebench');
const DJANGO = 'Django==2.2.28';
/** Python packages: what Django needs, and what the guide uses to convert the rows. */
const IN_IMAGE = ['pytz==2025.2', 'sqlparse==0.4.4'];
const IN_GUIDE = ['pandas==2.3.3', 'pyarrow==22.0.0'];
const PACKAGES = [
  ...['base-files', 'bash', 'coreutils', 'dash', 'diffutils', 'findutils', 'grep', 'gzip', 'sed', 'tar'],
  ...['git', 'libstdc++6', 'python3', 'util-linux'],
];
/** Rows by instance: whether the simulated engine resolves the row, and the name of the newline character in its issue. */
const ROWS = {
  'django__django-11099': { isResolved: true, character: 'newline' },
  'django__django-11100': { isResolved: false, character: 'line feed' },
};
const SAMPLES = 4;
/** Number of rows for `floe generate`. Step 2 of the guide makes only the row that the simulated engine resolves. */
const GENERATED_ROWS = 1;
/** Maximum time in milliseconds for all commands of the guide. */
const LIMIT_MS = 1_800_000;

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
  // "pip install -e ." and Conda leave these files in the published images.
  writeFileSync(join(library, 'testbed.pth'), '/testbed\n');
  mkdirSync(join(root, 'opt', 'miniconda3', 'bin'), { recursive: true });
  writeFileSync(join(root, 'opt', 'miniconda3', 'bin', 'activate'), 'conda() { :; }\n');
  run('ln', ['-s', 'python3', join(root, 'usr', 'bin', 'python')]);
  return { root, commit: git('rev-parse', 'HEAD') };
}

/** Whether a session has the reward that its row should get, and a trace to train on. */
function isAsExpected({ reward, metadata, trajectory }: Result): boolean {
  const row = ROWS[metadata.instance_id as keyof typeof ROWS];
  const isTrained = trajectory?.traces.some(({ loss_mask }) => loss_mask.includes(1)) ?? false;
  return reward === (row.isResolved ? 1 : 0) && isTrained;
}

async function main(dir: string): Promise<void> {
  const venv = venvWith(join(homedir(), '.cache', 'floe', 'swebench-guide'), [IN_GUIDE]);
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
    const page = 'docs/guides/run-swe-bench-rows.md';
    const blocks = blocksOf(page, readFileSync(join(repositoryRoot(), page), 'utf8'))
      .filter(({ language }) => isShell(language))
      .map((block) => ({ ...block, notRun: null, file: null }));
    const results = await runPage(blocks, {
      ...{ dir, limitMs: LIMIT_MS, ports: { 8000: Number(new URL(sim.url).port) } },
      prepare: (place) => cpSync(join(dir, 'test.parquet'), join(place, 'test.parquet')),
      up: ['--dir', join(dir, 'data'), '--docker-socket', daemon.socketPath],
      env: { PATH: `${join(dir, 'bin')}:${join(venv.dir, 'bin')}:${process.env.PATH}` },
    });
    for (const { block, failure } of results) {
      if (failure !== null) throw new Error(`${page}:${block.line} ${failure}`);
    }
    report(results.length, readResults(join(dir, 'page')), readGenerated(join(dir, 'page')));
  } finally {
    await sim.close();
    await daemon.stop();
  }
}

function readResults(dir: string): Result[] {
  const lines = readFileSync(join(dir, 'results.jsonl'), 'utf8').trim().split('\n');
  return lines.map((line) => JSON.parse(line) as Result);
}

/** Returns the number of rows for which `floe generate` accepted a session as training data. */
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
  conclude({
    line: `swebench-guide: commands ${commands}, sessions ${keys.sessions}, resolved ${resolved}, as expected ${keys.as_expected}, rows generated ${generated}`,
    keys,
    isPassed: keys.as_expected === SAMPLES * Object.keys(ROWS).length && generated === GENERATED_ROWS,
    json,
  });
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
