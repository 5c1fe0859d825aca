import { C_GO_RUST } from './c-go-rust.ts';
import { JAVA } from './java.ts';
import { JAVASCRIPT } from './javascript.ts';
import { PHP_RUBY } from './php-ruby.ts';
import { PYTHON } from './python.ts';
import { SWE_GYM } from './swe-gym.ts';
import type { Repository, TestCommands } from './table.ts';

const REPOSITORIES: ReadonlyMap<string, Repository> = new Map(
  [PYTHON, SWE_GYM, JAVASCRIPT, JAVA, C_GO_RUST, PHP_RUBY].flatMap((repositories) =>
    Object.entries(repositories).map(([name, repository]) => [name.toLowerCase(), repository] as const),
  ),
);

/** Repositories whose logs contain only failures (`FAIL_ONLY_REPOS` of swebench 5.0.2). */
const FAIL_ONLY: ReadonlySet<string> = new Set([
  'chartjs/chart.js',
  'processing/p5.js',
  'markedjs/marked',
  'bpmn-io/bpmn-js',
  'openlayers/openlayers',
  'eslint/eslint',
]);

/** Returns a repository by its name, ignoring case; `undefined` when it is not in the table. */
export function repositoryOf(name: string): Repository | undefined {
  return REPOSITORIES.get(name.toLowerCase());
}

export function isFailOnly(name: string): boolean {
  return FAIL_ONLY.has(name.toLowerCase());
}

/** Returns how the tests of a version are run; `undefined` when the version is not in the table. */
export function commandsOf(repository: Repository, version: string): TestCommands | undefined {
  return repository.commands.find(({ versions }) => versions.split(' ').includes(version));
}
