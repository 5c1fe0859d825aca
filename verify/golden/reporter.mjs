// The golden cases as a table, case by mode; then the figures as JSON, and the line "golden: C cases x M modes, P passed, F failed".

const indent = (text) => text.replace(/^/gm, '    ');

export default class GoldenReporter {
  onTestModuleEnd(module) {
    for (const error of module.errors()) console.log(error.stack ?? error.message);
    for (const test of module.children.allTests()) {
      const result = test.result();
      if (result.state !== 'failed') continue;
      for (const error of result.errors) console.log(`\n${test.fullName}\n${indent(error.stack ?? error.message)}`);
    }
  }

  onTestRunEnd(modules, unhandledErrors) {
    const cells = new Map();
    const titles = new Map();
    const modes = new Set();
    let passed = 0;
    let failed = unhandledErrors.length;
    for (const module of modules) {
      if (module.errors().length > 0) failed++;
      for (const test of module.children.allTests()) {
        const [mode, title] = test.fullName.split(' > ');
        const good = test.result().state === 'passed';
        if (good) passed++;
        else failed++;
        const letter = /^\(([a-w])\) /.exec(title ?? '')?.[1];
        if (letter === undefined) continue;
        modes.add(mode);
        titles.set(letter, [...new Set([...(titles.get(letter) ?? []), title.slice('(a) '.length)])]);
        const key = `${letter}/${mode}`;
        const cell = cells.get(key) ?? { passed: 0, failed: 0 };
        cell[good ? 'passed' : 'failed']++;
        cells.set(key, cell);
      }
    }
    const letters = [...titles.keys()].sort();
    const show = (letter, mode) => {
      const cell = cells.get(`${letter}/${mode}`);
      if (cell === undefined) return '-';
      return cell.failed > 0 ? `${cell.failed} FAILED` : `${cell.passed} ok`;
    };
    process.on('exit', () => {
      const columns = [...modes];
      console.log(`\n| case | ${columns.join(' | ')} | |`);
      console.log(`| --- | ${columns.map(() => '---').join(' | ')} | --- |`);
      for (const letter of letters) {
        const row = columns.map((mode) => show(letter, mode)).join(' | ');
        console.log(`| ${letter} | ${row} | ${titles.get(letter).join('; ')} |`);
      }
      console.log(`\n${JSON.stringify({ passed, failed, cases: letters.length, modes: columns.length })}`);
      console.log(`golden: ${letters.length} cases x ${columns.length} modes, ${passed} passed, ${failed} failed`);
    });
  }
}
