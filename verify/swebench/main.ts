// `npm run verify -- swebench`: grades logs with the official Python package `swebench`, which it installs from PyPI, and with the evaluator
// `swebench`, and compares the statuses of the tests and the verdicts. Ends with "swebench: cases C, agree A".
//
//   npm run verify -- swebench [--logs N] [--seed N] [--only TEXT] [--json [FILE]]
//
// Some logs are the texts in the tests of the package's source archive; every parser gets all of them. Others are drawn from
// `sample-lines.ts`, N for each format (20 by default). All logs are also shuffled, cut, duplicated, coloured, given other statuses and
// changed in other ways (`cases.ts`). `--only` selects the parsers whose name contains TEXT.
import { seededRandom } from '@floe-rl/core';
import { grade } from '#evaluators/swebench/grading';
import { readLog } from '#evaluators/swebench/log';
import { type LogParserName, logParser } from '#evaluators/swebench/parsers/registry';
import { readOptions } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { casesFor } from './cases.ts';
import { type Case, installOfficial, type Official, type OfficialResult } from './package.ts';

const { options, json } = readOptions({
  logs: { type: 'string', default: '20' },
  seed: { type: 'string', default: '1' },
  only: { type: 'string', default: '' },
});

/** Maximum number of differences that are printed. */
const MAX_PRINTED = 5;

/**
 * What a grader reports about a log, in the same form for both graders: the status of each test, and the tests that pass and fail. A text
 * replaces it when the log cannot be graded.
 */
type Outcome = {
  readonly statuses: Readonly<Record<string, string>>;
  readonly resolved: boolean;
  readonly tests: Readonly<Record<string, readonly string[]>> | null;
};

function officialOutcome(result: OfficialResult): Outcome | 'unreadable' {
  if ('error' in result) return 'unreadable';
  const { FAIL_TO_PASS: failToPass, PASS_TO_PASS: passToPass } = result.tests ?? {};
  return {
    statuses: sorted(result.statuses),
    resolved: result.resolved,
    tests:
      failToPass === undefined || passToPass === undefined
        ? null
        : {
            f2p: failToPass.success,
            f2p_failed: failToPass.failure,
            p2p: passToPass.success,
            p2p_failed: passToPass.failure,
          },
  };
}

async function ownOutcome(entry: Case, expected: OfficialResult): Promise<Outcome | 'unreadable'> {
  const row = { instanceId: entry.instance_id, version: entry.version };
  const read = await readLog(entry.log, logParser(entry.parser as LogParserName), row, new AbortController().signal);
  if (!read.valid) {
    return read.reason === 'log_unreadable' ? 'unreadable' : { statuses: {}, resolved: false, tests: null };
  }
  const tests =
    'error' in expected
      ? { failToPass: [], passToPass: [] }
      : { failToPass: expected.fail_to_pass, passToPass: expected.pass_to_pass };
  const { resolved, failToPass, passToPass } = grade(read.statuses, tests, entry.eval_type);
  return {
    statuses: sorted(Object.fromEntries(read.statuses.entries())),
    resolved,
    tests: {
      f2p: failToPass.held,
      f2p_failed: failToPass.failed,
      p2p: passToPass.held,
      p2p_failed: passToPass.failed,
    },
  };
}

function sorted(statuses: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(statuses).sort(([a], [b]) => (a < b ? -1 : 1)));
}

type Row = {
  readonly parser: string;
  cases: number;
  agree: number;
  statuses: number;
  resolved: number;
  unreadable: number;
};

async function compare(
  parser: string,
  official: Official,
  texts: readonly string[],
  printed: { count: number },
): Promise<Row> {
  const row: Row = { parser, cases: 0, agree: 0, statuses: 0, resolved: 0, unreadable: 0 };
  const chance = seededRandom(Number(options.seed));
  const cases = casesFor(parser, texts, Number(options.logs), chance);
  const results = official.grade(cases);
  for (const [index, entry] of cases.entries()) {
    const result = results[index];
    if (result === undefined)
      throw new Error(`${parser}: the package graded only ${results.length} of ${cases.length}`);
    const theirs = officialOutcome(result);
    const ours = await ownOutcome(entry, result);
    row.cases += 1;
    if (theirs === 'unreadable') row.unreadable += 1;
    else {
      row.statuses += Object.keys(theirs.statuses).length;
      row.resolved += theirs.resolved ? 1 : 0;
    }
    if (JSON.stringify(ours) === JSON.stringify(theirs)) row.agree += 1;
    else if (printed.count++ < MAX_PRINTED) console.log(JSON.stringify({ entry, result, ours, theirs }, null, 1));
  }
  return row;
}

/** Matches texts that may be logs: they have several lines, or a word or sign of a test runner. */
const LOG = /\n|PASS|FAIL|SKIP|ERROR|BUILD|>>>>>|[✓✕○]/;

const official = installOfficial();
if (official === null) {
  const line = 'swebench: skipped, because swebench cannot be installed: PyPI cannot be reached';
  conclude({ line, keys: { cases: 0, agree: 0 }, isPassed: true, json });
} else {
  const texts = official.texts.filter((text) => LOG.test(text));
  const printed = { count: 0 };
  const rows: Row[] = [];
  for (const parser of official.parsers.filter((name) => name.includes(options.only))) {
    rows.push(await compare(parser, official, texts, printed));
  }
  const cells = rows.map((row) => [row.parser, row.cases, row.agree, row.statuses, row.resolved, row.unreadable]);
  console.log(`\n${tableOf(['parser', 'cases', 'agree', 'statuses', 'resolved', 'unreadable'], cells)}\n`);
  const cases = rows.reduce((sum, row) => sum + row.cases, 0);
  const agree = rows.reduce((sum, row) => sum + row.agree, 0);
  conclude({
    line: `swebench: cases ${cases}, agree ${agree}`,
    keys: { cases, agree },
    details: { cases, agree, rows },
    isPassed: cases > 0 && agree === cases,
    json,
  });
}
