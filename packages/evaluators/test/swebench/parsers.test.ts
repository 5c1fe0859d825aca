import { describe, expect, it } from 'vitest';
import { LOG_PARSER_NAMES, type LogParserName, logParser, parserProblem } from '../../src/swebench/parsers/registry.ts';

type Row = { readonly instanceId?: string; readonly version?: string };

/** Returns the statuses that a parser reads from a log; `unreadable` when it gives up. */
function parse(name: LogParserName, log: string, { instanceId = 'a__a-1', version = '1.0' }: Row = {}) {
  const parsing = logParser(name)(log, { instanceId, version });
  for (let step = parsing.next(); ; step = parsing.next()) {
    if (step.done === true) return step.value.isUnreadable ? 'unreadable' : Object.fromEntries(step.value.entries());
  }
}

const [P, F, S, E] = ['PASSED', 'FAILED', 'SKIPPED', 'ERROR'];

/** A log of each format and the statuses that it reports. */
const FORMATS: readonly (readonly [name: LogParserName, log: string, statuses: Record<string, string>, row?: Row])[] = [
  [
    'parse_log_pytest',
    'PASSED a.py::b\nFAILED a.py::c - x - y\nSKIPPED [2] a.py:3: no\nSKIPPED a.py::d\nERROR: not found: x\nXFAIL a.py::e\nPASSED',
    { 'a.py::b': P, 'a.py::c': F, 'a.py::d': S, not: 'ERROR:', 'a.py::e': 'XFAIL' },
  ],
  [
    'parse_log_pytest_options',
    'PASSED a.py::b[/x/y/z]\nFAILED a.py::c[//x/y] - m\nPASSED a.py::d[/a/*][b]\nPASSED a.py::e[x',
    { 'a.py::b[/z]': P, 'a.py::c[//x/y]': F, 'a.py::d[/a/*][b]': P, 'a.py::e[x': P },
  ],
  [
    'parse_log_pytest_v2',
    '\u001b[32mPASSED\u001b[0m a.py::b[x y]\nFAILED a.py::c[x y] - why\na.py::d[x y] PASSED\nSKIPPED [1] a.py:2: x',
    { 'a.py::b[x y]': P, 'a.py::c[x y]': F, 'a.py::d[x y]': P },
  ],
  [
    'parse_log_pytest_pydantic',
    'FAILED [why] a.py::b - m\nPASSED a.py::c\na.py::d PASSED',
    { 'a.py::b': F, 'a.py::c': P, 'a.py::d': P },
  ],
  [
    'parse_log_matplotlib',
    'PASSED a.py::b[MouseButton.LEFT]\nFAILED a.py::b[MouseButton.RIGHT] - m',
    { 'a.py::b[1]': P, 'a.py::b[3]': F },
  ],
  [
    'parse_log_seaborn',
    'a.py::b PASSED [ 50%]\nPASSED a.py::c\nFAILED a.py::d - m\nPASSED',
    { 'a.py::b': P, 'a.py::c': P, 'a.py::d': F },
  ],
  [
    'parse_log_django',
    [
      'a (t) ... ok',
      'b (t) ... FAIL',
      'FAIL: c (t)',
      "d (t) ... skipped 'x'",
      'ERROR: e (t)',
      'f (t) ... Testing against Django installed in /x',
      'with up to 2 processes silenced).',
      'ok',
      'g (t) ... Internal Server Error: /p/',
      'ok',
      'h (t) ... System check identified no issues (0 silenced)',
      'ok',
      'i',
      '... System check identified no issues (0 silenced)',
      'ok',
      'Applying sites.0002_alter_domain_unique...test_no_migrations (t) ... ok',
    ].join('\n'),
    {
      'a (t)': P,
      'b (t)': F,
      c: F,
      'd (t)': S,
      e: E,
      'f (t)': P,
      'g (t)': P,
      'h (t)': P,
      i: P,
      'test_no_migrations (t)': P,
    },
  ],
  [
    'parse_log_sympy',
    'test_a ok\ntest_b F\n  test_c E\n____ sympy/x.py:test_d ____\ntest_e f',
    { 'sympy/x.py:test_d': F, test_a: P, test_b: F, test_c: E },
  ],
  [
    'parse_log_calypso',
    'x\n+ ./node_modules/.bin/jest --verbose a\n  outer\n    inner\n      ✓ works (3ms)\n      ✕ fails\n  other\n    ✓ more\nTest Suites: 1\n    ✓ no',
    { 'outer - inner - works': P, 'outer - inner - fails': F, 'other - more': P },
  ],
  [
    'parse_log_bpmn_js',
    '2KPhantomJS 2.1 (Linux 0.0.0) a b FAILED\nChrome Headless 9 (Linux x86_64) c (Linux x86_64) d FAILED\nHeadlessChrome 1 (Linux 0.0) e FAILED',
    { 'a b ': F, 'd ': F },
  ],
  [
    'parse_log_carbon',
    'PASS a.js (1.2 s)\nPASS b.js (5ms)\nFAIL c.js (2s)\nFAIL d.js\nPASSED e',
    { 'a.js': P, 'b.js': P, 'c.js': F, 'd.js': F },
  ],
  ['parse_log_react_pdf', 'PASS a.js (1.2 s) x', { 'a.js': P }],
  ['parse_log_grommet', 'PASS a.js (1.2 s)\nFAIL b.js\nFAIL\nc.js\nPASS b.js', { 'b.js': P, 'c.js': F, 'a.js': P }],
  [
    'parse_log_eslint',
    '  1) rule a\n       does it:\n     AssertionError [x]: no Error\n  2) rule b\n     TypeError: x\n  3) rule c\n',
    { 'rule a does it:': F, 'rule b': F },
  ],
  [
    'parse_log_highlightjs',
    'x\n  suite\n    ✓ a (12ms)\n    1) b\n  2 passing (1s)\n    ✓ no',
    { 'suite.a': P, 'suite.b': F },
  ],
  [
    'parse_log_lighthouse',
    'running 2 test files\nx\n  outer\n    inner\n      ✔ a (12ms)\n      1) b\n  2 passing (1s)\n      ✔ no',
    { 'outer - inner - a': P, 'outer - inner - b': F },
    { version: '9.5' },
  ],
  ['parse_log_lighthouse', 'PASS a.js (1 s)', { 'a.js': P }, { version: '3.1' }],
  [
    'parse_log_lighthouse',
    '+ ./node_modules/.bin/mocha --reporter json\n{"passes": [\n  "fullTitle": "a b",\n],\n"failures": [\n  "fullTitle": "c",\n],\n}',
    { 'a b': P, c: F },
    { version: '2.9' },
  ],
  [
    'parse_log_next',
    '+ xvfb-run x\n ✓ no\nStarting browser Chrome\n  outer\n    deep\n      ✓ a\n      ✗ b\nAssertionError: #x\n   ✓ c\n\n    last\n      ✓ d\nTOTAL: 3\n ✓ no',
    { 'outer - deep - a': P, 'outer - deep - b': F, 'outer - last - d': P },
  ],
  [
    'parse_log_next',
    '  Running:  a.js  (1 of 1)\n\n\n  suite\n    ✓ a (2ms)\n    1) b\n  1 passing\n\n\n  1) c\n',
    { 'suite: a': P, 'suite: b': F, 'suite: c': F },
    { version: '1.27' },
  ],
  [
    'parse_log_openlayers',
    'Chrome Headless 1.2 (Linux x86_64) a  b FAILED\nChrome 1.2 (Linux 0.0) c FAILED\n  1) d\n     e:\n     Error: no\ncase f: mismatch 3\ncase g: ok\n',
    { 'a b': F, c: F, 'd e:': F, f: F },
  ],
  [
    'parse_log_prismjs',
    '+ ./node_modules/.bin/mocha tests/run.js --reporter json\n{"passes":[{"fullTitle":"a"}],"failures":[{"fullTitle":"b"}]}\nend',
    { b: F, a: P },
  ],
  [
    'parse_log_quarto_cli',
    '[smoke] > a /tmp/x1.qmd ... \u001b[32mok\u001b[0m\n[unit] > b /tmp/y/ ... \u001b[31mFAILED\u001b[0m\n[unit] > c ...\n[unit] 1 passed 2 failed 3 steps\nfailures:\n[unit] > d ... 32mok',
    { '[smoke] > a /tmp/0': P, '[unit] > b /tmp/1': F, '[unit] > c': F },
  ],
  [
    'parse_log_chart_js',
    '\u001b[31mChrome 1.2 (Linux x86_64) a b FAILED\u001b[39m\nChrome 1.2 (Linux) c FAILED\n\nChrome 1.2 (Linux): Executed 3',
    { 'a b ': F, 'c ': F },
  ],
  ['parse_log_marked', '1) a b\n 2) no', { 'a b': F }],
  [
    'parse_log_p5js',
    '  1) suite\n       inner\n         test:\n  2) same\n indent:\n{\n  3) json:\n}\n<a><a>\n  4) xml:</a>\n  5) xml:</a>\n',
    { 'suite:inner:test': F },
  ],
  ['parse_log_jest', '  ✓ a (2 ms)\n  ✕ b\n  ○ c\n  ✓ d (x)', { a: P, b: F, c: S, 'd (x)': P }],
  ['parse_log_jest_json', '[PASSED] a > b\n[FAILED] c\n[PENDING] d', { 'a > b': P, c: F }],
  ['parse_log_vitest', ' ✓ a 12ms\n × b 3\n ↓ c [skipped]\n ✓ d', { a: P, b: F, c: S, d: P }],
  [
    'parse_log_karma',
    '    ✔ no\nStarting browser Chrome\n  outer\n    inner\n      ✔ a\n      ✖ b\n  other\n    ✔ c\nSUMMARY:\n    ✔ no',
    { 'outer > inner > a': P, 'outer > inner > b': F, 'outer > c': P },
  ],
  ['parse_log_tap', 'ok 1 a\nnot ok 2 b\n# tests 2', { a: P, b: F }],
  ['parse_log_immutable_js', '✓ a (2 ms)', { a: P }, { instanceId: 'immutable-js__immutable-js-2006' }],
  ['parse_log_immutable_js', '[PASSED] a\n✓ b', { a: P }, { instanceId: 'immutable-js__immutable-js-2005' }],
  [
    'parse_log_redis',
    '[ok]: a (2 ms)\n[err]: b in in tests/x.tcl\n[skip]: c\n[ignore]: d',
    { a: P, 'b in': F, c: S, d: S },
  ],
  ['parse_log_jq', 'PASS: a\nFAIL: b\nXPASS: c', { a: P, b: F }],
  [
    'parse_log_doctest',
    'x <doctest a="1"><TestCase name="t"><SubCase name="a &lt;b&gt;"><SubCase name="c"><Expression success="false"/></SubCase></SubCase><SubCase name="d"><Expression success="true"/></SubCase></TestCase></doctest> y',
    { 't > a <b>': F, 't > c': F, 't > d': P },
  ],
  ['parse_log_micropython_test', 'pass  a.py\nFAIL  b.py\nskip  c.py', { 'a.py': P, 'b.py': F, 'c.py': S }],
  [
    'parse_log_googletest',
    '1: [       OK ] a.b (0 ms)\n[  FAILED  ] c.d (x) (1 ms)\n[  FAILED  ] e',
    { 'a.b': P, 'c.d (x)': F },
  ],
  [
    'parse_log_gotest',
    '--- PASS: TestA (0.01s)\n    --- FAIL: TestA/b_(c) (0.00s)\n--- SKIP: TestC (0s)\n--- PASS: D ()',
    { TestA: P, 'TestA/b_(c)': F, TestC: S },
  ],
  [
    'parse_log_maven',
    '+ mvnd -Dtest=a#b\n+ mvnd -Dtest=a#c\n[INFO] BUILD SUCCESS\n[INFO] BUILD FAILURE\n[INFO] BUILD SUCCESS\n+ mvnd -Dtest=a#d',
    { 'a#b': P, 'a#c': F, 'a#d': P },
  ],
  ['parse_log_ant', ' [junit] [PASS] a(b)\n [junit] [ERR] c\n [junit] [FAIL] d', { 'a(b)': P, c: F, d: F }],
  [
    'parse_log_gradle_custom',
    'A > a PASSED\nA > b\nwarning\nFAILED\n> Task :x FAILED\nPASSED',
    { 'A > a': P, 'A > b': F },
  ],
  [
    'parse_log_phpunit',
    ' ✔ first\nSuite (Tests\\Suite)\n ✔ a\n ✘ b\n ↩ c',
    { 'None > first': P, 'Suite > a': P, 'Suite > b': F, 'Suite > c': S },
  ],
  ['parse_log_minitest', 'a. b = 0.1 s = .\nc. d = 0.2 s = F\ne. f = x E', { a: P, c: F, e: F }],
  ['parse_log_cucumber', 'a.feature:6 ...\nb.feature:7 ..F-\nc.feature .', { 'a.feature:6': P, 'b.feature:7': F }],
  ['parse_log_ruby_unit', 'test: a:\t.: (0.1)\n b: F\nc: O: (1)\nd: Error', { a: P, b: F, c: S }],
  ['parse_log_rspec_transformed_json', 'a - b - passed\nc - failed\nd - pending', { 'a - b': P, c: F }],
  ['parse_log_jekyll', 'a. b = 0.1 s = .', { a: P }, { instanceId: 'jekyll__jekyll-9141' }],
  ['parse_log_jekyll', 'a.feature:6 ...', { 'a.feature:6': P }, { instanceId: 'jekyll__jekyll-8761' }],
  ['parse_log_cargo', 'test a::b ... ok\ntest c ... FAILED\ntest d ... ignored\ntest e ... ok x', { 'a::b': P, c: F }],
];

/** Parsers with the same format as another parser. */
const SHARED: Readonly<Record<string, LogParserName>> = {
  parse_log_astroid: 'parse_log_pytest',
  parse_log_flask: 'parse_log_pytest',
  parse_log_marshmallow: 'parse_log_pytest',
  parse_log_pvlib: 'parse_log_pytest',
  parse_log_pyvista: 'parse_log_pytest',
  parse_log_sqlfluff: 'parse_log_pytest',
  parse_log_xarray: 'parse_log_pytest',
  parse_log_pydicom: 'parse_log_pytest_options',
  parse_log_requests: 'parse_log_pytest_options',
  parse_log_pylint: 'parse_log_pytest_options',
  parse_log_astropy: 'parse_log_pytest_v2',
  parse_log_scikit: 'parse_log_pytest_v2',
  parse_log_sphinx: 'parse_log_pytest_v2',
};

describe('log parsers', () => {
  it.each(FORMATS.map(([name, log, statuses, row]) => ({ name, log, statuses, row })))(
    '$name reads $log',
    ({ name, log, statuses, row }) => {
      expect(parse(name, log, row)).toEqual(statuses);
    },
  );

  it('cover every parser of the registry', () => {
    const tested = new Set<string>([...FORMATS.map(([name]) => name), ...Object.keys(SHARED)]);
    expect(LOG_PARSER_NAMES.filter((name) => !tested.has(name))).toEqual([]);
  });

  it.each(Object.entries(SHARED))('%s has the format of %s', (name, other) => {
    expect(logParser(name as LogParserName)).toBe(logParser(other));
  });

  it.each<[LogParserName, string, Row?]>([
    ['parse_log_django', 'FAIL:'],
    ['parse_log_calypso', ' ./node_modules/.bin/jest \n✓ a'],
    ['parse_log_calypso', ' ./node_modules/.bin/jest \n  ✓ a (3ms) x'],
    ['parse_log_prismjs', './node_modules/.bin/mocha tests/run.js --reporter json {"passes":[]}'],
    ['parse_log_prismjs', './node_modules/.bin/mocha tests/run.js --reporter json no'],
    ['parse_log_karma', 'Starting browser\n    a\n   b\n  c'],
    ['parse_log_doctest', '<doctest><TestCase></doctest>'],
    ['parse_log_doctest', '<doctest a=1></doctest>'],
    ['parse_log_doctest', '<doctest>&nbsp;</doctest>'],
    ['parse_log_doctest', '<doctest>'],
    ['parse_log_jekyll', 'a. b = .', { instanceId: 'jekyll__jekyll-1' }],
  ])('%s gives up on %j', (name, log, row) => {
    expect(parse(name, log, row)).toBe('unreadable');
  });

  it('treat the same characters as white space as Python does', () => {
    expect(parse('parse_log_cargo', 'test\u001ca\u0085...\u00a0ok\u2003')).toEqual({ a: P });
    expect(parse('parse_log_cargo', 'test a ... ok\ufeff')).toEqual({});
  });

  it('refuse logs whose names are together far longer than the log', () => {
    const log = `Starting browser\n ${'x'.repeat(60_000)}\n${Array.from({ length: 1200 }, (_, index) => `✔ ${index}`).join('\n')}`;
    expect(parse('parse_log_karma', log.replace('\n x', '\n  x'))).toBe('unreadable');
  });

  it('distinguish names by their first 8,192 characters', () => {
    const [long, longer] = ['x'.repeat(8192), 'x'.repeat(8193)];
    expect(parse('parse_log_tap', `ok 1 ${longer}\nnot ok 2 ${longer}y`)).toEqual({ [long]: F });
  });

  it('pause while they read a long log', () => {
    const parsing = logParser('parse_log_pytest')('PASSED a.py::b\n'.repeat(20_000), { instanceId: 'a', version: '1' });
    let pauses = 0;
    for (let step = parsing.next(); step.done !== true; step = parsing.next()) pauses += 1;
    expect(pauses).toBeGreaterThan(3);
  });
});

describe('parserProblem', () => {
  it.each([
    ['parse_log_jekyll', 'jekyll__jekyll-9141', '1', null],
    ['parse_log_jekyll', 'jekyll__jekyll-1', '1', expect.stringContaining('9141')],
    ['parse_log_immutable_js', 'immutable-js__immutable-js-1', '1', expect.stringContaining('2006')],
    ['parse_log_lighthouse', 'a__a-1', 'x', expect.stringContaining('version')],
    ['parse_log_lighthouse', 'a__a-1', '9.5', null],
    ['parse_log_pytest', 'a', '', null],
  ] as const)('says why %s cannot read the logs of %s in version %s', (name, instanceId, version, problem) => {
    expect(parserProblem(name, { instanceId, version })).toEqual(problem);
  });
});
