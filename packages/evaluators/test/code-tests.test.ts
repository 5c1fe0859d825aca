import { FloeError, VirtualClock } from '@floe-rl/core';
import { evaluatorSpecSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Evaluation } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { type DirectoryRuntime, directoryRuntime, shell } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const open: DirectoryRuntime[] = [];
afterEach(async () => {
  for (const runtime of open.splice(0)) await runtime.stop();
});

async function prepared(script = ''): Promise<DirectoryRuntime> {
  const runtime = await directoryRuntime();
  open.push(runtime);
  await shell(runtime, script);
  return runtime;
}

type Setup = {
  readonly solution?: string;
  readonly answer?: string;
  readonly agent?: DirectoryRuntime;
  readonly fresh?: DirectoryRuntime;
  readonly clock?: VirtualClock;
  readonly env?: Record<string, string>;
  readonly signal?: AbortSignal;
};

const CASES = [
  { stdin: '2 3\n', stdout: '5\n' },
  { stdin: '0 -1\n', stdout: '-1' },
  { stdin: '', stdout: '0' },
];
const RUNS = { solution: { path: 'add.sh' }, command: 'sh add.sh', cases: CASES };
const ADD = 'read a b; echo $((a + b))';

async function grade(config: Record<string, unknown>, setup: Setup = {}): Promise<Evaluation> {
  const { solution, answer, clock, env = {}, signal = new AbortController().signal } = setup;
  const runtime = setup.agent ?? (await prepared());
  const freshRuntime = setup.fresh ?? (await prepared());
  if (solution !== undefined)
    await runtime.writeFiles([{ path: `${runtime.paths.workdir}/add.sh`, content: solution }], signal);
  const spec = { strategy: 'code_tests', config: { ...RUNS, ...config }, env, refresh_runtime: true };
  const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime, session: sessionOf(answer) };
  return evaluatorRegistry(clock).get('code_tests').evaluate(context, signal);
}

describe('the evaluator code_tests', () => {
  it('rewards a solution that passes every case', async () => {
    expect(await grade({}, { solution: ADD })).toEqual({
      reward: 1,
      components: { pass_rate: 1 },
      details: { tests: 3, passed: 3, failed: {} },
    });
  });

  it('stops at the first failed case when only passing all counts', async () => {
    const graded = await grade({}, { solution: 'read a b; echo 5' });
    expect(graded).toMatchObject({
      reward: 0,
      details: { tests: 3, passed: 1, failed: { 1: 'wrong', 2: 'not_run' }, first_failure: { stdout_tail: '5\n' } },
    });
    expect(graded.components).toEqual({});
  });

  it('gives the share of passed cases with reward_granularity: pass_rate', async () => {
    const graded = await grade({ reward_granularity: 'pass_rate' }, { solution: 'read a b; echo 5' });
    expect(graded).toMatchObject({
      reward: expect.closeTo(1 / 3),
      components: { pass_rate: expect.closeTo(1 / 3) },
      details: { passed: 1, failed: { 1: 'wrong', 2: 'wrong' } },
    });
  });

  it('takes the last code block of the last message', async () => {
    const answer = `Here:\n\`\`\`sh\n${ADD}\n\`\`\`\nIt prints:\n\`\`\`\n5\n\`\`\``;
    const solution = { from: 'last_message', path: 'dir/add.sh', language: 'sh' };
    expect((await grade({ solution, command: 'sh dir/add.sh' }, { answer })).reward).toBe(1);
    expect(
      (await grade({ solution: { ...solution, language: null }, command: 'sh dir/add.sh' }, { answer })).reward,
    ).toBe(0);
  });

  it('never puts an expected output into the runtime', async () => {
    const fresh = await prepared();
    const cases = [{ stdin: 'x', stdout: 'hidden-output' }];
    await grade({ cases }, { fresh, solution: 'env; cat' });
    expect(fresh.commands.join('\n')).not.toContain('hidden-output');
    expect(await shell(fresh, 'grep -r hidden-output "$HOME" . || true')).toBe('');
  });

  it('prepares the solution with the compile command, and runs everything with the variables of the task', async () => {
    const config = { compile: 'mv add.sh "$NAME"', command: 'sh $NAME' };
    expect((await grade(config, { solution: ADD, env: { NAME: 'b.sh' } })).reward).toBe(1);
  });

  it.each<[string, string, string, string, number]>([
    ['white space at the ends of lines', 'lines', 'a  \nb\r\n\n', 'a\nb', 1],
    ['white space between words', 'lines', 'a  b', 'a b', 0],
    ['an empty line in the middle', 'lines', 'a\n\nb', 'a\nb', 0],
    ['all differences in white space', 'tokens', '  a\n\nb ', 'a b', 1],
    ['missing words', 'tokens', 'a', 'a b', 0],
    ['nothing', 'exact', 'a\n', 'a', 0],
    ['nothing', 'exact', 'a\n', 'a\n', 1],
    ['far too much white space', 'tokens', `a${' '.repeat(70_000)}`, 'a', 0],
  ])('ignores %s with compare: %s', async (_, compare, printed, stdout, reward) => {
    const cases = [{ stdin: printed, stdout }];
    expect((await grade({ compare, cases }, { solution: 'cat' })).reward).toBe(reward);
  });

  it('limits the memory of each process', async () => {
    const solution = 'node -e "1"';
    expect((await grade({ cases: [{ stdout: '' }] }, { solution })).reward).toBe(1);
    expect(await grade({ cases: [{ stdout: '' }], memory_mb: 64 }, { solution })).toMatchObject({
      reward: 0,
      details: { failed: { 0: 'crashed' } },
    });
  });
});

describe('a solution that fails', () => {
  it.each<[string, Setup, Record<string, unknown>, Record<string, unknown>]>([
    ['is missing', {}, {}, { failure: 'no_solution' }],
    ['is too large', { solution: ' '.repeat(2 ** 20 + 1) }, {}, { failure: 'solution_unreadable' }],
    [
      'is in no code block',
      { answer: 'print(1)' },
      { solution: { from: 'last_message', path: 'a' } },
      { failure: 'no_solution' },
    ],
    [
      'is in a code block that is too large',
      { answer: `\`\`\`\n${' '.repeat(2 ** 20)}\n\`\`\`` },
      { solution: { from: 'last_message', path: 'a' } },
      { failure: 'solution_too_large' },
    ],
    [
      'does not compile',
      { solution: ADD },
      { compile: 'echo no >&2; exit 1' },
      { failure: 'compile_failed', stderr_tail: 'no\n' },
    ],
    [
      'exits with another code than 0',
      { solution: `${ADD}; exit 1` },
      {},
      { failed: { 0: 'crashed', 1: 'not_run', 2: 'not_run' } },
    ],
    [
      'removes its folder',
      { solution: `${ADD}; rm -rf "$PWD"` },
      {},
      { passed: 1, failed: { 1: 'crashed', 2: 'not_run' } },
    ],
  ])('gives 0 when it %s', async (_, setup, config, details) => {
    expect(await grade(config, setup)).toMatchObject({ reward: 0, details });
  });

  it('fails a case of which a part of the output was dropped', async () => {
    const fresh = await prepared();
    const exec: DirectoryRuntime['exec'] = async (request, signal) => {
      return { ...(await fresh.exec(request, signal)), droppedBytes: 1 };
    };
    expect(await grade({}, { solution: ADD, fresh: { ...fresh, exec } })).toMatchObject({
      reward: 0,
      details: { failed: { 0: 'wrong' } },
    });
  });

  it('gives 0 when it cannot be read, unless the host has failed', async () => {
    const agent = await prepared();
    const fresh = await prepared();
    const gone = new FloeError('runtime_failed', 'gone');
    const broken = { ...agent, readFile: () => Promise.reject(gone) };
    expect(await grade({}, { agent: broken, fresh })).toMatchObject({
      reward: 0,
      details: { failure: 'solution_unreadable' },
    });
    const exec: DirectoryRuntime['exec'] = (request, signal) =>
      request.cwd === '/' ? Promise.reject(gone) : fresh.exec(request, signal);
    await expect(grade({}, { agent: broken, fresh: { ...fresh, exec } })).rejects.toBe(gone);
  });

  it('gives 0 for a case that exceeds its time limit, and continues with the next', async () => {
    const clock = new VirtualClock();
    const fresh = await prepared();
    const exec: DirectoryRuntime['exec'] = (request, signal) => {
      if (request.stdin === 'hang') setImmediate(() => clock.advance(2_000));
      return fresh.exec(request, signal);
    };
    const cases = [
      { stdin: 'hang', stdout: '' },
      { stdin: 'ok', stdout: 'ok' },
    ];
    const solution = 'read -r x; [ "$x" != hang ] || tail -f /dev/null; printf %s "$x"';
    const config = { cases, time_limit: 2, reward_granularity: 'pass_rate' };
    expect(await grade(config, { solution, clock, fresh: { ...fresh, exec } })).toMatchObject({
      reward: 0.5,
      details: { failed: { 0: 'timeout' } },
    });
    const compile = { compile: 'tail -f /dev/null', compile_timeout: 2 };
    const late: DirectoryRuntime['exec'] = (request, signal) => {
      if (request.command === compile.compile) setImmediate(() => clock.advance(2_000));
      return fresh.exec(request, signal);
    };
    expect(await grade(compile, { solution, clock, fresh: { ...fresh, exec: late } })).toMatchObject({
      reward: 0,
      details: { failure: 'compile_timeout' },
    });
  });

  it('counts the cases for which no time is left as not passed', async () => {
    const budget = new AbortController();
    const fresh = await prepared();
    const exec: DirectoryRuntime['exec'] = async (request, signal) => {
      const ran = await fresh.exec(request, signal);
      if (request.stdin === '2 3\n') budget.abort(new FloeError('deadline_exceeded', 'the budget is used up'));
      return ran;
    };
    const graded = await grade(
      { reward_granularity: 'pass_rate' },
      { solution: ADD, fresh: { ...fresh, exec }, signal: budget.signal },
    );
    expect(graded).toMatchObject({
      reward: expect.closeTo(1 / 3),
      components: { pass_rate: expect.closeTo(1 / 3) },
      details: { failed: { 1: 'not_run', 2: 'not_run' } },
    });
  });

  it('is not blamed for a program that the fresh runtime lacks', async () => {
    for (const config of [{ command: 'no-such-program add.sh' }, { compile: 'no-such-program' }]) {
      await expect(grade(config, { solution: ADD })).rejects.toMatchObject({
        code: 'evaluator_failed',
        details: { program: 'no-such-program' },
      });
    }
  });

  it('is blamed for a runtime that fails while its code runs, but not for the death of the spawn helper', async () => {
    const fresh = await prepared();
    const failing = (error: FloeError): DirectoryRuntime => ({
      ...fresh,
      exec: (request, signal) => (request.stdin === undefined ? fresh.exec(request, signal) : Promise.reject(error)),
    });
    const broken = failing(new FloeError('runtime_failed', 'cannot start'));
    expect(await grade({}, { solution: ADD, fresh: broken })).toMatchObject({
      reward: 0,
      details: { failed: { 0: 'crashed' } },
    });
    const died = new FloeError('runtime_failed', 'the spawn helper died', { helper: 'died' });
    await expect(grade({}, { solution: ADD, fresh: failing(died) })).rejects.toBe(died);
  });
});

describe('a test program', () => {
  const PROGRAM = {
    command: 'sh tests/run.sh',
    files: {
      'tests/run.sh':
        'for n in 1 2; do if [ "$(echo $n 1 | sh add.sh)" = $((n + 1)) ]; then echo "PASSED add::$n"; else echo "FAILED add::$n"; fi; done',
    },
    expected: ['add::1', 'add::2'],
  };
  const config = { command: null, cases: null, program: PROGRAM };

  it('decides by the lines that it prints for the expected tests', async () => {
    expect(await grade(config, { solution: ADD })).toMatchObject({ reward: 1, details: { passed: 2, exit_code: 0 } });
    const half = await grade({ ...config, reward_granularity: 'pass_rate' }, { solution: 'echo 2' });
    expect(half).toMatchObject({ reward: 0.5, details: { failed: { 'add::2': 'wrong' } } });
    expect(await grade(config, { solution: 'echo 2' })).toMatchObject({ reward: 0, components: { pass_rate: 0.5 } });
  });

  it('gives 0 for tests that it does not report, whatever its exit code', async () => {
    const silent = { ...config, program: { ...PROGRAM, files: {}, command: 'sh add.sh' } };
    expect(await grade(silent, { solution: 'exit 0' })).toMatchObject({
      reward: 0,
      details: { failed: { 'add::1': 'not_run', 'add::2': 'not_run' } },
    });
    const twice = await grade(silent, { solution: 'echo "PASSED add::1"; echo "FAILED add::1"; echo "PASSED add::2"' });
    expect(twice).toMatchObject({ reward: 0, details: { failed: { 'add::1': 'wrong' } } });
  });

  it('gives 0 for the tests that it has not reported after its time limit', async () => {
    const clock = new VirtualClock();
    const fresh = await prepared();
    const exec: DirectoryRuntime['exec'] = (request, signal) => {
      if (request.command === PROGRAM.command) setImmediate(() => clock.advance(3_000));
      return fresh.exec(request, signal);
    };
    const hanging = { ...config, program: { ...PROGRAM, timeout: 3, files: { 'tests/run.sh': 'tail -f /dev/null' } } };
    expect(await grade(hanging, { solution: ADD, clock, fresh: { ...fresh, exec } })).toMatchObject({
      reward: 0,
      details: { failed: { 'add::1': 'timeout' } },
    });
  });

  it('has files that no code of the agent can prevent without a reward of 0', async () => {
    const blocking = { ...config, compile: 'sh add.sh' };
    expect(await grade(blocking, { solution: 'echo x > tests' })).toMatchObject({
      reward: 0,
      details: { failure: 'files_blocked' },
    });
    const fresh = await prepared('echo x > tests');
    await expect(grade(config, { solution: ADD, fresh })).rejects.toMatchObject({ code: 'evaluator_failed' });
  });
});

describe('a task with the evaluator code_tests', () => {
  const check = (config: Record<string, unknown>, refresh_runtime: boolean | null = null): void =>
    evaluatorRegistry().check(
      evaluatorSpecSchema.parse({ strategy: 'code_tests', config: { ...RUNS, ...config }, refresh_runtime }),
    );
  const program = { command: 'x', expected: ['a'] };

  it.each<[string, Record<string, unknown>, boolean | null]>([
    ['evaluator.refresh_runtime', {}, false],
    ['evaluator.config.solution.path', { solution: { path: '/etc/passwd' } }, null],
    ['evaluator.config.solution.language', { solution: { path: 'a', language: 'sh' } }, null],
    ['evaluator.config.cases', { cases: null }, null],
    ['evaluator.config.cases', { cases: [] }, null],
    ['evaluator.config.cases', { program }, null],
    ['evaluator.config.cases.0.stdout', { cases: [{ stdin: '1' }] }, null],
    ['evaluator.config.command', { command: null }, null],
    ['evaluator.config.command', { cases: null, program }, null],
    ['evaluator.config.program.expected', { cases: null, command: null, program: { ...program, expected: [] } }, null],
    [
      'evaluator.config.program.files',
      { cases: null, command: null, program: { ...program, files: { '/a': '' } } },
      null,
    ],
    ['evaluator.config.time_limit', { time_limit: 0 }, null],
    ['evaluator.config.memory_mb', { memory_mb: 1 }, null],
    ['evaluator.config.reward_granularity', { reward_granularity: 'mean' }, null],
  ])('is refused with the path %s', (path, config, refresh) => {
    expect(() => check(config, refresh)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(path) }),
    );
  });

  it('is accepted with cases or with a program', () => {
    expect(() => check({})).not.toThrow();
    expect(() => check({ cases: null, command: null, program })).not.toThrow();
  });
});
