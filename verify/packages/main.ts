// `npm run verify -- packages`: makes the packages of a release, installs each into an empty folder and uses it. Builds the image and runs a task
// in it.
//
//   npm run verify -- packages [--quick] [--json [FILE]]
//
// `--quick` leaves out the image.
// Ends with "packages: N checks, P passed, F failed".
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { takeJsonOption } from '../../tools/json-option.ts';
import { makePackages, type Packages, sizeOf } from '../../tools/packages.ts';
import { run } from '../services/venv.ts';
import { Checks } from './checks.ts';
import { checkImage, imageMissing } from './image.ts';
import { checkInstalled } from './installed.ts';

const { args, json } = takeJsonOption(process.argv.slice(2));
const { values: options } = parseArgs({ args: [...args], options: { quick: { type: 'boolean', default: false } } });

/** Largest size in bytes of the npm package `floe`. */
const MAX_TARBALL_BYTES = 3_000_000;
/** Paths that are not for users. */
const LEFT_OUT =
  /\.map$|\.tsbuildinfo$|(^|\/)\.stamp$|^(test|verify|bench|tools|\.build)\/|^src\/(?!sim\/assets\/)|__pycache__/;
/** Paths without which the package does not work. */
const NEEDED = [
  'dist/cli/main.js',
  'dist/dashboard/index.html',
  'LICENSE',
  'README.md',
  'python/src/floe/plugin_process.py',
  'skills/floe/SKILL.md',
];

function checkContents({ server }: Packages): string {
  const paths = run('tar', ['-tzf', server])
    .trim()
    .split('\n')
    .map((path) => path.replace(/^package\//, ''));
  const extra = paths.filter((path) => LEFT_OUT.test(path));
  if (extra.length > 0) throw new Error(`it has ${extra.slice(0, 5).join(', ')}`);
  const missing = NEEDED.filter((path) => !paths.includes(path));
  if (missing.length > 0) throw new Error(`it lacks ${missing.join(', ')}`);
  return `${paths.length} files`;
}

function checkSize({ server }: Packages): string {
  if (sizeOf(server) > MAX_TARBALL_BYTES) throw new Error(`${sizeOf(server)} bytes, more than ${MAX_TARBALL_BYTES}`);
  return `${sizeOf(server)} bytes`;
}

function checkRepeated(dir: string, { server, client, wheel }: Packages): string {
  const folder = join(dir, 'repeated');
  mkdirSync(folder);
  makePackages(folder);
  const differing = [server, client, wheel].filter(
    (path) => !readFileSync(path).equals(readFileSync(join(folder, basename(path)))),
  );
  if (differing.length > 0) throw new Error(`other bytes: ${differing.map((path) => basename(path)).join(', ')}`);
  return '';
}

async function main(dir: string): Promise<void> {
  const { check, findings } = new Checks();
  const folder = join(dir, 'packages');
  mkdirSync(folder);
  const packages = makePackages(folder);
  await check('the tarball of floe has what is needed, and no maps or tests', () => checkContents(packages));
  await check('the tarball of floe is small', () => checkSize(packages));
  await check('the same sources make the same bytes', () => checkRepeated(dir, packages));
  await checkInstalled(check, packages);
  const noImage = options.quick ? '--quick' : imageMissing();
  if (noImage !== null) console.log(`skipped the image: ${noImage}`);
  const imageBytes = noImage === null ? await checkImage(check) : null;

  const failed = findings.filter(({ isPassed }) => !isPassed).length;
  const keys = {
    checks: findings.length,
    passed: findings.length - failed,
    failed,
    tarball_bytes: sizeOf(packages.server),
    wheel_bytes: sizeOf(packages.wheel),
    image_bytes: imageBytes,
  };
  console.log(`packages: ${keys.checks} checks, ${keys.passed} passed, ${keys.failed} failed`);
  if (json.line) console.log(JSON.stringify(keys));
  if (json.file !== null) writeFileSync(json.file, `${JSON.stringify({ ...keys, findings }, null, 2)}\n`);
  if (failed > 0) process.exitCode = 1;
}

const dir = mkdtempSync(join(tmpdir(), 'floe-packages-'));
try {
  await main(dir);
} finally {
  rmSync(dir, { recursive: true, force: true });
}
