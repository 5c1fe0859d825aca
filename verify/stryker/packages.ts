// The parts of Stryker's packages that this program uses. The packages are installed in verify/stryker/node_modules when the program runs,
// so their own types are not available to the compiler.

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { repositoryRoot } from '../../tools/repository.ts';

/** The folder of this program's sources, with the package-lock.json of Stryker. */
export const FOLDER = join(repositoryRoot(), 'verify', 'stryker');

/** A place in a source file. Lines and columns are counted from 0. */
export type Position = { readonly line: number; readonly column: number };

/** A mutant as Stryker's instrumenter lists it, and as a checker receives it. */
export type FoundMutant = {
  readonly id: string;
  readonly fileName: string;
  readonly mutatorName: string;
  readonly replacement: string;
  readonly location: { readonly start: Position; readonly end: Position };
};

/** What Stryker reports about a mutant. `Ignored` and `CompileError` are mutants that were not tested. */
export type MutantStatus =
  | 'Killed'
  | 'Survived'
  | 'NoCoverage'
  | 'Timeout'
  | 'RuntimeError'
  | 'CompileError'
  | 'Ignored'
  | 'Pending';

/** A mutant with its result. Unlike in {@link FoundMutant}, lines and columns are counted from 1. */
export type TestedMutant = FoundMutant & {
  readonly status: MutantStatus;
  /** Why the mutant has this status, such as the message of the test that failed. */
  readonly statusReason?: string;
};

type InstrumenterModule = {
  readonly Instrumenter: new (
    log: Readonly<Record<string, () => void>>,
  ) => {
    instrument(
      files: readonly { readonly name: string; readonly mutate: true; readonly content: string }[],
      options: { readonly plugins: null; readonly excludedMutations: string[]; readonly ignorers: [] },
    ): Promise<{ readonly mutants: readonly FoundMutant[] }>;
  };
};

type StrykerModule = {
  readonly Stryker: new (
    options: Readonly<Record<string, unknown>>,
  ) => { runMutationTest(): Promise<readonly TestedMutant[]> };
};

/** Returns the URL of a package's main module in verify/stryker/node_modules. */
export function packageUrl(name: 'core' | 'instrumenter' | 'vitest-runner'): string {
  return pathToFileURL(join(FOLDER, 'node_modules', '@stryker-mutator', name, 'dist', 'src', 'index.js')).href;
}

export async function loadInstrumenter(): Promise<InstrumenterModule> {
  return (await import(packageUrl('instrumenter'))) as InstrumenterModule;
}

export async function loadStryker(): Promise<StrykerModule> {
  return (await import(packageUrl('core'))) as StrykerModule;
}
