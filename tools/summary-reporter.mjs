// A line for each test file and what failed in it; at the end the list of skips with their reasons, and the line "N passed, N failed".

import { writeSync } from 'node:fs';
import { relative } from 'node:path';

const indent = (text) => text.replace(/^/gm, '    ');

/** All of it, whoever reads: what is still queued when a process ends is lost. */
function print(text) {
  let bytes = Buffer.from(`${text}\n`);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(1, bytes));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

export default class SummaryReporter {
  onTestModuleEnd(module) {
    const tests = [...module.children.allTests()];
    const failed = tests.filter((test) => test.result().state === 'failed');
    const mark = failed.length > 0 || module.errors().length > 0 ? 'FAIL' : 'ok  ';
    const seconds = (module.diagnostic().duration / 1000).toFixed(1);
    console.log(`${mark} ${relative(process.cwd(), module.moduleId)} (${tests.length} tests, ${seconds} s)`);
    for (const error of module.errors()) console.log(error.stack ?? error.message);
    for (const test of failed) {
      for (const error of test.result().errors)
        console.log(`\n  ${test.fullName}\n${indent(error.stack ?? error.message)}`);
      for (const error of test.result().errors) if (error.diff) console.log(indent(error.diff));
    }
  }

  onTestRunEnd(modules, unhandledErrors) {
    let passed = 0;
    let failed = unhandledErrors.length;
    const skipped = [];
    const failures = [];
    for (const error of unhandledErrors)
      console.log(`\nFAIL outside of any test\n${indent(error.stack ?? error.message)}`);
    for (const module of modules) {
      if (module.errors().length > 0) {
        failed++;
        failures.push(`${module.moduleId}: could not be loaded`);
      }
      for (const test of module.children.allTests()) {
        const result = test.result();
        if (result.state === 'passed') passed++;
        else if (result.state === 'failed') {
          failed++;
          failures.push(`${module.moduleId}: ${test.fullName}`);
        } else skipped.push(`${test.fullName}: ${result.note ?? 'no reason given'}`);
      }
    }
    // The other reporters print at this moment too; the closing line has to be the last one.
    process.on('exit', () => {
      if (skipped.length > 0) print(`\nskipped (${skipped.length}):\n${skipped.map((line) => `  ${line}`).join('\n')}`);
      if (failures.length > 0) print(`\nfailed:\n${failures.map((line) => `  ${line}`).join('\n')}`);
      print(`\n${passed} passed, ${failed} failed`);
    });
  }
}
