// `npm run verify -- examples [NAME…] [--json [FILE]]`: runs the commands of the recipes in `examples/` and of the skills in `skills/`, and
// compares what they print last with what the page quotes. With arguments, runs only the folders of these names.
// Ends with "examples: P pages, C commands, F failed, N not run".

import { cpSync, existsSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { Checks } from '../runner/checks.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { type Block, blocksOf, isShell } from './blocks.ts';
import { linkPackages, runPage } from './page-run.ts';

const ROOT = repositoryRoot();
/** Maximum time in milliseconds for all commands of a page. Some commands install packages. */
const LIMIT_MS = 900_000;
/** The program `node` of a page. For a TypeScript file it runs the compiled file, because Node 20 cannot run TypeScript. */
const NODE = `case "$1" in *.ts) file="${ROOT}/.build/\${1%.ts}.js"; shift; set -- "$file" "$@";; esac
exec '${process.execPath}' "$@"`;

const { names, json } = readOptions({}, { takesNames: true });
const checks = new Checks();

type Page = { readonly path: string; readonly name: string; readonly blocks: readonly Block[] };

/** Returns the pages with commands: `README.md` of a recipe, `SKILL.md` of a skill. */
function pages(): Page[] {
  const found = [['examples', 'README.md'] as const, ['skills', 'SKILL.md'] as const].flatMap(([folder, file]) =>
    readdirSync(join(ROOT, folder)).map((name) => join(ROOT, folder, name, file)),
  );
  return found.filter(existsSync).flatMap((path) => {
    const blocks = blocksOf(relative(ROOT, path), readFileSync(path, 'utf8'));
    const name = basename(dirname(path));
    return blocks.some(({ language }) => isShell(language)) ? [{ path, name, blocks }] : [];
  });
}

/**
 * Makes what the commands of a page find in their folder. For a skill, this is a copy of its folder and the package floe. For a recipe, it is
 * a link to each file and folder at the top of this checkout, so that new files do not get into the checkout.
 */
function makePlace(place: string, path: string): void {
  if (basename(path) === 'SKILL.md') {
    cpSync(dirname(path), place, { recursive: true });
    linkPackages(place);
    return;
  }
  for (const name of readdirSync(ROOT))
    if (!/^(\.git|\.floe|release)$/.test(name)) symlinkSync(join(ROOT, name), join(place, name));
}

const all = pages();
refuseUnknown(
  'recipe or skill',
  names,
  all.map(({ name }) => name),
);
const keys = { pages: 0, commands: 0, failed: 0, not_run: 0 };
for (const { path, blocks } of all.filter(({ name }) => names.length === 0 || names.includes(name))) {
  const results = await runPage(blocks, {
    ...{ prepare: (place) => makePlace(place, path), programs: { node: NODE } },
    // With this user's home, pip and npm use this user's caches.
    env: { HOME: process.env.HOME },
    ...{ isQuoted: true, limitMs: LIMIT_MS },
  });
  const failure = results.find((result) => result.failure !== null);
  const failures = failure === undefined ? [] : [`${failure.block.text.trim()}: ${failure.failure}`];
  checks.report(`${relative(ROOT, path)}, ${results.length} blocks`, failures);
  const reasons = blocks.filter(({ language }) => isShell(language)).flatMap(({ notRun }) => notRun ?? []);
  for (const reason of reasons) console.log(`        not run: ${reason}`);
  keys.pages++;
  keys.commands += results.length;
  keys.failed = checks.failed;
  keys.not_run += reasons.length;
}
conclude({
  line: `examples: ${keys.pages} pages, ${keys.commands} commands, ${keys.failed} failed, ${keys.not_run} not run`,
  keys,
  details: { ...keys, rows: checks.findings },
  isPassed: keys.failed === 0,
  json,
});
