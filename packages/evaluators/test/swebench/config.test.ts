import { describe, expect, it } from 'vitest';
import { evaluatorRegistry } from '../../src/registry.ts';
import { C_GO_RUST } from '../../src/swebench/commands/c-go-rust.ts';
import { JAVA } from '../../src/swebench/commands/java.ts';
import { JAVASCRIPT } from '../../src/swebench/commands/javascript.ts';
import { PHP_RUBY } from '../../src/swebench/commands/php-ruby.ts';
import { PYTHON } from '../../src/swebench/commands/python.ts';
import { commandsOf, repositoryOf } from '../../src/swebench/commands/repositories.ts';
import { SWE_GYM } from '../../src/swebench/commands/swe-gym.ts';
import { parseSweBenchConfig, type SweBenchRow } from '../../src/swebench/config.ts';

/** A patch that changes the given files. */
const patchOf = (...paths: string[]): string =>
  paths.map((path) => `diff --git a/${path} b/${path}\n--- a/${path}\n+++ b/${path}\n@@ -1 +1 @@\n-a\n+b\n`).join('');

const ROW = {
  instance_id: 'django__django-11099',
  repo: 'django/django',
  version: '3.0',
  base_commit: 'd26b2424437dabeeca94d7900b37d2df4410da0c',
  test_patch: patchOf('tests/auth_tests/test_validators.py', 'tests/data.json'),
  FAIL_TO_PASS: '["a"]',
  PASS_TO_PASS: ['b'],
  problem_statement: 'ignored',
};

function rowOf(fields: Record<string, unknown>, config: Record<string, unknown> = {}): SweBenchRow {
  const { row } = parseSweBenchConfig({ instance: { ...ROW, ...fields }, ...config });
  if (row.kind !== 'swe_bench') throw new Error('a row of R2E-Gym');
  return row;
}

/** Returns the lines of a row's script between the markers. */
function testLines(fields: Record<string, unknown>, config?: Record<string, unknown>): string[] {
  const lines = rowOf(fields, config).script.split('\n');
  return lines.slice(lines.indexOf(": '>>>>> Start Test Output'") + 1, lines.indexOf('SWEBENCH_TEST_EXIT_CODE=$?'));
}

describe('parseSweBenchConfig', () => {
  it('reads the expected tests as a list or as JSON text', () => {
    expect(rowOf({}).tests).toEqual({ failToPass: ['a'], passToPass: ['b'] });
  });

  it('has the defaults of the harness', () => {
    expect(parseSweBenchConfig({ instance: ROW })).toMatchObject({
      patch: { repo_dir: '/testbed', patch_command: null, apply_timeout: 60, exclude_patterns: [] },
      testTimeoutMs: 1_200_000,
      granularity: 'binary',
    });
  });

  it('makes the script of a repository in the table', () => {
    expect(rowOf({}).script).toBe(
      [
        '#!/bin/bash',
        'exec 2>&1',
        'set -uxo pipefail',
        'source /opt/miniconda3/bin/activate',
        'conda activate testbed',
        'git config --global --add safe.directory "$PWD"',
        "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen",
        'export LANG=en_US.UTF-8',
        'export LANGUAGE=en_US:en',
        'export LC_ALL=en_US.UTF-8',
        'python -m pip install -e .',
        ": '>>>>> Start Test Output'",
        './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 auth_tests.test_validators',
        'SWEBENCH_TEST_EXIT_CODE=$?',
        ": '>>>>> End Test Output'",
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"',
        '',
      ].join('\n'),
    );
  });

  it.each([
    [
      'the test files of the patch, quoted where necessary',
      { repo: 'psf/requests', version: '2.0', test_patch: patchOf('test_requests.py', 'a b.py', 'x.txt') },
      ["pytest -rA test_requests.py 'a b.py'"],
    ],
    [
      "mypy's test cases",
      { repo: 'python/mypy', version: '1.4', test_patch: '[case testA]\n+[case testB-x]' },
      ['pytest -n0 -rA -k "testA or testB-x"'],
    ],
    ['nothing, for the instances of SWE-bench Multilingual', { repo: 'jqlang/jq', version: '2839' }, ['make check']],
    [
      'all commands of an instance',
      { repo: 'javaparser/javaparser', version: '4538' },
      [
        './mvnw test -B -pl javaparser-core-testing -Dtest=NodeTest',
        './mvnw test -B -pl javaparser-core-testing -Dtest=NodePositionTest',
      ],
    ],
    [
      'a command for each test file of wp-calypso',
      {
        repo: 'Automattic/wp-calypso',
        version: '10.9.0',
        test_patch: patchOf('client/a/test/b.js', 'client/c/__snapshots__/d.js.snap', 'test/e2e/e.js', 'docs/f.js'),
      },
      [
        "./node_modules/.bin/jest --verbose -c=test/client/jest.config.json 'client/a/test/b.js'",
        "./node_modules/.bin/jest --verbose -c=test/client/jest.config.json 'client/c'",
        'cd test/e2e',
        'NODE_CONFIG_ENV=test npm run test test/e2e/e.js',
        'cd ../..',
      ],
    ],
    [
      'a command for each test file of an early wp-calypso',
      { repo: 'Automattic/wp-calypso', version: '6.1.0', test_patch: patchOf('client/a.js') },
      ["npm run test-client --verbose 'client/a.js'"],
    ],
  ])('appends to the test command %s', (_, fields, lines) => {
    expect(testLines(fields)).toEqual(lines);
  });

  it('builds what is tested before the start marker', () => {
    const { script } = rowOf({ repo: 'redis/redis', version: '11279' });
    expect(script).toContain("make distclean\nmake\n: '>>>>> Start Test Output'\n");
    expect(script).not.toContain('conda');
  });

  it('runs a given test command as it is', () => {
    const row = { repo: 'own/repo', log_parser: 'parse_log_jq' };
    expect(testLines(row, { test_command: 'make "x"' })).toEqual(['make "x"']);
  });

  it('runs the script of a row that has one, and records the exit status of the tests', () => {
    const eval_script =
      "#!/bin/bash\nset -uxo pipefail\ncd /x\n: '>>>>> Start Test Output'\nrun\n: '>>>>> End Test Output'\nreset";
    const row = rowOf({ repo: 'own/repo', log_parser: 'parse_log_tap', eval_script });
    expect(row.scriptApplies).toBe(true);
    expect(row.script).toBe(
      `#!/bin/bash\nexec 2>&1\nset -uxo pipefail\ncd /x\n: '>>>>> Start Test Output'\nrun\nSWEBENCH_TEST_EXIT_CODE=$?\n: '>>>>> End Test Output'\necho ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"\nreset\n`,
    );
    expect(rowOf({ eval_script }, { test_command: 'mine' }).scriptApplies).toBe(false);
  });

  it("prefers the parser of the config to the row's, and the row's to the table's", () => {
    expect(rowOf({}).parser).toBe('parse_log_django');
    expect(rowOf({ log_parser: 'parse_log_tap' }).parser).toBe('parse_log_tap');
    expect(rowOf({ log_parser: 'parse_log_tap' }, { log_parser: 'parse_log_jq' }).parser).toBe('parse_log_jq');
  });

  it('judges repositories by failures only where the row or the repository says so', () => {
    const marked = { repo: 'markedjs/marked', version: '1.0' };
    expect(
      [rowOf({}), rowOf(marked), rowOf({ ...marked, eval_type: 'pass_and_fail' })].map(({ evalType }) => evalType),
    ).toEqual(['pass_and_fail', 'fail_only', 'pass_and_fail']);
  });

  it('reads a row of R2E-Gym', () => {
    const instance = { repo_name: 'pillow', expected_output_json: '{"A.b - x": "PASSED"}' };
    expect(parseSweBenchConfig({ instance, test_command: 'x' }).row).toEqual({
      kind: 'r2e_gym',
      expected: new Map([['A.b', 'PASSED']]),
      testCommand: 'x',
    });
  });

  it.each<[string, Record<string, unknown>, Record<string, unknown>?]>([
    ['instance.instance_id', { instance_id: '' }],
    ['instance.repo', { repo: undefined }],
    ['instance.base_commit', { base_commit: '--force' }],
    ['instance.test_patch', { test_patch: '' }],
    ['instance.FAIL_TO_PASS', { FAIL_TO_PASS: '["a"' }],
    ['instance.FAIL_TO_PASS', { FAIL_TO_PASS: '{"a": 1}' }],
    ['instance.PASS_TO_PASS', { PASS_TO_PASS: [1] }],
    ['instance.FAIL_TO_PASS', { FAIL_TO_PASS: [], PASS_TO_PASS: '[]' }],
    ['instance.log_parser', { log_parser: 'parse_log_unknown' }],
    ['instance.eval_type', { eval_type: 'x' }],
    ['instance.eval_script', { eval_script: 'echo' }],
    ['instance.image_assets', { image_assets: '{"test_patch": [{"path": "a.png"}]}' }],
    ['instance.expected_output_json', { expected_output_json: '{}' }],
    ['instance.expected_output_json', { expected_output_json: '{' }],
    ['test_command', { version: '99' }],
    ['test_command', { version: undefined }],
    ['test_command', { repo: 'own/repo', log_parser: 'parse_log_tap' }],
    ['log_parser', { repo: 'own/repo' }, { test_command: 'x' }],
    ['instance', { log_parser: 'parse_log_jekyll' }],
    ['log_parser', {}, { log_parser: 'pytest' }],
    ['reward_granularity', {}, { reward_granularity: 'share' }],
    ['apply_timeout', {}, { apply_timeout: 0 }],
    ['exclude_patterns', {}, { exclude_patterns: [':x'] }],
    ['unknown', {}, { unknown: 1 }],
  ])('is refused at submission with a message that names %s: %j', (field, fields, config = {}) => {
    const spec = {
      strategy: 'swebench',
      config: { instance: { ...ROW, ...fields }, ...config },
      env: {},
      refresh_runtime: null,
    };
    expect(() => evaluatorRegistry().check(spec)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(field) }),
    );
  });

  it('accepts assets that belong to the problem statement only', () => {
    expect(rowOf({ image_assets: { problem_statement: ['x'], test_patch: [] } }).kind).toBe('swe_bench');
    expect(rowOf({ image_assets: '' }).kind).toBe('swe_bench');
  });

  it('needs a fresh runtime', () => {
    const spec = { strategy: 'swebench', config: { instance: ROW }, env: {}, refresh_runtime: false };
    expect(() => evaluatorRegistry().check(spec)).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(() => evaluatorRegistry().check({ ...spec, refresh_runtime: true })).not.toThrow();
  });
});

describe('the table of test commands', () => {
  it.each(Object.entries({ ...PYTHON, ...SWE_GYM, ...JAVASCRIPT, ...JAVA, ...C_GO_RUST, ...PHP_RUBY }))(
    'has one entry for each version of %s',
    (name, repository) => {
      const versions = repository.commands.flatMap((commands) => commands.versions.split(' '));
      expect(new Set(versions).size).toBe(versions.length);
      expect(versions.filter((version) => !/^[\w.]+$/.test(version))).toEqual([]);
      expect(repositoryOf(name.toUpperCase())).toBe(repository);
      expect(commandsOf(repository, versions[0] ?? '')).toBe(repository.commands[0]);
    },
  );

  it('has the repositories and versions of swebench 4.1.0 whose parser is registered, and those of SWE-Gym', () => {
    const counts = [PYTHON, SWE_GYM, JAVASCRIPT, JAVA, C_GO_RUST, PHP_RUBY].map((repositories) =>
      Object.values(repositories).flatMap(({ commands }) => commands.flatMap(({ versions }) => versions.split(' '))),
    );
    expect(counts.map((versions) => versions.length)).toEqual([282, 416, 132, 43, 127, 87]);
  });
});
