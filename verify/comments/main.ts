// `npm run verify -- comments [--count N] [--seed N] [--json]`: prints randomly drawn comments of the code, each with the line of code that
// follows. A reader who does not know the project can then judge whether the comments are understood at first reading.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { seededRandom } from '@floe-rl/core';
import { proseOf } from '../../tools/lint/grammar.ts';
import { parseSource, type SourceFile } from '../../tools/lint/source.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';

const FOLDERS = ['packages', 'verify', 'bench', 'tools', 'test'];
/** Folders of installed packages and of compiled code, whose comments are not drawn. */
const LEFT_OUT: readonly string[] = ['node_modules', 'dist'];

const { options, json } = readOptions({
  count: { type: 'string', default: '60' },
  seed: { type: 'string', default: '1' },
});

type Drawn = {
  readonly path: string;
  /** Line number of the comment, counted from 1. */
  readonly line: number;
  /** The text in one line. Paragraphs, list items and tags begin after `¶`. */
  readonly text: string;
  /** The first line of code after the comment; for a comment at the end of a line, the code before it. */
  readonly code: string;
};

function sourceFiles(root: string, folder: string): SourceFile[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory()) return LEFT_OUT.includes(entry.name) ? [] : sourceFiles(root, path);
    return path.endsWith('.ts') ? [parseSource(path, readFileSync(join(root, path), 'utf8'))] : [];
  });
}

/** Returns the comments of a file that are prose, each with the code that it belongs to. */
function commentsOf(file: SourceFile): Drawn[] {
  const lines = file.text.split('\n');
  return proseOf(file).map(({ firstLine, lastLine, text }) => {
    const own = (lines[firstLine - 1] ?? '').replace(/\s*\/[/*].*$/, '').trim();
    const next = lines.slice(lastLine).find((line) => !/^\s*(\/\/|$)/.test(line)) ?? '';
    return { path: file.path, line: firstLine, text, code: own === '' ? next.trim() : own };
  });
}

const root = repositoryRoot();
const all = FOLDERS.flatMap((folder) => sourceFiles(root, folder)).flatMap(commentsOf);
const random = seededRandom(Number(options.seed));
const drawn: Drawn[] = [];
while (drawn.length < Number(options.count) && all.length > 0) {
  drawn.push(...all.splice(Math.floor(random() * all.length), 1));
}
for (const [index, { path, line, text, code }] of drawn.entries()) {
  const paragraphs = text.replaceAll(/\s*¶\s*/g, '\n   ');
  console.log(`${index + 1}. ${path}:${line}\n   ${paragraphs}\n   > ${code}\n`);
}
conclude({
  line: `comments: ${drawn.length} drawn of ${all.length + drawn.length} with seed ${options.seed}`,
  keys: { seed: Number(options.seed), drawn },
  isPassed: true,
  json,
});
