// Vitest reporter. It prints a line for each test file, with the file's failures. At the end it prints each reason for skipped tests once
// with its count, the list of failures, and the line "N passed, N failed".
import { writeSync } from 'node:fs';
import { relative } from 'node:path';
import type { Reporter, SerializedError, TestCase, TestModule, TestSuite } from 'vitest/node';

const indent = (text: string): string => text.replace(/^/gm, '    ');

const textOf = (error: SerializedError): string => error.stack ?? error.message;

const HOOK_FAILED = 'a beforeAll or afterAll failed';

/** Returns the groups of tests whose own `beforeAll` or `afterAll` failed. Vitest then exits with 1, even if every test passed. */
function failedSuites(module: TestModule): TestSuite[] {
  return [...module.children.allSuites()].filter((suite) => suite.errors().length > 0);
}

/** Writes all of `text` synchronously to standard output, because output that is still queued when a process exits is lost. */
function print(text: string): void {
  let bytes = Buffer.from(`${text}\n`);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(1, bytes));
    } catch (error) {
      if (!(error instanceof Error) || !('code' in error) || error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

/** Counts the passed, failed and skipped tests of a whole test run. */
class Totals {
  passed = 0;
  failed = 0;
  readonly failures: string[] = [];
  /** Number of skipped tests by the reason that the test stated. */
  readonly skips = new Map<string, number>();

  addModule(module: TestModule): void {
    if (module.errors().length > 0) this.fail(`${module.moduleId}: could not be loaded`);
    for (const suite of failedSuites(module)) this.fail(`${module.moduleId}: ${suite.fullName}: ${HOOK_FAILED}`);
    for (const test of module.children.allTests()) this.addTest(module, test);
  }

  fail(name: string): void {
    this.failed++;
    this.failures.push(name);
  }

  private addTest(module: TestModule, test: TestCase): void {
    const result = test.result();
    if (result.state === 'passed') this.passed++;
    else if (result.state === 'failed') this.fail(`${module.moduleId}: ${test.fullName}`);
    else {
      const reason = (result.state === 'skipped' ? result.note : undefined) ?? `no reason given: ${test.fullName}`;
      this.skips.set(reason, (this.skips.get(reason) ?? 0) + 1);
    }
  }
}

export default class SummaryReporter implements Reporter {
  onTestModuleEnd(module: TestModule): void {
    const tests = [...module.children.allTests()];
    const failed = tests.filter((test) => test.result().state === 'failed');
    const suites = failedSuites(module);
    const mark = failed.length + suites.length + module.errors().length > 0 ? 'FAIL' : 'ok  ';
    const seconds = (module.diagnostic().duration / 1000).toFixed(1);
    console.log(`${mark} ${relative(process.cwd(), module.moduleId)} (${tests.length} tests, ${seconds} s)`);
    for (const error of module.errors()) console.log(textOf(error));
    for (const suite of suites) {
      for (const error of suite.errors())
        console.log(`\n  ${suite.fullName}: ${HOOK_FAILED}\n${indent(textOf(error))}`);
    }
    for (const test of failed) {
      for (const error of test.result().errors ?? []) {
        console.log(`\n  ${test.fullName}\n${indent(textOf(error))}`);
        if (typeof error.diff === 'string') console.log(indent(error.diff));
      }
    }
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly SerializedError[]): void {
    const totals = new Totals();
    for (const error of unhandledErrors) {
      console.log(`\nFAIL outside of any test\n${indent(textOf(error))}`);
      totals.fail('an error outside of any test');
    }
    for (const module of modules) totals.addModule(module);
    // The totals are printed when the process exits, because other reporters also print at the end and the line "N passed, N failed" must
    // be the last.
    process.on('exit', () => printTotals(totals));
  }
}

function printTotals({ passed, failed, failures, skips }: Totals): void {
  const skipped = [...skips].sort(([, a], [, b]) => b - a);
  const count = skipped.reduce((sum, [, tests]) => sum + tests, 0);
  const lines = skipped.map(([reason, tests]) => `  ${tests} ${tests === 1 ? 'test' : 'tests'}: ${reason}`);
  if (count > 0) print(`\nskipped (${count}):\n${lines.join('\n')}`);
  if (failures.length > 0) print(`\nfailed:\n${failures.map((line) => `  ${line}`).join('\n')}`);
  print(`\n${passed} passed, ${failed} failed`);
}
