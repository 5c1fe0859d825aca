// Closes a test run with the list of skips and their reasons, and the line "N passed, N failed".

export default class SummaryReporter {
  onTestRunEnd(modules, unhandledErrors) {
    let passed = 0;
    let failed = unhandledErrors.length;
    const skipped = [];
    const failures = [];
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
      if (skipped.length > 0)
        console.log(`\nskipped (${skipped.length}):\n${skipped.map((line) => `  ${line}`).join('\n')}`);
      if (failures.length > 0) console.log(`\nfailed:\n${failures.map((line) => `  ${line}`).join('\n')}`);
      console.log(`\n${passed} passed, ${failed} failed`);
    });
  }
}
