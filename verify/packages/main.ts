// `npm run verify -- packages`: makes the packages of a release, installs each into an empty folder and runs the program of its README there. Builds
// the image and runs a task in it.
//
//   npm run verify -- packages [--quick] [--json [FILE]]
//
// `--quick` leaves out the image, and the READMEs of all packages but `core`, `capture` and `client`.
// Ends with "packages: N checks, P passed, F failed".
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { makePackages, type Packages, sizeOf } from '../../tools/packages.ts';
import { Checks } from '../runner/checks.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { run } from '../services/venv.ts';
import { checkImage, imageMissing } from './image.ts';
import { checkInstalled } from './installed.ts';
import { packagesWithReadme, runReadme, tarballOf } from './readmes.ts';

const { options, json } = readOptions({ quick: { type: 'boolean', default: false } });

/** Largest size in bytes of the npm package `floe`. */
const MAX_TARBALL_BYTES = 3_000_000;
/** Matches paths that a package must not contain, because users do not need them. */
const LEFT_OUT =
  /\.map$|\.tsbuildinfo$|(^|\/)\.stamp$|^(node_modules\/@floe-rl\/[^/]+\/)?(src|test|verify|bench|tools|\.build)\/|__pycache__/;
/** Paths that each package must contain. */
const NEEDED: Readonly<Record<string, readonly string[]>> = {
  floe: [
    'bin/floe.js',
    'dist/commands/main.js',
    'node_modules/@floe-rl/agents/python/src/floe/plugin_process.py',
    'node_modules/@floe-rl/node/harness-locks/pi/package-lock.json',
    'node_modules/@floe-rl/sandbox/dist/programs/box-server.js',
    'node_modules/@floe-rl/server/dist/dashboard/index.html',
    'node_modules/@floe-rl/sim/assets/tokenizer.json',
    'skills/floe/SKILL.md',
  ],
  '@floe-rl/agents': ['python/src/floe/plugin_process.py'],
  '@floe-rl/node': ['harness-locks/pi/package-lock.json', 'evaluator-locks/math_verify/requirements.txt'],
  '@floe-rl/sandbox': ['dist/programs/box-server.js'],
  '@floe-rl/server': ['dist/dashboard/index.html'],
  '@floe-rl/sim': ['assets/tokenizer.json'],
};
const QUICK_READMES: readonly string[] = ['@floe-rl/core', '@floe-rl/capture'];

function checkContents({ tarballs }: Packages): string {
  let files = 0;
  for (const [name, tarball] of tarballs) {
    const paths = run('tar', ['-tzf', tarball])
      .trim()
      .split('\n')
      .map((path) => path.replace(/^package\//, ''));
    const extra = paths.filter((path) => LEFT_OUT.test(path));
    if (extra.length > 0) throw new Error(`${name} has ${extra.slice(0, 5).join(', ')}`);
    const missing = ['LICENSE', 'README.md', ...(NEEDED[name] ?? [])].filter((path) => !paths.includes(path));
    if (missing.length > 0) throw new Error(`${name} lacks ${missing.join(', ')}`);
    files += paths.length;
  }
  return `${files} files in ${tarballs.size} packages`;
}

function checkSize(packages: Packages): string {
  const bytes = sizeOf(tarballOf(packages, 'floe'));
  if (bytes > MAX_TARBALL_BYTES) throw new Error(`${bytes} bytes, more than ${MAX_TARBALL_BYTES}`);
  return `${bytes} bytes`;
}

function checkRepeated(dir: string, { tarballs, wheel }: Packages): string {
  const folder = join(dir, 'repeated');
  mkdirSync(folder);
  makePackages(folder);
  const differing = [...tarballs.values(), wheel].filter(
    (path) => !readFileSync(path).equals(readFileSync(join(folder, basename(path)))),
  );
  if (differing.length > 0) throw new Error(`other bytes: ${differing.map((path) => basename(path)).join(', ')}`);
  return '';
}

async function main(dir: string): Promise<void> {
  const checks = new Checks();
  const { check, findings } = checks;
  const folder = join(dir, 'packages');
  mkdirSync(folder);
  const packages = makePackages(folder);
  await check('the tarballs have what is needed, and no maps or tests', () => checkContents(packages));
  await check('the tarball of floe is small', () => checkSize(packages));
  await check('the same sources make the same bytes', () => checkRepeated(dir, packages));
  // The program of the client needs the server that `checkInstalled` starts.
  const readmes = packagesWithReadme(packages).filter((name) => name !== '@floe-rl/client');
  for (const name of readmes.filter((each) => !options.quick || QUICK_READMES.includes(each))) {
    await check(`the program in the README of ${name} runs`, () => runReadme(name, packages));
  }
  await checkInstalled(check, packages);
  const noImage = options.quick ? '--quick' : imageMissing();
  if (noImage !== null) console.log(`skipped the image: ${noImage}`);
  const imageBytes = noImage === null ? await checkImage(check) : null;

  const { passed, failed } = checks;
  const keys = {
    checks: findings.length,
    passed,
    failed,
    tarball_bytes: sizeOf(tarballOf(packages, 'floe')),
    wheel_bytes: sizeOf(packages.wheel),
    image_bytes: imageBytes,
  };
  const line = `packages: ${keys.checks} checks, ${passed} passed, ${failed} failed`;
  conclude({ line, keys, details: { ...keys, findings }, isPassed: failed === 0, json });
}

const dir = mkdtempSync(join(tmpdir(), 'floe-packages-'));
try {
  await main(dir);
} finally {
  rmSync(dir, { recursive: true, force: true });
}
