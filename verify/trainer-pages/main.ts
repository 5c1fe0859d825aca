// `npm run verify -- trainer-pages`: runs the commands of the pages of docs/trainers, each in an empty folder, from the installation of the trainer
// to its first optimizer step, and compares the lines that they print with those that the pages quote. Ends with
// "trainer-pages: P pages, R first steps, F failed, S skipped".
//
//   npm run verify -- trainer-pages [--only NAME]… [--keep] [--json [FILE]]
//
// `--only` takes names of pages, such as trl. `--keep` keeps the folders of the pages, with the output of their commands, also when they passed.

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { messageOf, systemClock } from '@floe-rl/core';
import { takeJsonOption } from '../../tools/json-option.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { installUv } from '../trainers/install.ts';
import { readPage } from './page.ts';
import { type Outcome, runPage } from './run.ts';

const { args, json } = takeJsonOption(process.argv.slice(2));
const { values: options } = parseArgs({
  args: [...args],
  options: {
    only: { type: 'string', multiple: true, default: [] },
    keep: { type: 'boolean', default: false },
  },
});

const PAGES = join(repositoryRoot(), 'docs', 'trainers');

type Row = Outcome & { readonly page: string; readonly seconds: number; readonly noStep: string | null };

function selectedPages(): string[] {
  const names = readdirSync(PAGES)
    .filter((file) => file.endsWith('.md'))
    .map((file) => basename(file, '.md'))
    .sort();
  const unknown = options.only.find((name) => !names.includes(name));
  if (unknown !== undefined) {
    console.error(`there is no page "${unknown}"; there are ${names.join(', ')}`);
    process.exit(2);
  }
  return options.only.length === 0 ? names : names.filter((name) => options.only.includes(name));
}

async function tested(page: string): Promise<Row> {
  console.error(`▸ ${page}`);
  const startedMs = systemClock.monotonicMs();
  const folder = mkdtempSync(join(tmpdir(), `floe-page-${page}-`));
  const { noStep, outcome } = await outcomeOf(page, folder);
  const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
  if (outcome.failure === null && !options.keep) rmSync(folder, { recursive: true });
  else console.error(`  the files are in ${folder}`);
  return { page, seconds, noStep, ...outcome };
}

async function outcomeOf(
  page: string,
  folder: string,
): Promise<{ readonly noStep: string | null; readonly outcome: Outcome }> {
  try {
    const read = readPage(readFileSync(join(PAGES, `${page}.md`), 'utf8'));
    return { noStep: read.noStep, outcome: await runPage(read, folder) };
  } catch (error) {
    const failure = messageOf(error);
    return { noStep: null, outcome: { commands: 0, printed: [], failure } };
  }
}

function resultOf({ failure, noStep }: Row): string {
  if (failure !== null) return 'failed';
  return noStep === null ? 'first step' : 'skipped after the samples';
}

function printTable(rows: readonly Row[]): void {
  console.log('| page | commands | seconds | result | printed, or reason |');
  console.log('|---|---|---|---|---|');
  for (const row of rows) {
    const reason = row.failure ?? [...row.printed, ...(row.noStep === null ? [] : [row.noStep])].join('; ');
    const cells = [row.page, row.commands, row.seconds.toFixed(0), resultOf(row), reason.replaceAll('\n', ' ↵ ')];
    console.log(`| ${cells.join(' | ')} |`);
  }
}

installUv();
const rows: Row[] = [];
// One after the other: each page has a server, sandboxes and a trainer.
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
console.log(`\ntrainer-pages: ${pages} pages, ${steps} first steps, ${failed} failed, ${skipped} skipped`);
if (json.line) console.log(JSON.stringify(totals));
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(totals)}\n`);
if (failed > 0) process.exitCode = 1;
