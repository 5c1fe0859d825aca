import { parseJson } from '@floe-rl/core';
import { z } from 'zod';
import { jestFiles } from './jest.ts';
import {
  END_OF_LOG,
  FAILED,
  type LogParser,
  lineParser,
  PASSED,
  Pauses,
  readLines,
  TestStatuses,
} from './log-parser.ts';
import { afterLast, beforeLast, isDigit, isSpace, lastMatch, pattern, strip } from './python-text.ts';
import { IndentedSuites } from './suites.ts';

const SUMMARY = pattern('^[ \\t]*\\d+ passing');
const NUMBERED = pattern('^\\d+\\)');
const TIMES = pattern('\\(\\d+ms\\)', 'g');

/** Mocha as highlight.js runs it. The name of a test contains the last line before it that was indented by two spaces or more. */
export const highlightJs: LogParser = lineParser((statuses) => {
  let suite: string | null = null;
  let isFirst = true;
  const record = (name: string, status: string): void => {
    const test = strip(name.replaceAll(TIMES, ''));
    statuses.set(suite === null ? test : `${suite}.${test}`, status);
  };
  return (line) => {
    if (!isFirst && SUMMARY.test(line)) return END_OF_LOG;
    isFirst = false;
    const stripped = strip(line);
    const sign = stripped.charAt(0);
    if (sign === '✓' || sign === '✔') record(line.slice(line.indexOf(sign) + 1), PASSED);
    else if (NUMBERED.test(stripped)) record(line.slice(line.indexOf(')') + 1), FAILED);
    else if (line.startsWith('  ')) suite = stripped;
    return undefined;
  };
});

const PRISM_COMMAND = './node_modules/.bin/mocha tests/run.js --reporter json';

/** Mocha's reporter `json`: an object after each command that the shell printed. */
export const prismJs: LogParser = function* (log) {
  const statuses = new TestStatuses();
  for (const run of log.split(PRISM_COMMAND).slice(1)) {
    const start = run.indexOf('{');
    const report = parseReport(`{${beforeLast(start < 0 ? run : run.slice(start + 1), '}')}}`);
    yield;
    if (report === null) return statuses.giveUp();
    for (const { fullTitle } of report.failures) statuses.set(fullTitle, FAILED);
    for (const { fullTitle } of report.passes) statuses.set(fullTitle, PASSED);
  }
  return statuses;
};

const titledTests = z.array(z.object({ fullTitle: z.string() }));
const reportSchema = z.object({ failures: titledTests, passes: titledTests });

/** Maximum number of values in a report. It limits how long the report of a hostile program delays other work on the event loop. */
const MAX_REPORT_VALUES = 1_000_000;

function parseReport(text: string): z.output<typeof reportSchema> | null {
  try {
    return reportSchema.parse(parseJson(text, MAX_REPORT_VALUES));
  } catch {
    return null;
  }
}

const LIGHTHOUSE_RUN = pattern('running\\s\\d+\\stest\\sfiles');
const PASSED_TEST = pattern('^✔\\s(.*)$');
const FAILED_TEST = pattern('^\\d+\\)\\s(.*)$');
const DURATION = pattern('\\s\\(\\d+m+s\\)', 'g');

/** Mocha with indented suites, once for each `running N test files`. The log of a run ends at `N passing`. */
const lighthouseMocha: LogParser = function* (log) {
  const statuses = new TestStatuses();
  for (const run of log.split(LIGHTHOUSE_RUN).slice(1)) {
    const suites = new IndentedSuites();
    const read = (line: string): void => {
      const stripped = strip(line);
      const passed = PASSED_TEST.exec(stripped)?.[1];
      const test = passed ?? FAILED_TEST.exec(stripped)?.[1];
      if (test === undefined) suites.read(line);
      else {
        const end = lastMatch(test, DURATION)?.index;
        statuses.set(suites.nameOf(test.slice(0, end)), passed === undefined ? FAILED : PASSED);
      }
    };
    yield* readLines(strip(run.slice(0, positionOfSummary(run))), read, statuses);
  }
  return statuses;
};

/** Position of the first `N passing` in a text; `undefined` when there is none. */
function positionOfSummary(text: string): number | undefined {
  for (let at = text.indexOf('passing'); at >= 0; at = text.indexOf('passing', at + 1)) {
    if (at < 2 || !isSpace(text, at - 1)) continue;
    let start = at - 1;
    while (start > 0 && isDigit(text, start - 1)) start -= 1;
    if (start < at - 1) return start;
  }
  return undefined;
}

const LIGHTHOUSE_COMMAND = './node_modules/.bin/mocha --reporter json';
const TITLE_KEY = '"fullTitle":';
const TITLE = pattern(`${TITLE_KEY}\\s"`, 'y');

/** Mocha's reporter `json`, read line by line after each command that the shell printed. */
const lighthouseJson: LogParser = function* (log) {
  const statuses = new TestStatuses();
  for (const run of log.split(LIGHTHOUSE_COMMAND).slice(1)) {
    yield* readTitles(beforeLast(afterLast(run, '"passes": ['), ']'), PASSED, statuses);
    yield* readTitles(beforeLast(afterLast(run, '"failures": ['), '],'), FAILED, statuses);
  }
  return statuses;
};

/** Reads `"fullTitle": "name",` at the end of a line. When a line has several such keys, only the first can have this form. */
function* readTitles(text: string, status: string, statuses: TestStatuses): Generator<undefined, void, undefined> {
  const pauses = new Pauses();
  let tried = -1;
  for (let at = text.indexOf(TITLE_KEY); at >= 0; at = text.indexOf(TITLE_KEY, at + 1)) {
    yield* pauses.at(at);
    TITLE.lastIndex = at;
    const start = TITLE.test(text) ? TITLE.lastIndex : -1;
    if (start <= tried) continue;
    tried = text.indexOf('\n', start);
    if (tried < 0) return;
    if (tried - 2 >= start && text.startsWith('",', tried - 2)) statuses.set(text.slice(start, tried - 2), status);
  }
}

/** The versions of Lighthouse whose tests run in Mocha with a reporter of their own. */
const LIGHTHOUSE_MOCHA_VERSIONS = ['9.5', '10.0', '10.2'];

export const lighthouse: LogParser = (log, row) => {
  if (LIGHTHOUSE_MOCHA_VERSIONS.includes(row.version)) return lighthouseMocha(log, row);
  return Number(row.version) >= 3 ? jestFiles(log, row) : lighthouseJson(log, row);
};
