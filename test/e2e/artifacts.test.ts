import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { SessionResult, TaskRequestInput } from '../../src/schema/index.ts';
import { bubblewrapMissing } from '../runtimes/workbench.ts';
import { describeIf } from '../skip.ts';
import { processesOf } from './processes.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const problem = await bubblewrapMissing();

describeIf(null, 'what an agent of a local session leaves behind', () => suite('local'));
describeIf(problem, 'what an agent of a bubblewrap session leaves behind', () => suite('bubblewrap'));

function suite(backend: 'local' | 'bubblewrap'): void {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({ node: { default_backend: backend } });
  });
  afterAll(() => stack.close());

  async function left(script: string, rest: Partial<TaskRequestInput> = {}): Promise<SessionResult> {
    const [result] = await stack.run({
      instruction: 'Leave something.',
      agent: { harness: 'shell', custom_shell: `${oneCall('hi')}; ${script}` },
      max_attempts: 1,
      ...rest,
    });
    if (result === undefined) throw new Error('there is a result');
    return result;
  }

  /** The content of one file of a session's archive. */
  async function content(result: SessionResult, name: string): Promise<string> {
    const input = await stack.client.artifacts(result.session_id);
    return execFileSync('tar', ['-xzOf', '-', name], { input, encoding: 'utf8' });
  }

  it('is there after the sandbox is gone', async () => {
    const script = 'echo made >"$FLOE_ARTIFACTS_DIR/a.txt"; echo logged >"$AGENT_LOG_DIR/log"; echo own >report.txt';
    const result = await left(script, { artifacts: { paths: ['report.txt'] } });
    expect(result).toMatchObject({ outcome: 'completed', artifacts: { omitted: null } });
    expect(await content(result, 'artifacts/a.txt')).toBe('made\n');
    expect(await content(result, 'logs/log')).toBe('logged\n');
    expect(await content(result, 'paths/work/report.txt')).toBe('own\n');
  });

  it('is kept when it runs out of time, and when it fails', async () => {
    const marker = `floe-artifacts-${backend}`;
    const slow = await left(`echo so far >"$ARTIFACTS_DIR/a"; FLOE_MARK=${marker} sleep 600`, {
      budgets: { agent: 5 },
    });
    expect(slow).toMatchObject({ outcome: 'agent_timeout' });
    expect(await content(slow, 'artifacts/a')).toBe('so far\n');
    expect(processesOf(marker)).toEqual([]);
    const failed = await left('echo why >"$LOGS_DIR/why"; exit 3');
    expect(failed).toMatchObject({ outcome: 'agent_error' });
    expect(await content(failed, 'logs/why')).toBe('why\n');
  });

  it('has in it what grading wrote to the same sandbox', async () => {
    const config = { test_command: 'echo graded >grade.txt', expected_output_json: { a: 'PASSED' } };
    const artifacts = { paths: ['grade.txt'] };
    const result = await left('true', { evaluator: { strategy: 'test_on_output', config }, artifacts });
    expect(result).toMatchObject({ outcome: 'completed', reward: 0 });
    expect(await content(result, 'paths/work/grade.txt')).toBe('graded\n');
  });

  it('is not kept beyond the size that its task allows, and the session is none the worse', async () => {
    const script = 'head -c 2000000 /dev/urandom >"$ARTIFACTS_DIR/noise"';
    const result = await left(script, { artifacts: { max_mb: 1 }, evaluator: { strategy: 'session_completed' } });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1, trace_count: 1 });
    expect(result.artifacts).toEqual({ bytes: 0, omitted: expect.stringContaining('artifacts.max_mb') });
    await expect(stack.client.artifacts(result.session_id)).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('artifacts.max_mb'),
    });
  });

  it('is nothing when it leaves nothing, or the task wants nothing', async () => {
    expect((await left('true')).artifacts).toBeNull();
    const unwanted = await left('echo a >"$ARTIFACTS_DIR/a"', { artifacts: { collect: false } });
    expect(unwanted.artifacts).toBeNull();
    await expect(stack.client.artifacts(unwanted.session_id)).rejects.toMatchObject({ code: 'not_found' });
  });
}
