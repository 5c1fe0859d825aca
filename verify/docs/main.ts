// `npm run verify -- docs`: checks the documentation. Every link and anchor of the pages and of the built site leads somewhere. Every command
// runs, or a comment states why it does not run. Code and data in the pages are valid, names and paths exist, and every denial has a proof.
// Ends with "docs: C commands, P passed, F failed".
//
//   npm run verify -- docs [--quick] [--only TEXT]… [--json [FILE]]

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { dialectNameSchema, engineKindSchema, runtimeBackendSchema } from '@floe-rl/core/schema';
import { evaluatorRegistry } from '@floe-rl/evaluators';
import { harnessRegistry } from '@floe-rl/node';
import { floeProgram } from '../../tools/reference/command-line.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { buildSite } from '../../tools/site/build.ts';
import { readSources } from '../../tools/site/sources.ts';
import { type Block, blocksOf, isShell } from '../pages/blocks.ts';
import { type BlockResult, runPage } from '../pages/page-run.ts';
import { readOptions } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { checkCommandLines, type ProgramNames, startsPrograms } from './command-lines.ts';
import { checkData } from './data.ts';
import { checkDenials } from './denials.ts';
import type { Finding } from './finding.ts';
import { KNOWN_DENIALS } from './known-denials.ts';
import { checkIndex, checkSiteLinks, checkSourceLinks } from './links.ts';
import { checkNames, type NamedKind } from './names.ts';
import { checkPaths } from './paths.ts';
import { checkJavaScript, checkPython, checkTypeScript } from './snippets.ts';

/** Languages of blocks that people read, such as output and diagrams. They are not checked. */
const TEXT = new Set(['', 'text']);
const DATA = new Set(['yaml', 'json', 'toml']);
const JAVASCRIPT = new Set(['js', 'mjs']);
const PYTHON = new Set(['py', 'python']);
/** Pages whose commands take more than ten seconds, for instance because they install packages. `--quick` leaves these commands out. */
const SLOW_PAGES = new Set([
  'docs/environments.md',
  'docs/evaluators-answers.md',
  'docs/generate.md',
  'docs/getting-started.md',
  'docs/limits.md',
  'docs/trainer-formats.md',
]);
/** Number of pages whose commands run at the same time. Each page has a server and a few sessions. */
const PARALLEL_PAGES = 2;

/** Kinds of things in the program that pages mention by name. */
const KINDS: readonly NamedKind[] = [
  { noun: 'back ?ends?', names: runtimeBackendSchema.options },
  { noun: 'evaluators?', names: evaluatorRegistry().names() },
  { noun: 'dialects?', names: dialectNameSchema.options },
  { noun: 'engines? (?:of )?(?:the )?kinds?', names: engineKindSchema.options },
  { noun: 'harness(?:es)?', names: [...harnessRegistry().keys()] },
];

const { options, json } = readOptions({
  quick: { type: 'boolean', default: false },
  only: { type: 'string', multiple: true, default: [] },
});
const root = repositoryRoot();
const startedMs = systemClock.monotonicMs();
const findings: Finding[] = [];

function progress(text: string): void {
  console.error(`▸ ${text} (${((systemClock.monotonicMs() - startedMs) / 1000).toFixed(0)} s)`);
}

/** Returns the names of the programs that `npm run KIND` lists, and of their parts. */
function namesOf(kind: keyof ProgramNames): Set<string> {
  const { stdout } = spawnSync(process.execPath, [join(root, '.build', kind, 'main.js')], { encoding: 'utf8' });
  return new Set([...stdout.matchAll(/^ {2,4}([\w-]+) {2}/gm)].map(([, name = '']) => name));
}

/** Builds the site and checks the addresses in it. */
function checkSite(): void {
  const out = mkdtempSync(join(tmpdir(), 'floe-site-'));
  try {
    buildSite({ root, out, version: 'checked' });
    const { links, findings: ofSite } = checkSiteLinks(out);
    findings.push(...ofSite);
    progress(`${links} addresses in the site`);
  } finally {
    rmSync(out, { recursive: true });
  }
}

/** Reports blocks in a language that is neither checked nor marked. */
function checkLanguages(blocks: readonly Block[]): Finding[] {
  const known = [TEXT, DATA, JAVASCRIPT, PYTHON, new Set(['ts', 'sh', 'bash'])];
  return blocks
    .filter(({ language, notRun }) => notRun === null && !known.some((set) => set.has(language)))
    .map(({ page, line, language }) => ({
      where: `${page}:${line}`,
      problem: `a block of ${language} is not checked: mark it with <!-- not run: REASON -->`,
    }));
}

/**
 * Checks that every verification program exists that a reason names. A reason states why a block is not run here, for example because `npm run
 * verify -- NAME` runs it.
 */
function checkReasons(blocks: readonly Block[], names: ProgramNames): Finding[] {
  return blocks.flatMap(({ page, line, notRun }) => {
    const named = [...(notRun ?? '').matchAll(/npm run verify -- ([\w-]+)/g)].map(([, name = '']) => name);
    const missing = named.filter((name) => !names.verify.has(name));
    return missing.map((name) => ({ where: `${page}:${line}`, problem: `npm run verify has no program ${name}` }));
  });
}

/** Returns why the commands of a block without a "not run" comment are not run; `null` when they are run. */
function reasonNotToRun(block: Block): string | null {
  if (!isShell(block.language)) return null;
  if (/^(?:examples|skills)\//.test(block.page)) return '`npm run verify -- examples` runs the page';
  if (startsPrograms(block)) return 'starts a program that has its own result; only its name is checked';
  return options.quick && SLOW_PAGES.has(block.page) ? 'left out by --quick' : null;
}

/** Runs the commands of all pages, some pages at the same time. */
async function runPages(byPage: ReadonlyMap<string, readonly Block[]>): Promise<BlockResult[]> {
  const waiting = [...byPage].filter(([, blocks]) =>
    blocks.some(({ language, notRun }) => isShell(language) && notRun === null),
  );
  const results: BlockResult[] = [];
  const work = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const [page, blocks] = next;
      const of = await runPage(blocks);
      results.push(...of);
      const failed = of.filter(({ failure }) => failure !== null).length;
      progress(`${page}: ${of.length} blocks of commands, ${failed} failed`);
    }
  };
  await Promise.all(Array.from({ length: PARALLEL_PAGES }, work));
  return results;
}

const sources = readSources(root);
const names: ProgramNames = { verify: namesOf('verify'), bench: namesOf('bench') };
const byPage = new Map<string, Block[]>();
for (const { path, markdown } of sources.pages) {
  const isWanted = options.only.length === 0 || options.only.some((text) => path.includes(text));
  if (!isWanted) continue;
  try {
    byPage.set(
      path,
      blocksOf(path, markdown).map((block) => ({ ...block, notRun: block.notRun ?? reasonNotToRun(block) })),
    );
  } catch (error) {
    findings.push({ where: path, problem: (error as Error).message });
  }
}
const blocks = [...byPage.values()].flat();
const checked = blocks.filter(({ notRun }) => notRun === null);

const ofSources = checkSourceLinks(root, sources);
findings.push(...ofSources.findings, ...checkIndex(sources), ...checkLanguages(blocks), ...checkReasons(blocks, names));
const { links } = ofSources;
progress(`${links} links`);
checkSite();
const program = await floeProgram();
findings.push(
  ...blocks.filter(({ language }) => isShell(language)).flatMap((block) => checkCommandLines(block, program, names)),
);
findings.push(...checkJavaScript(checked.filter(({ language }) => JAVASCRIPT.has(language))));
findings.push(
  ...checkTypeScript(
    checked.filter(({ language }) => language === 'ts'),
    root,
  ),
);
findings.push(
  ...checkPython(
    checked.filter(({ language }) => PYTHON.has(language)),
    root,
  ),
);
// Decisions and measurements use the names of the time when they were written, so their names are not checked.
const present = sources.pages.filter(
  ({ path }) => byPage.has(path) && !/^docs\/(?:decisions|measurements)\//.test(path),
);
findings.push(
  ...present.flatMap(({ path, markdown }) => checkNames(path, markdown, KINDS, program)),
  ...sources.pages
    .filter(({ path }) => byPage.has(path))
    .flatMap(({ path, markdown }) => checkPaths(root, path, markdown)),
  ...(options.only.length === 0 ? checkDenials(root, present, KNOWN_DENIALS) : []),
);
const data = checkData(checked.filter(({ language }) => DATA.has(language)));
findings.push(...data.findings);
progress(`${checked.length} blocks of code and data, ${data.forms} of them in a form of the project`);
const results = await runPages(byPage);
for (const { block, failure } of results) {
  if (failure !== null) findings.push({ where: `${block.page}:${block.line}`, problem: failure });
}

const notRun = blocks.filter((block) => block.notRun !== null);
const reasons = notRun.map((block) => [`${block.page}:${block.line}`, block.notRun ?? '']);
console.log(tableOf(['not run', 'reason'], reasons));
for (const { where, problem } of findings) console.log(`FAIL ${where}: ${problem}`);
const passed = results.filter(({ failure }) => failure === null).length;
const totals = { commands: results.length, passed, failed: findings.length, not_run: notRun.length, links };
console.log(`\n${links} links, ${blocks.length} blocks, ${notRun.length} not run`);
conclude({
  line: `docs: ${totals.commands} commands, ${passed} passed, ${findings.length} failed`,
  keys: totals,
  isPassed: findings.length === 0,
  json,
});
