import { FloeError, VirtualClock } from '@floe-rl/core';
import { evaluatorSpecSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { EvaluatedSession, Evaluation } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { type DirectoryRuntime, directoryRuntime, losing, shell } from './directory-runtime.ts';
import { sessionOf, traceOf } from './evaluated-session.ts';

const GIT = 'git -c user.name=t -c user.email=t@t -c commit.gpgsign=false';
const REPOSITORY = `git init -q .; printf 'old\\n' > work.txt; git add -A; ${GIT} commit -q -m start`;
const HANG = 'tail -f /dev/null';
const GIVE_ONE = 'echo 1 > "$FLOE_REWARD"';

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
  readonly agent?: DirectoryRuntime;
  readonly fresh?: DirectoryRuntime | null;
  /** Script that the agent ran in its runtime. */
  readonly work?: string;
  readonly env?: Record<string, string>;
  readonly session?: EvaluatedSession;
  readonly clock?: VirtualClock;
};

async function run(config: Record<string, unknown>, setup: Setup = {}): Promise<Evaluation> {
  const { env = {}, session = sessionOf(), clock } = setup;
  const runtime = setup.agent ?? (await prepared());
  const freshRuntime = setup.fresh === undefined ? await prepared() : setup.fresh;
  if (setup.work !== undefined) await shell(runtime, setup.work);
  const spec = { strategy: 'script', config, env, refresh_runtime: freshRuntime !== null };
  const evaluator = evaluatorRegistry(clock).get('script');
  const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime, session };
  return evaluator.evaluate(context, new AbortController().signal);
}

/** Runs a script that gets no files of the agent. */
const grade = (command: string, config: Record<string, unknown> = {}, setup: Setup = {}): Promise<Evaluation> =>
  run({ command, carry: 'none', ...config }, setup);

describe('the evaluator script', () => {
  it('reads a reward that is a number', async () => {
    expect(await grade('echo 0.25 > "$FLOE_REWARD"')).toMatchObject({
      reward: 0.25,
      details: { exit_code: 0, reported: {} },
      components: {},
    });
  });

  it('reads components, details and the rewards of traces and replies from an object', async () => {
    const report = {
      reward: -1,
      components: { style: 0.5, tests: null },
      details: { note: 'slow' },
      trace_rewards: { t0: 2 },
      step_rewards: { c0: 3 },
    };
    expect(await grade(`echo '${JSON.stringify(report)}' > "$FLOE_REWARD"; echo seen`)).toMatchObject({
      reward: -1,
      components: report.components,
      traceRewards: report.trace_rewards,
      stepRewards: report.step_rewards,
      details: { reported: report.details, stdout_tail: 'seen\n' },
    });
  });

  it('accepts null as the reward of a script that could not decide', async () => {
    expect((await grade(`echo '{"reward": null}' > "$FLOE_REWARD"`)).reward).toBeNull();
  });

  it('gives the script the session, the variables of the task and its files', async () => {
    const session = sessionOf('final', { metadata: { row: 7 }, traces: [traceOf('t0', ['c0'])] });
    const command = `{ printf '{"reward": 1, "details": {"env": "%s", "file": "%s", "session": ' "$MINE" "$(cat tests/a.txt)"
      cat "$FLOE_SESSION"; echo '}}'; } > "$FLOE_REWARD"`;
    const { details } = await grade(command, { files: { 'tests/a.txt': 'hidden' } }, { env: { MINE: 'x' }, session });
    expect(details.reported).toEqual({
      env: 'x',
      file: 'hidden',
      session: {
        session_id: 'ses_1',
        attempt: 1,
        status: 'COMPLETED',
        instruction: 'Do it.',
        metadata: { row: 7 },
        messages: session.messages,
        messages_omitted: 0,
        traces: [{ trace_id: 't0', completion_ids: ['c0'], trained_tokens: 5, finish_reason: 'stop', step: null }],
      },
    });
  });

  it('gives the script only the last messages of a conversation that is too large', async () => {
    const content = 'x'.repeat(5 * 2 ** 20);
    const messages = [
      { role: 'user' as const, content },
      ...Array.from({ length: 3 }, () => ({ role: 'user' as const, content: 'last' })),
      { role: 'user' as const, content },
    ];
    const command = `node -e 'const {messages, messages_omitted} = JSON.parse(require("fs").readFileSync(process.env.FLOE_SESSION));
      require("fs").writeFileSync(process.env.FLOE_REWARD, JSON.stringify({reward: 1, details: {kept: messages.length, messages_omitted}}))'`;
    const { details } = await grade(command, {}, { session: sessionOf('', { messages }) });
    expect(details.reported).toEqual({ kept: 4, messages_omitted: 1 });
  });
});

describe("the agent's files", () => {
  it('cross into the fresh runtime as a patch by default', async () => {
    const [agent, fresh] = [await prepared(REPOSITORY), await prepared(REPOSITORY)];
    const command = 'grep -q new work.txt && echo 1 > "$FLOE_REWARD"';
    const graded = await run({ command }, { agent, fresh, work: 'echo new > work.txt' });
    expect(graded).toMatchObject({ reward: 1, details: { patch_bytes: expect.any(Number) } });
  });

  it('cross as the declared regular files with their modes, and links do not', async () => {
    const fresh = await prepared();
    const work = `mkdir -p out/sub secret; printf one > out/one.txt; printf '\\000\\377' > 'out/sub/b in'; chmod +x 'out/sub/b in'
      printf no > secret/no.txt; printf no > left.txt; ln -s ../left.txt out/link; ln -s secret way; ln -s left.txt alias`;
    const config = {
      command: GIVE_ONE,
      carry: 'paths',
      paths: ['out/', 'way/no.txt', 'alias', 'absent', 'out/one.txt'],
    };
    const graded = await run(config, { fresh, work });
    expect(graded).toMatchObject({
      reward: 1,
      details: { carried_files: 2, carried_bytes: 5, missing_paths: ['way/no.txt', 'alias', 'absent'] },
    });
    expect(
      await shell(fresh, `find . -type f -o -type l | sort; od -An -tx1 'out/sub/b in'; test -x 'out/sub/b in'`),
    ).toBe('./out/one.txt\n./out/sub/b in\n 00 ff\n');
  });

  it('cross with the whole folder when that is declared', async () => {
    const fresh = await prepared('mkdir sub');
    const agent = await prepared('mkdir sub; echo x > sub/x; echo y > y');
    const config = { command: GIVE_ONE, carry: 'paths', paths: ['.'], repo_dir: 'sub' };
    expect((await run(config, { agent, fresh })).details).toMatchObject({ carried_files: 1, missing_paths: [] });
    expect(await shell(fresh, 'find . -type f')).toBe('./sub/x\n');
  });

  it("are replaced by the task's own files at the same paths", async () => {
    const work = 'echo 1 > answer; mkdir tests; echo "exit 0" > tests/check.sh';
    const config = {
      command: 'sh tests/check.sh && echo 1 > "$FLOE_REWARD" || echo 0 > "$FLOE_REWARD"',
      ...{ carry: 'paths', paths: ['answer', 'tests'], files: { 'tests/check.sh': 'grep -q 2 answer' } },
    };
    expect((await run(config, { work })).reward).toBe(0);
    expect((await run(config, { work: work.replace('echo 1', 'echo 2') })).reward).toBe(1);
  });

  it.each<[string, string, string]>([
    ['too large', 'head -c 17000000 /dev/zero > out', 'carry_too_large'],
    ['too many', 'mkdir out; cd out; seq 2001 | xargs touch', 'carry_too_large'],
  ])('are a reward of 0 when they are %s', async (_, work, failure) => {
    const graded = await run({ command: GIVE_ONE, carry: 'paths', paths: ['out'] }, { work });
    expect(graded).toMatchObject({ reward: 0, details: { failure } });
  });

  it('are a reward of 0 when the agent broke its runtime, its shell or its folder', async () => {
    const config = { command: GIVE_ONE, carry: 'paths', paths: ['out'] };
    const broken = (exec: DirectoryRuntime['exec'], readFile?: DirectoryRuntime['readFile']) => async () => {
      const agent = await prepared();
      return run(config, { agent: { ...agent, exec, readFile: readFile ?? agent.readFile } });
    };
    const ended = { exitCode: 0, signal: null, stdout: '', stderr: '', droppedBytes: 0, killedBy: null, wallMs: 1 };
    const failure = { reward: 0, details: { failure: 'carry_failed' } };
    expect(await broken(() => Promise.reject(new FloeError('runtime_failed', 'no shell')))()).toMatchObject(failure);
    expect(await broken(async () => ({ ...ended, exitCode: 1 }))()).toMatchObject(failure);
    for (const forged of ['junk', '3 - out\0ab', '2 - ../out\0ab', '2 - other\0ab', `2 - out/${'x'.repeat(256)}\0ab`]) {
      const forge = broken(
        async () => ended,
        async () => Buffer.from(forged),
      );
      expect(await forge()).toMatchObject(failure);
    }
    const agent = await prepared();
    expect(await run({ ...config, repo_dir: `${agent.paths.home}/absent` }, { agent })).toMatchObject(failure);
  });

  it('are a reward of 0 when they are in the way of other files', async () => {
    const blocking = await prepared('mkdir out; echo x > out/x');
    const paths = { command: GIVE_ONE, carry: 'paths', paths: ['out'] };
    expect(await run(paths, { fresh: blocking, work: 'echo file > out' })).toMatchObject({
      reward: 0,
      details: { failure: 'carry_failed' },
    });
    const hidden = { ...paths, files: { 'out/hidden': 'x' } };
    expect(await run(hidden, { work: 'echo file > out' })).toMatchObject({
      reward: 0,
      details: { failure: 'files_blocked' },
    });
  });

  it('are not blamed when the fresh runtime lacks a program that copies them', async () => {
    const fresh = await prepared();
    const exec: DirectoryRuntime['exec'] = (request, signal) =>
      fresh.exec({ ...request, env: { ...request.env, PATH: fresh.paths.workdir } }, signal);
    const config = { command: GIVE_ONE, carry: 'paths', paths: ['out'] };
    await expect(run(config, { fresh: { ...fresh, exec }, work: 'echo x > out' })).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringContaining('find, head, wc, cat'),
    });
    const lost = losing({ ...fresh, exec }, 'command -v');
    await expect(run(config, { fresh: lost, work: 'echo x > out' })).rejects.toMatchObject({
      code: 'evaluator_failed',
    });
  });

  it('are not blamed when the fresh runtime cannot run a command either', async () => {
    const fresh = await prepared();
    const gone = new FloeError('runtime_failed', 'the host is gone');
    const dead = { ...fresh, exec: () => Promise.reject(gone), writeFiles: () => Promise.reject(gone) };
    const config = { command: GIVE_ONE, carry: 'paths', paths: ['out'] };
    await expect(run(config, { fresh: dead, work: 'echo x > out' })).rejects.toBe(gone);
    const writeFiles: DirectoryRuntime['writeFiles'] = (files, signal) =>
      files.some(({ path }) => path.endsWith('/hidden'))
        ? Promise.reject(new FloeError('runtime_failed', 'the disk is full'))
        : fresh.writeFiles(files, signal);
    const half = { ...fresh, exec: dead.exec, writeFiles };
    await expect(grade(GIVE_ONE, { files: { hidden: 'x' } }, { fresh: half })).rejects.toBe(gone);
  });

  it("are not blamed for the task's own files where none of the agent crossed", async () => {
    const fresh = await prepared('mkdir hidden');
    await expect(grade(GIVE_ONE, { files: { hidden: 'x' } }, { fresh })).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringContaining('config.files'),
    });
  });
});

describe('a script that fails', () => {
  const FAILURES: readonly (readonly [string, string, string])[] = [
    ['exits with another code than 0', `${GIVE_ONE}; exit 3`, 'exit_code'],
    ['is killed after it wrote a reward', `${GIVE_ONE}; kill -9 $$`, 'exit_code'],
    ['writes no reward', 'true', 'no_reward'],
    ['writes a folder as reward', 'mkdir "$FLOE_REWARD"', 'no_reward'],
    ['writes NaN', 'echo NaN > "$FLOE_REWARD"', 'invalid_reward'],
    ['writes an infinite reward', 'echo 1e999 > "$FLOE_REWARD"', 'invalid_reward'],
    ['writes a text', `echo '"1"' > "$FLOE_REWARD"`, 'invalid_reward'],
    ['writes nothing into the file', ': > "$FLOE_REWARD"', 'invalid_reward'],
    ['writes an unknown field', `echo '{"reward": 1, "score": 1}' > "$FLOE_REWARD"`, 'invalid_reward'],
    ['writes no number', `echo '{"components": {"a": 1}}' > "$FLOE_REWARD"`, 'invalid_reward'],
    ['writes a huge file', 'head -c 70000 /dev/zero > "$FLOE_REWARD"', 'invalid_reward'],
  ];

  it.each(FAILURES)('cannot be graded when it %s in a fresh runtime', async (_, command, failure) => {
    await expect(grade(command)).rejects.toMatchObject({ code: 'evaluator_failed', details: { failure } });
  });

  it.each(FAILURES)(
    'gives 0 when it %s and the task declares that the agent can cause it',
    async (_, command, failure) => {
      const declared = await grade(command, { agent_failures: [failure] });
      expect(declared).toMatchObject({ reward: 0, details: { failure } });
      const others = ['timeout', 'exit_code', 'no_reward', 'invalid_reward'].filter((one) => one !== failure);
      await expect(grade(command, { agent_failures: others })).rejects.toMatchObject({ code: 'evaluator_failed' });
    },
  );

  it.each(FAILURES)("gives 0 when it %s in the agent's own runtime", async (_, command, failure) => {
    expect(await run({ command }, { fresh: null })).toMatchObject({ reward: 0, details: { failure } });
  });

  it('is ended after its time limit', async () => {
    const late = async (config: Record<string, unknown>) => {
      const clock = new VirtualClock();
      const fresh = await prepared();
      const exec: DirectoryRuntime['exec'] = (request, signal) => {
        if (request.command === HANG) setImmediate(() => clock.advance(5_000));
        return fresh.exec(request, signal);
      };
      return grade(HANG, { timeout: 5, ...config }, { fresh: { ...fresh, exec }, clock });
    };
    await expect(late({})).rejects.toMatchObject({ code: 'evaluator_failed', details: { failure: 'timeout' } });
    expect(await late({ agent_failures: ['timeout'] })).toMatchObject({ reward: 0, details: { failure: 'timeout' } });
  });

  it('is the fault of the agent only if it has files there when the folder of the script is gone', async () => {
    const config = { command: GIVE_ONE, repo_dir: 'sub' };
    await expect(grade(GIVE_ONE, { repo_dir: 'absent' })).rejects.toMatchObject({ code: 'evaluator_failed' });
    const [agent, fresh] = [await prepared(REPOSITORY), await prepared(REPOSITORY)];
    const removed = await prepared();
    const carried = { ...config, carry: 'paths', paths: ['x'] };
    await shell(agent, 'mkdir sub; echo x > sub/x');
    const exec: DirectoryRuntime['exec'] = async (request, signal) => {
      if (request.command === GIVE_ONE) await shell(removed, 'rm -r sub');
      return removed.exec(request, signal);
    };
    expect(await run(carried, { agent, fresh: { ...removed, exec } })).toMatchObject({
      reward: 0,
      details: { failure: 'repo_missing', carried_files: 1 },
    });
    await expect(run(config, { agent, fresh })).rejects.toMatchObject({ code: 'evaluator_failed' });
  });

  it("gives 0 when the agent's own runtime is broken", async () => {
    const agent = await prepared();
    const broken = { ...agent, exec: () => Promise.reject(new FloeError('runtime_failed', 'no shell')) };
    expect(await run({ command: GIVE_ONE }, { agent: broken, fresh: null })).toMatchObject({
      reward: 0,
      details: { failure: 'runtime_broken' },
    });
    const died = new FloeError('runtime_failed', 'the spawn helper died', { helper: 'died' });
    const dead = { ...agent, exec: () => Promise.reject(died) };
    await expect(run({ command: GIVE_ONE }, { agent: dead, fresh: null })).rejects.toBe(died);
  });
});

describe('a task with the evaluator script', () => {
  const check = (config: Record<string, unknown>, refresh_runtime: boolean | null = null): void =>
    evaluatorRegistry().check(
      evaluatorSpecSchema.parse({ strategy: 'script', config: { command: 'x', ...config }, refresh_runtime }),
    );

  it.each<[string, Record<string, unknown>, boolean | null]>([
    ['command', { command: '' }, null],
    ['timeout', { timeout: 0 }, null],
    ['carry', { carry: 'all' }, null],
    ['carry', { carry: 'none' }, false],
    ['paths', { paths: ['a'] }, null],
    ['paths', { carry: 'paths' }, null],
    ['paths.0', { carry: 'paths', paths: ['/etc'] }, null],
    ['paths.0', { carry: 'paths', paths: ['a/../../b'] }, null],
    ['patch_command', { carry: 'none', patch_command: 'git diff' }, null],
    ['patch_command', { patch_command: 'git diff' }, false],
    ['exclude_patterns', { carry: 'paths', paths: ['a'], exclude_patterns: ['b'] }, null],
    ['files', { files: { '../a': 'x' } }, null],
    ['files', { files: Object.fromEntries(Array.from({ length: 257 }, (_, i) => [`f${i}`, ''])) }, null],
    ['agent_failures.0', { agent_failures: ['oops'] }, null],
    ['unknown', { unknown: 1 }, null],
  ])('is refused with the name of the field %s', (field, config, refresh) => {
    expect(() => check(config, refresh)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(field) }),
    );
  });

  it('is accepted with the patch in a fresh runtime, and without one in place', () => {
    expect(() => check({ patch_command: 'git diff', exclude_patterns: ['tests/*'] })).not.toThrow();
    expect(() => check({ carry: 'patch', exclude_patterns: ['tests/*'] })).not.toThrow();
    expect(() => check({}, false)).not.toThrow();
  });
});
