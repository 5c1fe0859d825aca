// `npm run verify -- trainer-pages`: runs the commands of the pages of docs/trainers, from the installation of the trainer to its first
// optimizer step. Each page runs in an empty folder. Compares the lines that the commands print with the lines that the pages quote. Ends with
// "trainer-pages: P pages, R first steps, F failed, S skipped".
//
//   npm run verify -- trainer-pages [--only NAME]… [--keep] [--json [FILE]]
//
// `--only` takes names of pages, such as trl. `--keep` keeps the folders of the pages, with the output of their commands, also when they
// passed.

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { messageOf, systemClock } from '@floe-rl/core';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { findPython } from '../services/venv.ts';
import { installUv } from '../trainers/install.ts';
import { isShell } from './blocks.ts';
import { type FirstStep, readFirstStep } from './first-step.ts';
import { runPage } from './page-run.ts';

const { options, json } = readOptions({
  only: { type: 'string', multiple: true, default: [] },
  keep: { type: 'boolean', default: false },
});

const PAGES = join(repositoryRoot(), 'docs', 'trainers');
/** Maximum time in milliseconds for all commands of a page. */
const LIMIT_MS = 30 * 60_000;
/** The version of torch for all pages, so that their installations share its files. PyPI's build of this version also runs without a GPU. */
const CONSTRAINTS = 'torch==2.13.0\n';

/** The result of a page. `failure` is `null` when each command printed what the page quotes. */
type Outcome = { readonly commands: number; readonly printed: readonly string[]; readonly failure: string | null };
type Row = Outcome & { readonly page: string; readonly seconds: number; readonly noStep: string | null };

function selectedPages(): string[] {
  const names = readdirSync(PAGES)
    .filter((file) => file.endsWith('.md'))
    .map((file) => basename(file, '.md'))
    .sort();
  refuseUnknown('page', options.only, names);
  return options.only.length === 0 ? names : names.filter((name) => options.only.includes(name));
}

async function tested(page: string): Promise<Row> {
  console.error(`▸ ${page}`);
  const startedMs = systemClock.monotonicMs();
  const folder = mkdtempSync(join(tmpdir(), `floe-page-${page}-`));
  const row = await outcomeOf(page, folder);
  const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
  if (row.failure === null && !options.keep) rmSync(folder, { recursive: true });
  else console.error(`  the files are in ${folder}`);
  return { page, seconds, ...row };
}

async function outcomeOf(page: string, folder: string): Promise<Outcome & { readonly noStep: string | null }> {
  try {
    const read = readFirstStep(page, readFileSync(join(PAGES, `${page}.md`), 'utf8'));
    return { noStep: read.noStep, ...(await runFirstStep(read, folder)) };
  } catch (error) {
    return { noStep: null, commands: 0, printed: [], failure: messageOf(error) };
  }
}

/** Runs the blocks of a page as they are, except that packages are installed by uv, whose cache shares files between pages. */
async function runFirstStep({ blocks }: FirstStep, folder: string): Promise<Outcome> {
  const constraints = join(folder, 'constraints.txt');
  writeFileSync(constraints, CONSTRAINTS);
  const [python, uv] = [findPython(12, 12), installUv()];
  const results = await runPage(blocks, {
    dir: folder,
    prepare: () => {},
    programs: {
      pip: `exec '${uv}' pip "$@"`,
      'python3.12': `[ "$1 $2" = "-m venv" ] && exec '${uv}' venv -q -p '${python}' "$3"\nexec '${python}' "$@"`,
      uv: `exec '${uv}' "$@"`,
    },
    // With this user's home, uv and the harnesses use this user's caches.
    env: { HOME: process.env.HOME, UV_CONSTRAINT: constraints, HF_HUB_OFFLINE: '1', OMP_NUM_THREADS: '1' },
    ports: { 8000: null, 29500: null },
    ...{ isQuoted: true, limitMs: LIMIT_MS },
  });
  return {
    commands: blocks.filter(({ language }) => isShell(language)).length,
    printed: results.filter(({ block }) => block.quoted !== null).map(({ printed }) => printed),
    failure: results.find(({ failure }) => failure !== null)?.failure ?? null,
  };
}

function resultOf({ failure, noStep }: Row): string {
  if (failure !== null) return 'failed';
  return noStep === null ? 'first step' : 'skipped after the samples';
}

function printTable(rows: readonly Row[]): void {
  const cells = rows.map((row) => {
    const reason = row.failure ?? [...row.printed, ...(row.noStep === null ? [] : [row.noStep])].join('; ');
    return [row.page, row.commands, row.seconds.toFixed(0), resultOf(row), reason.replaceAll('\n', ' ↵ ')];
  });
  console.log(tableOf(['page', 'commands', 'seconds', 'result', 'printed, or reason'], cells));
}

const rows: Row[] = [];
// The pages run one after the other, because each starts a server, sandboxes and a trainer.
for (const page of selectedPages()) rows.push(await tested(page));
printTable(rows);

const passed = rows.filter(({ failure }) => failure === null);
const totals = {
  pages: rows.length,
  first_steps: passed.filter(({ noStep }) => noStep === null).reduce((sum, { printed }) => sum + printed.length, 0),
  failed: rows.length - passed.length,
  skipped: passed.filter(({ noStep }) => noStep !== null).length,
};
const { pages, first_steps: steps, failed, skipped } = totals;
const line = `\ntrainer-pages: ${pages} pages, ${steps} first steps, ${failed} failed, ${skipped} skipped`;
conclude({ line, keys: totals, isPassed: failed === 0, json });
