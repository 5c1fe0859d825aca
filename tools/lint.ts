// Checks the rules that biome and knip do not cover: imports between packages and folders, file sizes, and calls that read the clock or random
// numbers. Also checks copies of functions that core has, maps of pending requests, assertions that cannot fail, the grammar of comments, and
// banned words. Banned words only give warnings; every other violation leads to exit status 1.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { checkAssertions } from './lint/assertions.ts';
import { checkCalls } from './lint/calls.ts';
import { checkChannels } from './lint/channels.ts';
import { checkCopies } from './lint/copies.ts';
import { checkGrammar } from './lint/grammar.ts';
import { checkCircles, checkImports, checkRooms, readPackages } from './lint/packages.ts';
import { checkSizes, PRODUCT, sizesOf } from './lint/sizes.ts';
import { type Problem, parseSource, type SourceFile } from './lint/source.ts';
import { checkTestPlace } from './lint/test-place.ts';
import { checkWords } from './lint/words.ts';
import { repositoryRoot } from './repository.ts';

const FOLDERS = ['packages', 'dashboard', 'verify', 'bench', 'tools', 'examples', 'test'];
const LEFT_OUT = ['node_modules', 'dist'];

function sourceFiles(root: string, folder: string): SourceFile[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory()) return LEFT_OUT.includes(entry.name) ? [] : sourceFiles(root, path);
    return /\.tsx?$/.test(path) ? [parseSource(path, readFileSync(join(root, path), 'utf8'))] : [];
  });
}

function print(kind: string, { path, line, message }: Problem): void {
  console.error(`${path}${line === 0 ? '' : `:${line}`}: ${kind}${message}`);
}

const root = repositoryRoot();
const files = FOLDERS.flatMap((folder) => sourceFiles(root, folder));
// The lint rules against direct calls of timers and clocks have two exceptions. Tests wait for real events and read real clocks, and the page
// runs in a browser.
const programs = files.filter(({ path }) => !/^(test|dashboard|packages\/[^/]+\/test)\//.test(path));
const packages = readPackages(root);
const problems = [
  ...checkCircles(packages),
  ...checkRooms(),
  ...files.flatMap((file) => checkImports(file, packages)),
  ...programs.flatMap(checkCalls),
  ...programs.flatMap(checkCopies),
  ...programs.flatMap(checkChannels),
  ...files.flatMap(checkAssertions),
  ...files.flatMap(checkTestPlace),
  ...files.flatMap(checkGrammar),
  ...checkSizes(files),
];
// The file with the list of banned words is left out, because it contains these words.
const warnings = files.filter(({ path }) => path !== 'tools/lint/words.ts').flatMap(checkWords);

for (const warning of warnings) print('warning: ', warning);
for (const problem of problems) print('', problem);
const product = files.filter(({ path }) => PRODUCT.test(path));
const { files: count, median, p90, max } = sizesOf(product);
console.error(
  `structure: ${packages.size} packages have ${count} files, median ${median}, p90 ${p90}, longest ${max} lines; ${problems.length} problems, ${warnings.length} warnings`,
);
process.exit(problems.length > 0 ? 1 : 0);
