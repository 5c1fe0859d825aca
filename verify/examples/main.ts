// `npm run verify -- examples [NAME…] [--json [FILE]]`: runs the commands of the recipes in `examples/` and of the skills in `skills/`, and
// compares what they print last with what the page quotes. With arguments, runs only the folders of these names.
// Ends with "examples: P pages, C commands, F failed, N not run".

import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { takeJsonOption } from '../../tools/json-option.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { blocksOf, PageRun } from './page.ts';

const ROOT = repositoryRoot();
const { args: names, json } = takeJsonOption(process.argv.slice(2));

type Row = {
  readonly page: string;
  readonly commands: number;
  readonly not_run: readonly string[];
  readonly seconds: number;
  readonly failure: string | null;
};

/** Returns the paths of the pages with commands: `README.md` of a recipe, `SKILL.md` of a skill. */
function pages(): string[] {
  const found = [['examples', 'README.md'] as const, ['skills', 'SKILL.md'] as const].flatMap(([folder, file]) =>
    readdirSync(join(ROOT, folder)).map((name) => join(ROOT, folder, name, file)),
  );
  const all = found.filter((path) => existsSync(path) && blocksOf(readFileSync(path, 'utf8')).length > 0);
  const unknown = names.find((name) => !all.some((path) => nameOf(path) === name));
  if (unknown !== undefined) {
    console.error(`there is no recipe or skill "${unknown}"; there are ${all.map(nameOf).join(', ')}`);
    process.exit(2);
  }
  return all.filter((path) => names.length === 0 || names.includes(nameOf(path)));
}

function nameOf(path: string): string {
  return basename(dirname(path));
}

/**
 * Makes the folder in which the commands of a page are run: for a skill a copy of its folder, with the package floe; for a recipe one with links to
 * everything that is in this checkout, so that new files do not get into it.
 */
function makePlace(place: string, path: string): void {
  if (basename(path) === 'SKILL.md') {
    cpSync(dirname(path), place, { recursive: true });
    mkdirSync(join(place, 'node_modules'));
    symlinkSync(join(ROOT, 'packages', 'floe'), join(place, 'node_modules', 'floe'));
    symlinkSync(join(ROOT, 'node_modules', 'zod'), join(place, 'node_modules', 'zod'));
    return;
  }
  mkdirSync(place);
  for (const name of readdirSync(ROOT))
    if (!/^(\.git|\.floe|release)$/.test(name)) symlinkSync(join(ROOT, name), join(place, name));
}

async function runPage(path: string): Promise<Row> {
  const startedMs = systemClock.monotonicMs();
  const blocks = blocksOf(readFileSync(path, 'utf8'));
  const dir = mkdtempSync(join(tmpdir(), 'floe-example-'));
  const place = join(dir, 'page');
  makePlace(place, path);
  const pageRun = await PageRun.in(place, dir);
  const runnable = blocks.filter(({ notRun }) => notRun === null);
  let failure: string | null = null;
  try {
    await pageRun.run(runnable);
  } catch (error) {
    failure = (error as Error).message;
  } finally {
    await pageRun.close();
    rmSync(dir, { recursive: true, force: true });
  }
  const page = relative(ROOT, path);
  const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
  return { page, commands: runnable.length, not_run: blocks.flatMap(({ notRun }) => notRun ?? []), seconds, failure };
}

const rows: Row[] = [];
for (const path of pages()) {
  const row = await runPage(path);
  rows.push(row);
  console.log(
    `${row.failure === null ? 'passed' : 'FAILED'}  ${row.page}: ${row.commands} blocks, ${row.seconds.toFixed(0)} s`,
  );
  for (const reason of row.not_run) console.log(`        not run: ${reason}`);
  if (row.failure !== null) console.log(`        ${row.failure.replaceAll('\n', '\n        ')}`);
}
const keys = {
  pages: rows.length,
  commands: rows.reduce((sum, { commands }) => sum + commands, 0),
  failed: rows.filter(({ failure }) => failure !== null).length,
  not_run: rows.reduce((sum, { not_run }) => sum + not_run.length, 0),
};
console.log(`examples: ${keys.pages} pages, ${keys.commands} commands, ${keys.failed} failed, ${keys.not_run} not run`);
if (json.line) console.log(JSON.stringify(keys));
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify({ ...keys, rows }, null, 2)}\n`);
if (keys.failed > 0) process.exitCode = 1;
