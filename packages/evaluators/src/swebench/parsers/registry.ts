import { bpmnJs, chartJs, openLayers } from './browser-failures.ts';
import { doctest } from './doctest.ts';
import { gradle, maven } from './java.ts';
import { eslint, marked, next, p5Js, quarto } from './javascript.ts';
import { calypso, grommet, jestFiles } from './jest.ts';
import { karma } from './karma.ts';
import { type LogParser, type RowFacts, TestStatuses } from './log-parser.ts';
import { highlightJs, lighthouse, prismJs } from './mocha.ts';
import {
  ant,
  cargo,
  cucumber,
  googleTest,
  goTest,
  jest,
  jestJson,
  jq,
  micropython,
  minitest,
  redis,
  rspec,
  tap,
  testUnit,
  vitest,
} from './one-line.ts';
import { phpUnit } from './php.ts';
import { matplotlib, pydantic, pytest, pytestOptions, pytestWithSpaces, seaborn } from './pytest.ts';
import { django, sympy } from './python.ts';

/** Parsers of repositories whose instances have different formats, by the number of the pull request in the instance id. */
const NUMBERED = {
  parse_log_jekyll: {
    numberOf: (instanceId: string) => instanceId.split('-')[1],
    parsers: new Map<string | undefined, LogParser>([
      ['8047', minitest],
      ['8167', minitest],
      ['9141', minitest],
      ['8761', cucumber],
      ['8771', cucumber],
    ]),
  },
  parse_log_immutable_js: {
    numberOf: (instanceId: string) => instanceId.split('-').at(-1),
    parsers: new Map<string | undefined, LogParser>([
      ['2005', jestJson],
      ['2006', jest],
    ]),
  },
};

/** Chooses a parser by the number in the instance id. The log of an instance with another number is unreadable. */
function numbered({ numberOf, parsers }: (typeof NUMBERED)[keyof typeof NUMBERED]): LogParser {
  return (log, row) => (parsers.get(numberOf(row.instanceId)) ?? unreadable)(log, row);
}

const unreadable: LogParser = function* () {
  yield;
  return new TestStatuses().giveUp();
};

/** The parsers by their name in the field `log_parser` of rows. They are the parsers of swebench 5.0.2, and a parser of SWE-Gym. */
const LOG_PARSERS = {
  parse_log_pytest: pytest,
  parse_log_pytest_options: pytestOptions,
  parse_log_pytest_v2: pytestWithSpaces,
  parse_log_pytest_pydantic: pydantic,
  parse_log_django: django,
  parse_log_seaborn: seaborn,
  parse_log_sympy: sympy,
  parse_log_matplotlib: matplotlib,
  parse_log_astroid: pytest,
  parse_log_flask: pytest,
  parse_log_marshmallow: pytest,
  parse_log_pvlib: pytest,
  parse_log_pyvista: pytest,
  parse_log_sqlfluff: pytest,
  parse_log_xarray: pytest,
  parse_log_pydicom: pytestOptions,
  parse_log_requests: pytestOptions,
  parse_log_pylint: pytestOptions,
  parse_log_astropy: pytestWithSpaces,
  parse_log_scikit: pytestWithSpaces,
  parse_log_sphinx: pytestWithSpaces,
  parse_log_calypso: calypso,
  parse_log_bpmn_js: bpmnJs,
  parse_log_carbon: jestFiles,
  parse_log_eslint: eslint,
  parse_log_grommet: grommet,
  parse_log_highlightjs: highlightJs,
  parse_log_lighthouse: lighthouse,
  parse_log_next: next,
  parse_log_openlayers: openLayers,
  parse_log_prismjs: prismJs,
  parse_log_quarto_cli: quarto,
  parse_log_chart_js: chartJs,
  parse_log_marked: marked,
  parse_log_p5js: p5Js,
  parse_log_react_pdf: jestFiles,
  parse_log_jest: jest,
  parse_log_jest_json: jestJson,
  parse_log_vitest: vitest,
  parse_log_karma: karma,
  parse_log_tap: tap,
  parse_log_immutable_js: numbered(NUMBERED.parse_log_immutable_js),
  parse_log_redis: redis,
  parse_log_jq: jq,
  parse_log_doctest: doctest,
  parse_log_micropython_test: micropython,
  parse_log_googletest: googleTest,
  parse_log_gotest: goTest,
  parse_log_maven: maven,
  parse_log_ant: ant,
  parse_log_gradle_custom: gradle,
  parse_log_phpunit: phpUnit,
  parse_log_minitest: minitest,
  parse_log_cucumber: cucumber,
  parse_log_ruby_unit: testUnit,
  parse_log_rspec_transformed_json: rspec,
  parse_log_jekyll: numbered(NUMBERED.parse_log_jekyll),
  parse_log_cargo: cargo,
} as const satisfies Readonly<Record<string, LogParser>>;

export type LogParserName = keyof typeof LOG_PARSERS;

export const LOG_PARSER_NAMES = Object.keys(LOG_PARSERS) as [LogParserName, ...LogParserName[]];

export function logParser(name: LogParserName): LogParser {
  return LOG_PARSERS[name];
}

/** Returns the reason why a parser cannot read the logs of a row; `null` when it can. */
export function parserProblem(name: LogParserName, { instanceId, version }: RowFacts): string | null {
  if (name === 'parse_log_lighthouse' && Number.isNaN(Number.parseFloat(version))) {
    return `${name} needs a version that is a number`;
  }
  if (name !== 'parse_log_jekyll' && name !== 'parse_log_immutable_js') return null;
  const { numberOf, parsers } = NUMBERED[name];
  if (parsers.has(numberOf(instanceId))) return null;
  return `${name} knows only the instances with the numbers ${[...parsers.keys()].join(', ')}`;
}
