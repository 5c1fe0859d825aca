import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Finding } from './finding.ts';
import { sentencesOf } from './sentences.ts';

/** Matches paths of the repository's own folders in code font. */
const PATH = /`((?:packages|verify|bench|tools|test|dashboard)\/[\w./-]+)`/g;

/** Paths that the reader of a guide creates. */
const OF_READERS = /\/acme\./;

/** Checks that the paths of the repository exist which a page mentions in code font. */
export function checkPaths(root: string, page: string, markdown: string): Finding[] {
  return sentencesOf(markdown).flatMap(({ text, line }) =>
    [...text.matchAll(PATH)]
      .map(([, path = '']) => path)
      .filter((path) => !OF_READERS.test(path) && !existsSync(join(root, path)))
      .map((path) => ({ where: `${page}:${line}`, problem: `there is no ${path}` })),
  );
}
