// The plugins that Stryker loads in this program's process and in Stryker's own processes. Stryker accepts ranges of source text, which
// contain more mutants than the drawn ones, so a checker refuses the others. A reporter prints each survivor (a mutant that no test
// detected) as soon as it is known.

import { readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { keyOf, type Mutant } from './mutants.ts';
import type { FoundMutant, Position, TestedMutant } from './packages.ts';
import { isDetected, survivorText } from './results.ts';

/** Names of the plugins of this file in Stryker's options. */
export const CHECKER = 'drawn';
export const REPORTER = 'floe-progress';

/** Environment variable with the path of the file that contains the drawn mutants, as a JSON array of {@link Mutant}. */
export const DRAWN_VARIABLE = 'FLOE_STRYKER_DRAWN';

/** Number of tested mutants after which the progress is printed. */
const PROGRESS_STEP = 10;

type CheckResult = { readonly status: 'passed' } | { readonly status: 'compileError'; readonly reason: string };

function readDrawn(): ReadonlyMap<string, Mutant> {
  const path = process.env[DRAWN_VARIABLE];
  if (path === undefined) throw new Error(`${DRAWN_VARIABLE} is not set`);
  const mutants: readonly Mutant[] = JSON.parse(readFileSync(path, 'utf8'));
  return new Map(mutants.map((mutant) => [keyOf(mutant), mutant]));
}

/** Returns the key of a mutant of Stryker. `firstLine` is the number that Stryker gives to the first line and the first column. */
export function keyOfFound({ fileName, mutatorName, replacement, location }: FoundMutant, firstLine: 0 | 1): string {
  const shift = ({ line, column }: Position): Position => ({ line: line - firstLine, column: column - firstLine });
  return keyOf({
    file: relative(repositoryRoot(), fileName).replaceAll('\\', '/'),
    start: shift(location.start),
    end: shift(location.end),
    mutator: mutatorName,
    replacement,
  });
}

/** Refuses every mutant that was not drawn. */
class DrawnChecker {
  private drawn: ReadonlyMap<string, Mutant> = new Map();

  async init(): Promise<void> {
    this.drawn = readDrawn();
  }

  /** Returns groups of mutants that are checked together: a single group, because the check takes no time. */
  async group(mutants: readonly FoundMutant[]): Promise<readonly (readonly string[])[]> {
    return [mutants.map(({ id }) => id)];
  }

  async check(mutants: readonly FoundMutant[]): Promise<Readonly<Record<string, CheckResult>>> {
    return Object.fromEntries(mutants.map((mutant) => [mutant.id, this.resultOf(mutant)]));
  }

  private resultOf(mutant: FoundMutant): CheckResult {
    if (this.drawn.has(keyOfFound(mutant, 0))) return { status: 'passed' };
    return { status: 'compileError', reason: 'this mutant was not drawn' };
  }
}

/** Prints the survivors and the progress while the mutants are tested. */
class ProgressReporter {
  private drawn: ReadonlyMap<string, Mutant> | null = null;
  private tested = 0;
  private survived = 0;

  onDryRunCompleted(): void {
    console.error('▸ the tests pass without a mutant; testing the mutants');
  }

  onMutantTested(result: TestedMutant): void {
    this.drawn ??= readDrawn();
    const mutant = this.drawn.get(keyOfFound(result, 1));
    if (mutant === undefined) return;
    this.tested++;
    if (!isDetected(result.status)) {
      this.survived++;
      console.error(survivorText(mutant, result.status));
    }
    if (this.tested % PROGRESS_STEP === 0) {
      console.error(`${this.tested} of ${this.drawn.size} tested, ${this.survived} survived`);
    }
  }
}

export const strykerPlugins = [
  { kind: 'Checker', name: CHECKER, value: new DrawnChecker() },
  { kind: 'Reporter', name: REPORTER, value: new ProgressReporter() },
];
