/** Parts of a sample log. `{n}` stands for a name, `{s}` for a number, and `{p}` for a path; each is replaced by a drawn text. */
export type Sample = {
  /** Lines from which a log is drawn. */
  readonly lines: readonly string[];
  /** Lines before the drawn ones. A log consists of one to three such parts. */
  readonly heading?: string;
  readonly versions?: readonly string[];
  readonly instances?: readonly string[];
};

const PYTEST: Sample = {
  lines: [
    'PASSED {p}::{n}',
    'FAILED {p}::{n} - AssertionError: {n}',
    'FAILED {p}::{n}[a - b] - {n}',
    'ERROR {p}::{n} - {n}',
    'ERROR: file or directory not found: {p}',
    'SKIPPED [{s}] {p}:{s}: {n}',
    'SKIPPED {p}::{n}',
    'XFAIL {p}::{n}',
    'PASSED {p}::{n}[/tmp/{n}/{n}]',
    'PASSED {p}::{n}[//host/{n}]',
    'PASSED {p}::{n}[/a/*/{n}][b]',
    'PASSED {p}::{n}[x',
    '{p}::{n} PASSED [ {s}%]',
    '{p}::{n} FAILED',
    '{p}::{n}[a b] XFAIL',
    '{p} ..F.s  [ {s}%]',
    '\u001b[32mPASSED\u001b[0m {p}::\u001b[1m{n}\u001b[0m',
    '\u001b[31mFAILED\u001b[0m {p}::{n} - x',
    'PASSED {p}::{n}[MouseButton.LEFT-MouseButton.RIGHT]',
    'PASSED',
    'FAILED - x',
    ' PASSED {p}::{n}',
    'FAILED [10%] {p}::{n} - x',
    '=== short test summary info ===',
  ],
};

const JEST_FILES: Sample = {
  lines: [
    'PASS {p} ({s}.{s} s)',
    'PASS {p} ({s}ms)',
    'FAIL {p} ({s}.{s}s)',
    'FAIL {p} ({s} ms)',
    'PASS {p}',
    'FAIL {p} ({s}s) ({s}ms) x',
    'FAIL  {p} (a)',
    'FAIL',
    'PASS',
    'PASSED {p}',
    '  ● {n} › {n}',
    'Tests:       {s} failed, {s} passed, {s} total',
    'Test Suites: {s} failed, {s} passed, {s} total',
  ],
};

const INDENTED: readonly string[] = ['  {n}', '    {n}', '      {n}', '\t{n}', '{n}', ' '];

const MOCHA_LINES: readonly string[] = [
  ...INDENTED,
  '    ✔ {n}',
  '    ✓ {n} ({s}ms)',
  '      ✔ {n} ({s}ms) {n}',
  '    {s}) {n}',
  '      {s}) {n} ({s}mms) {n}',
  '  {s} passing ({s}s)',
  '  {s} failing',
  '      AssertionError: x',
];

/** A test in the report of Mocha's reporter `json`. */
const JSON_TEST = '{\n      "title": "{n}",\n      "fullTitle": "{n} {n}",\n      "duration": {s}\n    }';
const JSON_REPORT = `{\n  "stats": {\n    "suites": {s}\n  },\n  "passes": [\n    ${JSON_TEST},\n    ${JSON_TEST}\n  ],\n  "failures": [\n    ${JSON_TEST}\n  ],\n  "pending": []\n}`;

const XML_CASE = (success: string): string =>
  `<TestCase name="{n}" filename="{p}" line="{s}">\n<SubCase name="{n}">\n<SubCase name="{n} &lt;b&gt;">\n<Expression success="${success}" type="CHECK">\n<Original>\n a == b &amp;&amp; c\n</Original>\n</Expression>\n</SubCase>\n<SubCase/>\n<OverallResultsAsserts successes="{s}" failures="0"/>\n</SubCase></TestCase>`;

export const SAMPLES: Readonly<Record<string, Sample>> = {
  parse_log_pytest: PYTEST,
  parse_log_pytest_options: PYTEST,
  parse_log_pytest_v2: PYTEST,
  parse_log_matplotlib: PYTEST,
  parse_log_seaborn: PYTEST,
  parse_log_django: {
    lines: [
      '{n} ({p}) ... ok',
      '{n} ({p}) ... OK',
      '{n} ({p}) ...  OK',
      '{n} ({p}) ... FAIL',
      '{n} ({p}) ... ERROR',
      "{n} ({p}) ... skipped 'needs {n}'",
      '{n} ({p}) ... expected failure',
      '{n} ({p}) ... Testing against Django installed in {p}\nwith up to {s} processes silenced).\nok',
      '{n} ({p}) ... Testing against Django installed in {p} (0 silenced).\nok',
      '{n} ({p}) ... Internal Server Error: /{p}/\nok',
      '{n} ({p}) ... Internal Server Error: /\nok',
      '{n} ({p}) ... System check identified no issues (0 silenced)\nok',
      '{n} ({p}) ... System check identified no issues (0 silenced) x\nok',
      'System check identified no issues ({s} silenced).',
      'ok',
      '  okay {n}',
      'FAIL: {n} ({p})',
      'ERROR: {n} ({p})',
      'Applying sites.0002_alter_domain_unique...test_no_migrations ({p}) ... ok',
      '--version is equivalent to version ... ok',
      'Ran {s} tests in {s}.{s}s',
    ],
  },
  parse_log_sympy: {
    lines: [
      'test_{n} ok',
      'test_{n} F',
      'test_{n} E',
      ' test_{n} {n} ok  ',
      'test_{n} f',
      '________ {p}.py:test_{n} ________',
      '_ sympy/a.py:b.py:{n} _',
      '{p}.py:{n}',
      '{p}[{s}]',
    ],
  },
  parse_log_calypso: {
    heading: '+ ./node_modules/.bin/jest --verbose -c=test/client/jest.config.js {p}',
    lines: [
      ...INDENTED,
      '    ✓ {n} ({s}ms)',
      '    ✓ {n}',
      '      ✕ {n} ({s}ms)',
      '      ✕ {n}',
      'Test Suites: {s} passed',
    ],
  },
  parse_log_bpmn_js: {
    lines: [
      '2KPhantomJS 2.{s} (Linux 0.0.{s}) {n} FAILED',
      '2KPhantomJS 2.{s} (Linux x86_64) {n} FAILED',
      'Chrome Headless 1.{s} (Linux x86_64) {n} FAILED',
      'Chrome Headless {n} (Linux x86_64) (Linux x86_64) {n} FAILED',
      'HeadlessChrome 1.{s} (Linux 0.0.0) {n} FAILED',
      'HeadlessChrome 1.{s} (Linux 0.0.0): Executed {s} of {s} SUCCESS',
    ],
  },
  parse_log_carbon: JEST_FILES,
  parse_log_react_pdf: JEST_FILES,
  parse_log_grommet: JEST_FILES,
  parse_log_eslint: {
    lines: [
      '  {s}) {n}\n       {n}:\n     AssertionError [ERR]: {n}',
      '  {s}) {n} TypeError: x Error y',
      '  {s}) {n}',
      '      at {p}:{s}:{s}',
      '{n} Error',
      '   {s})Error',
      '',
      '  {s} passing',
    ],
  },
  parse_log_highlightjs: { lines: MOCHA_LINES },
  parse_log_lighthouse: {
    heading: 'running {s} test files',
    lines: [...MOCHA_LINES, ...JEST_FILES.lines],
    versions: ['9.5', '10.0', '3.1', '2.9'],
  },
  lighthouse_json: {
    heading: `+ ./node_modules/.bin/mocha --reporter json\n${JSON_REPORT}`,
    lines: ['', '{n}'],
    versions: ['2.9'],
  },
  parse_log_next: {
    heading: '+ xvfb-run --server-args x\nStarting browser Chrome',
    lines: [
      ...INDENTED,
      '    ✓ {n}',
      '    {n} ✗ {n}',
      'TOTAL: {s} SUCCESS',
      "ERROR: '{n}'",
      '    AssertionError: #{n}\n    {n}\n',
      'AssertionError: {n}\n',
      'Starting browser Chrome',
    ],
    versions: ['1.26'],
  },
  next_cypress: {
    heading: '  Running:  {n}.js   ({s} of {s})\n\n\n  {n}',
    lines: ['    ✓ {n} ({s}ms)', '    {s}) {n}', '', '  {s} passing', '  {s}) {n}', '     ✓ {n} (x)', '\n\n  {s}) {n}'],
    versions: ['1.27'],
  },
  parse_log_openlayers: {
    lines: [
      'Chrome Headless 1.{s} (Linux x86_64) {n} FAILED',
      'Chrome 1.{s} (Linux 0.0.0) {n}FAILED',
      'Chrome 1.{s} (Linux x86_64) {n}  FAILED',
      '  {s}) {n}\n       {n}:\n     Error: {n}',
      ' \n{s}) {n} TypeError: x',
      'case {n}: mismatch {s}',
      "{n}': ok",
      'Executed {s} of {s}',
    ],
  },
  parse_log_prismjs: {
    heading: `+ ./node_modules/.bin/mocha tests/run.js --reporter json\n${JSON_REPORT}`,
    lines: ['', '{n}'],
  },
  parse_log_quarto_cli: {
    lines: [
      '[smoke] > {n} ... \u001b[0m\u001b[32mok\u001b[0m ({s}ms)',
      '[unit] > {n} ... \u001b[0m\u001b[31mFAILED\u001b[0m ({s}s)',
      '[smoke] > quarto render /tmp/{n}.qmd ... \u001b[32mok\u001b[0m',
      '[smoke] > quarto render /tmp/abc{s}/x.qmd /tmp/abc{s}/ ... \u001b[32mok\u001b[0m',
      '[unit] > {n} ...',
      '[unit] {s} passed, {s} failed, {s} steps',
      '[smoke] \u001b[34mINFO\u001b[0m {n}',
      'test result: [unit] {s}',
      ' ERRORS ',
    ],
  },
  parse_log_chart_js: {
    lines: [
      'Chrome 1.{s} (Linux x86_64) {n} FAILED',
      '\u001b[31mChrome 1.{s} (Linux x86_64) {n} FAILED\u001b[39m',
      'Chrome 1.{s} () ) {n} FAILED',
      'Chrome 1.{s} (Linux) {n} FAILED ',
      'Chrome 1.{s} (Linux): Executed {s} of {s} (skipped {s}) SUCCESS',
    ],
  },
  parse_log_marked: { lines: ['{s}) {n}', ' {s}) {n}', '{s}){n}', '{s} specs, {s} failures', 'Started'] },
  parse_log_p5js: {
    lines: [
      '  {s}) {n}\n       {n}\n         {n}:',
      '  {s}) {n}\n       {n}:\n     AssertionError: x',
      '{s}) {n}:{n}',
      '\n  {s}) {n}\n {n}:',
      '{',
      '  "a": [',
      ']',
      '}',
      '{ "a": {s} }',
      '<xml><b>{n}</xml>',
      '</xml>',
      '<a><a>{n}',
      '</a>',
      '\u001b[31m  {s}) {n}:\u001b[0m',
      '  {s} passing',
    ],
  },
  parse_log_jest: {
    lines: [
      '    ✓ {n} ({s} ms)',
      '    ✓ {n} ({s}s)',
      '  ✕ {n}',
      '  ○ skipped {n}',
      '✓ ({s} ms)',
      '✓  ({s} ms)',
      '✓ {n} ({s} ms) x',
      '✓{n}',
      'Tests: {s} passed',
    ],
  },
  parse_log_jest_json: { lines: ['[PASSED] {n} > {n}', '[FAILED] {n}', '[PENDING] {n}', ' [PASSED]  {n} '] },
  parse_log_vitest: {
    lines: [
      ' ✓ {p} > {n} {s}ms',
      ' ✓ {p} > {n} {s}',
      ' × {n} {s} ms',
      ' ↓ {n} [skipped]',
      ' ↓ {n}  [skipped]',
      '✓ {s}ms',
      ' ✓ {n} 5m',
      ' ❯ {n}',
    ],
  },
  parse_log_karma: {
    heading: 'Starting browser Chrome',
    lines: [...INDENTED, '    ✔ {n}', '      ✖ {n}', '✔ {n}', '   ✔{n}', 'SUMMARY:'],
  },
  parse_log_tap: {
    lines: ['ok {s} {n}', 'not ok {s} {n}', '  ok {s} - {n} # SKIP', 'ok {n}', '# tests {s}', '1..{s}'],
  },
  parse_log_immutable_js: {
    lines: ['✓ {n} ({s} ms)', '[PASSED] {n}', '[FAILED] {n}', '✕ {n}'],
    instances: ['immutable-js__immutable-js-2006', 'immutable-js__immutable-js-2005', 'immutable-js__immutable-js-1'],
  },
  parse_log_redis: {
    lines: [
      '[ok]: {n} ({s} ms)',
      '[ok]: {n}',
      '[err]: {n} in {p}',
      '[err]: {n} in {p} ({s} ms)',
      '[err]: {n}',
      '[skip]: {n}',
      '[ignore]: {n} ({s}s)',
      '[timeout]: {n}',
      '[err]: in in {p}',
    ],
  },
  parse_log_jq: { lines: ['PASS: {n}', 'FAIL: {n}', 'XFAIL: {n}', '  PASS:  {n}', '# PASS:  {s}'] },
  parse_log_doctest: {
    lines: [
      `<doctest binary="x" randseed="{s}">\n<Options order_by="file"/>\n${XML_CASE('true')}\n${XML_CASE('false')}\n</doctest>`,
      `<?xml version="1.0"?>\n<doctest>${XML_CASE('true')}</doctest>`,
      '{n}',
    ],
  },
  parse_log_micropython_test: { lines: ['pass  {p}', 'FAIL  {p}', 'skip  {p}', 'pass{p}', ' pass {n}  '] },
  parse_log_googletest: {
    lines: [
      '{s}: [       OK ] {n}.{n} ({s} ms)',
      '[  FAILED  ] {n}.{n} ({s} ms)',
      '[  FAILED  ] {n}.{n}',
      '[ RUN      ] {n}',
      '[OK] {n} [ FAILED ] {n} (x) ({s} ms)',
      '[ OK ] (x)',
    ],
  },
  parse_log_gotest: {
    lines: [
      '--- PASS: {n} ({s}.{s}s)',
      '    --- FAIL: {n}/{n} (0.{s}s)',
      '--- SKIP: {n} (x) ({s}s)',
      '--- PASS: {n} ()',
      '--- PASS:  (0.1s)',
      '=== RUN   {n}',
      'ok  \t{p}\t{s}s',
    ],
  },
  parse_log_maven: {
    lines: [
      '+ mvnd test -B -Dtest={p}#{n}',
      '[INFO] BUILD SUCCESS',
      '[INFO] BUILD FAILURE',
      '+ mvn -Dtest={n} -Dtest={p} -Dtest= BUILD SUCCESS',
      '[INFO] BUILD SUCCESS ',
    ],
  },
  parse_log_ant: {
    lines: [
      '    [junit] [PASS] {n}({p})',
      '[junit]  [FAIL]  {n}',
      '[junit] [ERR] {n}',
      '[junit] {n}',
      '[junit] [PASS]',
    ],
  },
  parse_log_gradle_custom: {
    lines: [
      '{p} > {n} PASSED',
      '{p} > {n}  FAILED',
      '{p} > {s}',
      'PASSED',
      'FAILED',
      '> Task :{n} FAILED',
      '{p} > {s} > {s}',
      'a PASSED',
    ],
  },
  parse_log_phpunit: {
    lines: ['{n} ({p})', ' ✔ {n}', ' ✘ {n}', ' ↩ {n}', '✔{n}', '{n} ()', '-{n} (x)', 'Ab (x)', 'a (x)'],
  },
  parse_log_minitest: {
    lines: ['{n}#test_{n} = {s}.{s} s = .', '{n}. {n} = {s} s = F', '{n}. {n} = E', 'x. = F. x=y', '{n}. = x'],
  },
  parse_log_cucumber: { lines: ['{p}:{s} ....', '{p} ..F-', '{p} .', '{n} F', ' ...', '{n} .F {n} ..'] },
  parse_log_ruby_unit: {
    lines: [
      'test: {n}:\t.: (0.{s})',
      '  test: {n}:  F',
      '{n}: E: ({s})',
      '{n}: O {n}: {n}',
      'test: .',
      'test: {n}: Exx: .',
    ],
  },
  parse_log_rspec_transformed_json: {
    lines: ['{n} - {p} - passed', '{n} - failed', '{n} - pending', ' - passed - failed', '{n} - passedx'],
  },
  parse_log_jekyll: {
    lines: ['{n}. {n} = {s} s = .', '{p}:{s} ...F', '{p}:{s} ...', '{n}. = {s} = F'],
    instances: ['jekyll__jekyll-9141', 'jekyll__jekyll-8761', 'jekyll__jekyll-1'],
  },
  parse_log_cargo: {
    lines: [
      'test {n} ... ok',
      'test a::{s} ... ok',
      'test b::{s} ... FAILED',
      'test c ... ignored',
      'test d ... ok x',
      ' test  e\t... ok',
    ],
  },
};

/** For each sample whose key is not the name of a parser: the name of its official parser. */
export const SAMPLE_PARSERS: Readonly<Record<string, string>> = {
  lighthouse_json: 'parse_log_lighthouse',
  next_cypress: 'parse_log_next',
};
