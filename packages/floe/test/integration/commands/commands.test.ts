import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { FloeClient } from '@floe-rl/client';
import { harnessRegistry } from '@floe-rl/node';
import { startSim } from '@floe-rl/sim';
import { tableFromIPC } from 'apache-arrow';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { oneCall, startTestStack, type TestStack } from '../../../../../test/integration/stack.ts';

const CLI = join(import.meta.dirname, '..', '..', '..', 'dist', 'commands', 'main.js');

type Exit = { readonly code: number | null; readonly stdout: string; readonly stderr: string };

describe('the floe command', () => {
  let stack: TestStack;
  let env: NodeJS.ProcessEnv;
  beforeAll(async () => {
    stack = await startTestStack();
    env = { ...process.env, FLOE_HOME: join(stack.dir, 'home'), FLOE_URL: stack.serverUrl, FLOE_TOKEN: '' };
    env.FLOE_IMAGE_DIR = join(stack.dir, 'images');
  });
  afterAll(() => stack.close());

  async function floe(...args: string[]): Promise<Exit> {
    const child = spawn(process.execPath, [CLI, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
    const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
    return { code, stdout, stderr };
  }

  const lastJson = (ended: Exit): unknown => JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '');

  async function taskFile(task: object): Promise<string> {
    const path = join(stack.dir, 'task.json');
    await writeFile(path, JSON.stringify(task));
    return path;
  }

  it('lists the programs of evaluators, and refuses to install one that it does not know', async () => {
    const listed = lastJson(await floe('evaluator', 'list', '--json'));
    expect(listed).toMatchObject([{ name: 'math_verify', version: '0.9.0' }]);
    const refused = await floe('evaluator', 'install', 'sympy');
    expect(refused).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('no program sympy; there are: math_verify'),
    });
  });

  it('lists no images in a new store, and names what is wrong with the options of image commands', async () => {
    expect(lastJson(await floe('image', 'list', '--json'))).toEqual([]);
    const wrong = [
      ['image', 'pull', 'No Image'],
      ['image', 'build', '--base', 'python', '--cache', 'none'],
      ['image', 'build', '--base', 'python', '--add', 'relative'],
      ['image', 'build', '--base', 'python', '--add', '/absent:/there'],
      ['image', 'build', '--base', 'python', '--env', 'X'],
      ['image', 'remove', 'python'],
    ];
    const ended = await Promise.all(wrong.map((args) => floe(...args)));
    expect(ended.map(({ code, stderr }) => [code, stderr.split('\n')[0]])).toEqual([
      [2, expect.stringContaining('"No Image" is no image reference')],
      [2, expect.stringContaining('--cache: none is not one of scratch, versioned, lock')],
      [2, expect.stringContaining('--add: relative must be')],
      [2, expect.stringContaining('--add: there is no /absent')],
      [2, expect.stringContaining('--env: X must be name=value')],
      [2, expect.stringContaining('there is no image python in')],
    ]);
  });

  it('submits a task from a file and shows its results and its trace', async () => {
    const task = {
      instruction: 'hi',
      agent: { harness: 'shell', custom_shell: oneCall('hi') },
      evaluator: { strategy: 'session_completed' },
    };
    const submitted = await floe('submit', await taskFile(task), '--samples', '2', '--task-id', 'cli-test', '--watch');
    expect(submitted).toMatchObject({ code: 0 });
    expect(submitted.stdout).toContain('task cli-test: 2 sessions');
    expect(submitted.stdout).toMatch(/COMPLETED.*reward 1/);

    const results = (await floe('results', '--json')).stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(results.map((result) => result.outcome)).toEqual(['completed', 'completed']);

    const page = await floe('results', '--limit', '1', '--consumer', 'me', '--trainer', 'default');
    expect(page.stderr).toContain('continue with: floe results --consumer me --trainer default --after 1\n');

    const trace = await floe('trace', results[0].session_id);
    expect(trace.stdout).toMatch(/turn 0 +root +\d+ prompt/);
    expect(trace.stdout).toMatch(/sampled (\d+) = trained \1 \+ excluded 0/);

    expect(lastJson(await floe('status', '--json'))).toMatchObject({ sessions: { COMPLETED: 2 } });
    expect((await floe('watch', 'cli-test')).stdout).toContain('COMPLETED');
    expect((await floe('cancel', 'cli-test')).stdout).toContain('2 of 2 sessions ended');
  });

  it('exports the samples of a finished task in a format of a trainer', async () => {
    const agent = { harness: 'shell', custom_shell: oneCall('hi') };
    const [result] = await stack.run({ instruction: 'hi', agent, evaluator: { strategy: 'session_completed' } });
    const [trace] = result?.trajectory?.traces ?? [];
    const task = result?.task_id ?? '';
    const exported = await floe('export', task, task, '--format', 'slime');
    expect(exported).toMatchObject({
      code: 0,
      stderr: expect.stringContaining('Wrote 1 groups with 1 samples as slime; 0 samples cannot be trained on.'),
    });
    expect(lastJson(exported)).toMatchObject({
      tokens: [...(trace?.prompt_ids ?? [0]), ...(trace?.response_ids ?? [0])],
      loss_mask: trace?.loss_mask,
      reward: 1,
      session_id: result?.session_id,
    });

    const file = join(stack.dir, 'rows.arrow');
    expect(await floe('export', task, '--encoding', 'arrow', '-o', file)).toMatchObject({ code: 0, stdout: '' });
    expect(
      tableFromIPC(await readFile(file))
        .get(0)
        ?.toJSON(),
    ).toMatchObject({ session_id: result?.session_id });

    const formats = await floe('export');
    expect(formats.stdout).toMatch(/roll +trace +.*sequence_length, pad_token_id, tag/);
    const wrong: [string[], string, number?][] = [
      [[task, '--format', 'roll'], 'sequence_length'],
      [[task, '--format', 'roll', '--set', 'tag'], '--set "tag" does not have the form option=value'],
      [[task, '-o', '/nowhere/rows'], '/nowhere/rows cannot be written', 1],
      [['absent'], 'absent'],
    ];
    for (const [args, message, code = 2] of wrong) {
      expect(await floe('export', ...args)).toMatchObject({ code, stderr: expect.stringContaining(message) });
    }
  });

  it('writes the artifacts of a session to a file or standard output, and lists them', async () => {
    const leave = 'mkdir "$ARTIFACTS_DIR/out"; echo answer >"$ARTIFACTS_DIR/out/a.txt"; echo said >"$LOGS_DIR/log"';
    const agent = { harness: 'shell', custom_shell: `${oneCall('hi')}; ${leave}` };
    const [result] = await stack.run({ instruction: 'hi', agent });
    const id = result?.session_id ?? '';
    const file = join(stack.dir, 'left.tar.gz');
    expect(await floe('artifacts', id, '-o', file)).toMatchObject({ code: 0, stdout: '' });
    const written = await readFile(file);
    expect(written).toEqual(await stack.client.artifacts(id));
    expect(written).toHaveLength(result?.artifacts?.bytes ?? 0);
    expect((await floe('artifacts', id, '--list')).stdout.trim().split('\n').sort()).toEqual([
      'artifacts/out/',
      'artifacts/out/a.txt',
      'logs/log',
    ]);
    const entries = (await floe('artifacts', id, '--list', '--json')).stdout.trim().split('\n');
    expect(entries.map((line) => JSON.parse(line))).toContainEqual({
      ...{ name: 'artifacts/out/a.txt', kind: 'file', bytes: 7, target: null },
    });
    expect((await floe('artifacts', id, '-o', '-')).stdout).toBe(written.toString('utf8'));
    expect((await floe('artifacts', id, '-o', '/nowhere/a', '--json')).stdout).toContain('setup_failed');

    const [empty] = await stack.run({ instruction: 'hi', agent: { harness: 'shell', custom_shell: oneCall('hi') } });
    const refused = await floe('artifacts', empty?.session_id ?? '', '--json');
    expect(refused.code).toBe(2);
    expect(lastJson(refused)).toMatchObject({ error: { code: 'not_found' } });
  });

  it('exits with 2 and names the field when the input is refused', async () => {
    const file = await taskFile({ instruction: 'x', agent: { harness: 'shell', custom_shell: 'true' }, num_sample: 2 });
    const ended = await floe('submit', file, '--json');
    expect(ended.code).toBe(2);
    expect(lastJson(ended)).toMatchObject({
      error: { code: 'schema_violation', message: expect.stringContaining('num_sample') },
    });
  });

  it.each([
    ['an unknown task', ['watch', 'unknown'], 'not_found'],
    ['an unknown session', ['trace', 'ses_unknown'], 'not_found'],
    ['a server that does not run', ['status', '--url', 'http://127.0.0.1:9'], 'peer_unreachable'],
  ])('reports the error code for %s', async (_, args, code) => {
    const ended = await floe(...args);
    expect(ended.code).not.toBe(0);
    expect(ended.stderr).toContain(`error ${code}`);
  });

  it('replaces an engine only with --replace', async () => {
    const other = await startSim({ face: 'sglang' });
    const client = new FloeClient({ url: stack.serverUrl });
    try {
      await client.addEngine({ base_url: other.url, kind: 'sglang', engine_id: 'other' });
      const moved = ['engines', 'add', other.url, '--id', 'other', '--kind', 'sglang', '--pool', 'c'];
      expect((await floe(...moved)).stderr).toContain(
        'is already registered with other settings; replace or remove it',
      );
      expect(await floe(...moved, '--replace')).toMatchObject({ code: 0, stderr: '' });
      const { engines } = await client.engines();
      expect(engines.find(({ engine_id }) => engine_id === 'other')).toMatchObject({ pool: 'c' });
      await client.removeEngine('other');
    } finally {
      await client.close();
      await other.close();
    }
  });

  it('registers engines, sets the policy version and removes engines', async () => {
    const other = await startSim({ face: 'sglang' });
    try {
      const added = lastJson(await floe('engines', 'add', other.url, '--kind', 'sglang', '--pool', 'b', '--json'));
      expect(added).toMatchObject({ done: ['test'], pending: [], problems: [] });
      const list = await floe('engines');
      expect(list.stdout).toMatch(/sglang +b +test +ready +tokens/);
      expect(lastJson(await floe('engines', 'version', 'step-3', '--json'))).toMatchObject({ done: ['test'] });
      expect((await floe('engines')).stdout).toContain('policy version step-3');
      const [id] = (added as { engine_ids: string[] }).engine_ids;
      expect(await floe('engines', 'remove', String(id))).toMatchObject({ code: 0 });
      expect((await floe('engines')).stdout).not.toContain('sglang');
    } finally {
      await other.close();
    }
    const failed = await floe('engines', 'add', 'http://127.0.0.1:9');
    expect(failed.code).toBe(1);
    expect(failed.stderr).toContain('cannot be reached');
    await floe('engines', 'remove', '127.0.0.1-9');
  });

  it('reports what works on this machine', async () => {
    const { findings } = lastJson(await floe('doctor', '--json', '--engine', stack.sim.url)) as {
      findings: { part: string; ok: boolean }[];
    };
    const parts = new Map(findings.map((finding) => [finding.part, finding.ok]));
    expect(parts.get('engine')).toBe(true);
    expect(parts.get('runtime local')).toBe(true);
    expect([...parts.keys()]).toEqual(
      expect.arrayContaining(['node', 'floe home', 'runtime bubblewrap', 'git', 'harness pi']),
    );
  });

  it('lists the harnesses with their pinned versions', async () => {
    const rows = lastJson(await floe('harness', 'list', '--json')) as { harness: string; version: string | null }[];
    expect(rows.map((row) => row.harness)).toEqual([...harnessRegistry().keys()]);
    const unversioned = rows.filter((row) => !/^\d+\.\d+\.\d+$/.test(row.version ?? ''));
    expect(unversioned.map((row) => row.harness)).toEqual(['floe', 'openhands', 'shell']);
  });
});
