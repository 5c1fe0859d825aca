import { execFileSync } from 'node:child_process';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { describeIf } from '../skip.ts';
import { processesOf } from './processes.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const problem = await bubblewrapMissing();

describeIf(null, 'the artifacts of a local session', () => suite('local'));
describeIf(problem, 'the artifacts of a bubblewrap session', () => suite('bubblewrap'));

function suite(backend: 'local' | 'bubblewrap'): void {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({ node: { default_backend: backend } });
  });
  afterAll(() => stack.close());

  /** Runs a session whose agent makes one model call and then runs the shell script. Returns the session's result. */
  async function resultAfter(script: string, rest: Partial<TaskRequestInput> = {}): Promise<SessionResult> {
    const [result] = await stack.run({
      instruction: 'Write files.',
      agent: { harness: 'shell', custom_shell: `${oneCall('hi')}; ${script}` },
      max_attempts: 1,
      ...rest,
    });
    if (result === undefined) throw new Error('the session has no result');
    return result;
  }

  /** Returns the content of one file in a session's artifact archive. */
  async function content(result: SessionResult, name: string): Promise<string> {
    const input = await stack.client.artifacts(result.session_id);
    return execFileSync('tar', ['-xzOf', '-', name], { input, encoding: 'utf8' });
  }

  it('can be read after the sandbox was removed', async () => {
    const script = 'echo made >"$FLOE_ARTIFACTS_DIR/a.txt"; echo logged >"$AGENT_LOG_DIR/log"; echo own >report.txt';
    const result = await resultAfter(script, { artifacts: { paths: ['report.txt'] } });
    expect(result).toMatchObject({ outcome: 'completed', artifacts: { omitted: null } });
    expect(await content(result, 'artifacts/a.txt')).toBe('made\n');
    expect(await content(result, 'logs/log')).toBe('logged\n');
    expect(await content(result, 'paths/work/report.txt')).toBe('own\n');
  });

  it('are kept when the agent times out and when it fails', async () => {
    const marker = `floe-artifacts-${backend}`;
    const slow = await resultAfter(`echo so far >"$ARTIFACTS_DIR/a"; FLOE_MARK=${marker} sleep 600`, {
      budgets: { agent: 5 },
    });
    expect(slow).toMatchObject({ outcome: 'agent_timeout' });
    expect(await content(slow, 'artifacts/a')).toBe('so far\n');
    expect(processesOf(marker)).toEqual([]);
    const failed = await resultAfter('echo why >"$LOGS_DIR/why"; exit 3');
    expect(failed).toMatchObject({ outcome: 'agent_error' });
    expect(await content(failed, 'logs/why')).toBe('why\n');
  });

  it('include files that the evaluation wrote to the same sandbox', async () => {
    const config = { test_command: 'echo graded >grade.txt', expected_output_json: { a: 'PASSED' } };
    const artifacts = { paths: ['grade.txt'] };
    const result = await resultAfter('true', {
      evaluator: { strategy: 'test_on_output', refresh_runtime: false, config },
      artifacts,
    });
    expect(result).toMatchObject({ outcome: 'completed', reward: 0 });
    expect(await content(result, 'paths/work/grade.txt')).toBe('graded\n');
  });

  it('are omitted beyond the size that the task allows, without changing the outcome', async () => {
    const script = 'head -c 2000000 /dev/urandom >"$ARTIFACTS_DIR/noise"';
    const result = await resultAfter(script, {
      artifacts: { max_mb: 1 },
      evaluator: { strategy: 'session_completed' },
    });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1, trace_count: 1 });
    expect(result.artifacts).toEqual({ bytes: 0, omitted: expect.stringContaining('artifacts.max_mb') });
    await expect(stack.client.artifacts(result.session_id)).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('artifacts.max_mb'),
    });
  });

  it('are null when the agent left no files or the task disables them', async () => {
    expect((await resultAfter('true')).artifacts).toBeNull();
    const disabled = await resultAfter('echo a >"$ARTIFACTS_DIR/a"', { artifacts: { collect: false } });
    expect(disabled.artifacts).toBeNull();
    await expect(stack.client.artifacts(disabled.session_id)).rejects.toMatchObject({ code: 'not_found' });
  });
}
