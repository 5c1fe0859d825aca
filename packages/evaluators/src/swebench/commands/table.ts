import type { LogParserName } from '../parsers/registry.ts';

/** How the tests of some versions of a repository are run. The lines are run by bash in the repository. */
export type TestCommands = {
  /** The versions, separated by spaces. Many rows have the number of their pull request as the version. */
  readonly versions: string;
  /** Lines that prepare the environment. */
  readonly setup?: readonly string[];
  /** Lines that build the program under test. */
  readonly build?: readonly string[];
  readonly test: string | readonly string[];
};

/**
 * The text that is appended to the test command:
 * - `files`: the test files of the test patch.
 * - `modules`: the same files as names of Python modules.
 * - `cases`: the names of mypy's test cases in the patch.
 * - `calypso`: nothing is appended; one command for each file replaces the test command.
 */
export type Appended = 'files' | 'modules' | 'cases' | 'calypso';

export type Repository = {
  readonly parser: LogParserName;
  /** Whether the tests run in the Conda environment `testbed`. */
  readonly conda?: boolean;
  readonly appends?: Appended;
  readonly commands: readonly TestCommands[];
};

export type Repositories = Readonly<Record<string, Repository>>;

/** Makes a command for each entry. A key has versions, and its value replaces `{}` in the command. */
export function forEach(
  command: string,
  values: Readonly<Record<string, string>>,
  build?: readonly string[],
): TestCommands[] {
  return Object.entries(values).map(([versions, value]) => ({
    versions,
    ...(build === undefined ? {} : { build }),
    test: filled(command, value),
  }));
}

/** Makes one command for each value. The value replaces `{}` in the command. */
export function allOf(command: string, values: readonly string[]): string[] {
  return values.map((value) => filled(command, value));
}

function filled(command: string, value: string): string {
  return command.replace('{}', () => value);
}
