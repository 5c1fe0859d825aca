// Prints the failures, a table of the golden cases by engine mode, and the line "golden: C cases x M modes, P passed, F failed". When
// FLOE_GOLDEN_JSON is set, the last line is the same counts as JSON.

import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node';
import { tableOf } from '../runner/report.ts';

type Counts = { passed: number; failed: number };

const indent = (text: string): string => text.replace(/^/gm, '    ');

const textOf = (error: SerializedError): string => error.stack ?? error.message;

/** Collects the results of all tests by golden case (named by a letter) and engine mode, and prints them as a table. */
class Table {
  readonly totals: Counts = { passed: 0, failed: 0 };
  private readonly modes = new Set<string>();
  private readonly titles = new Map<string, Set<string>>();
  private readonly cells = new Map<string, Counts>();

  add(test: TestCase): void {
    const outcome = test.result().state === 'passed' ? 'passed' : 'failed';
    this.totals[outcome]++;
    const [mode = '', title = ''] = test.fullName.split(' > ');
    const [, letter, name] = /^\(([a-w])\) (.*)$/s.exec(title) ?? [];
    if (letter === undefined || name === undefined) return;
    this.modes.add(mode);
    this.titles.set(letter, (this.titles.get(letter) ?? new Set()).add(name));
    const key = `${letter}/${mode}`;
    const cell = this.cells.get(key) ?? { passed: 0, failed: 0 };
    cell[outcome]++;
    this.cells.set(key, cell);
  }

  get size(): { readonly cases: number; readonly modes: number } {
    return { cases: this.titles.size, modes: this.modes.size };
  }

  toMarkdown(): string {
    const modes = [...this.modes];
    const rows = [...this.titles]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([letter, titles]) => [letter, ...modes.map((mode) => this.cellText(letter, mode)), [...titles].join('; ')]);
    return tableOf(['case', ...modes, 'what'], rows);
  }

  private cellText(letter: string, mode: string): string {
    const cell = this.cells.get(`${letter}/${mode}`);
    if (cell === undefined) return '-';
    return cell.failed > 0 ? `${cell.failed} FAILED` : `${cell.passed} ok`;
  }
}

export default class GoldenReporter implements Reporter {
  onTestModuleEnd(module: TestModule): void {
    for (const error of module.errors()) console.log(textOf(error));
    for (const test of module.children.allTests()) {
      const result = test.result();
      if (result.state !== 'failed') continue;
      for (const error of result.errors) console.log(`\n${test.fullName}\n${indent(textOf(error))}`);
    }
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly SerializedError[]): void {
    const table = new Table();
    table.totals.failed += unhandledErrors.length;
    for (const module of modules) {
      if (module.errors().length > 0) table.totals.failed++;
      for (const test of module.children.allTests()) table.add(test);
    }
    // The table is printed when the process exits, because other reporters also print at the end and the closing line must be the last.
    process.on('exit', () => printTable(table));
  }
}

function printTable(table: Table): void {
  const { cases, modes } = table.size;
  const { passed, failed } = table.totals;
  console.log(`\n${table.toMarkdown()}\n`);
  console.log(`golden: ${cases} cases x ${modes} modes, ${passed} passed, ${failed} failed`);
  if (process.env.FLOE_GOLDEN_JSON !== undefined) console.log(JSON.stringify({ passed, failed, cases, modes }));
}
