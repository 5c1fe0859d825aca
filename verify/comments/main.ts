// `npm run verify -- comments [--count N] [--seed N] [--json]`: prints randomly drawn comments of the code, each with the line of code that
// follows. A reader who does not know the project can then judge whether the comments are understood at first reading.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { seededRandom } from '@floe-rl/core';
import { parseSource, type SourceFile } from '../../tools/lint/source.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';

const FOLDERS = ['packages', 'verify', 'bench', 'tools', 'test'];
/** Matches comments that are directives for tools such as biome. They are not drawn. */
const DIRECTIVE = /^\s*(biome-ignore|@ts-|words: quoted$)/;

const { options, json } = readOptions({
  count: { type: 'string', default: '60' },
  seed: { type: 'string', default: '1' },
});

type Drawn = {
  readonly path: string;
  /** Line number of the comment, counted from 1. */
  readonly line: number;
  readonly text: string;
  /** The first line of code after the comment; for a comment at the end of a line, the code before it. */
  readonly code: string;
};

function sourceFiles(root: string, folder: string): SourceFile[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory()) return entry.name === 'node_modules' ? [] : sourceFiles(root, path);
    return path.endsWith('.ts') ? [parseSource(path, readFileSync(join(root, path), 'utf8'))] : [];
  });
}

/** Returns the comments of a file. Consecutive line comments count as one comment. */
function commentsOf(file: SourceFile): Drawn[] {
  const lines = file.text.split('\n');
  const groups: { firstLine: number; lastLine: number; text: string; isBlock: boolean }[] = [];
  for (const comment of file.comments) {
    if (DIRECTIVE.test(comment.value)) continue;
    const firstLine = file.lineAt(comment.start);
    const lastLine = file.lineAt(comment.end);
    const isBlock = comment.type === 'Block';
    const text = comment.value.replaceAll(/^\s*\*+ ?/gm, '').trim();
    const last = groups.at(-1);
    if (!isBlock && last !== undefined && !last.isBlock && last.lastLine === firstLine - 1) {
      last.text = `${last.text} ${text}`;
      last.lastLine = lastLine;
    } else groups.push({ firstLine, lastLine, text, isBlock });
  }
  return groups.map(({ firstLine, lastLine, text }) => {
    const own = (lines[firstLine - 1] ?? '').replace(/\s*\/[/*].*$/, '').trim();
    const next = lines.slice(lastLine).find((line) => !line.trim().startsWith('//')) ?? '';
    const code = own === '' ? next.trim() : own;
    return { path: file.path, line: firstLine, text: text.replaceAll(/\s+/g, ' '), code };
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
  console.log(`${index + 1}. ${path}:${line}\n   ${text}\n   > ${code}\n`);
}
conclude({
  line: `comments: ${drawn.length} drawn of ${all.length + drawn.length} with seed ${options.seed}`,
  keys: { seed: Number(options.seed), drawn },
  isPassed: true,
  json,
});
