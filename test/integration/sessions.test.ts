import type { RolloutEvent, SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { processesOf } from './processes.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const shell = (custom_shell: string, rest: Partial<TaskRequestInput> = {}): TaskRequestInput => ({
  instruction: 'Say something.',
  agent: { harness: 'shell', custom_shell },
  evaluator: { strategy: 'session_completed' },
  max_attempts: 1,
  ...rest,
});

const only = (results: SessionResult[]): SessionResult => {
  expect(results).toHaveLength(1);
  return results[0] as SessionResult;
};

/** Returns the next event of the server's event stream for which `accept` returns `true`. */
async function nextEvent(stack: TestStack, accept: (event: RolloutEvent) => boolean): Promise<RolloutEvent> {
  for await (const event of stack.client.events()) if (accept(event)) return event;
  throw new Error('the event stream ended');
}

describe('a session with the shell harness', () => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack();
  });
  afterAll(() => stack.close());

  it('turns one model call into one trace that equals the ledger', async () => {
    const result = only(await stack.run(shell(oneCall('hello'))));
    expect(result).toMatchObject({ status: 'COMPLETED', outcome: 'completed', reward: 1, trace_count: 1, error: null });
    expect(result.agent?.stdout_tail).not.toBe('');
    const report = checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed');
    expect(report.mismatches).toEqual([]);
    expect(report.trainable_tokens).toBeGreaterThan(3);
    expect(report.trainable_tokens).toBe(result.trainable_tokens);
  });

  it('counts its tokens, links and stages in the metrics of its node', async () => {
    const [result] = await stack.run(shell(oneCall('hello')));
    await expect
      .poll(async () => (await fetch(`${stack.node.controlUrl}/metrics`)).text(), { timeout: 90_000, interval: 20 })
      .toMatch(/floe_sessions_total\{outcome="completed"\} 2/);
    const text = await (await fetch(`${stack.node.controlUrl}/metrics`)).text();
    const trained = 2 * (result?.trainable_tokens ?? 0);
    const place = 'harness="shell",dialect="openai_chat",engine="[^"]+"';
    expect(text).toMatch(new RegExp(`floe_tokens_total\\{${place},kind="trained"\\} ${trained}\n`));
    expect(text).toMatch(new RegExp(`floe_tokens_total\\{${place},kind="exact"\\} ${trained}\n`));
    expect(text).toMatch(new RegExp(`floe_completion_links_total\\{${place},link="root"\\} 2\n`));
    expect(text).toContain('floe_stage_seconds_count{stage="running"} 2');
  });

  it('is sampled at a temperature of 0 when the task sets it', async () => {
    const result = only(await stack.run(shell(oneCall('hello'), { sampling: { temperature: 0 } })));
    expect(result).toMatchObject({ outcome: 'completed', trace_count: 1 });
    expect(stack.sim.ledger.entries({ sessionId: result.session_id })).toMatchObject([{ params: { temperature: 0 } }]);
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed').mismatches).toEqual([]);
  });

  it('reports the harness and its exit code when the harness never called the model', async () => {
    const result = only(await stack.run(shell('echo nothing to say')));
    expect(result).toMatchObject({ status: 'ERROR', outcome: 'no_completions', reward: null, trace_count: 0 });
    expect(result.error).toMatchObject({ code: 'harness_silent', details: { harness: 'shell', proxy_requests: 0 } });
    expect(result.error?.message).toMatch(/shell ended \(exit code 0\).*floe doctor --harness shell --custom-shell/);
  });

  it('ends an agent that has used all of its turns, and evaluates it', async () => {
    const marker = 'floe-test-turns-marker';
    const task = shell(`${oneCall('one')}; ${oneCall('two')}; ${oneCall('three')}; FLOE_MARK=${marker} sleep 600`);
    const result = only(await stack.run({ ...task, agent: { ...task.agent, max_turns: 2 } }));
    expect(result).toMatchObject({ status: 'COMPLETED', outcome: 'truncated_turns', reward: 1, completion_count: 2 });
    expect(result.error).toMatchObject({ code: 'turn_limit', details: { turns: 2 } });
    expect(result.trainable_tokens).toBeGreaterThan(0);
    expect(processesOf(marker)).toEqual([]);
  });

  it('refuses model names other than the policy unless the task allows them', async () => {
    const task = shell(oneCall('hello').replace('policy', 'gpt-5'));
    const refused = only(await stack.run(task));
    expect(refused).toMatchObject({ outcome: 'no_completions', completion_count: 0 });
    expect(refused.error?.message).toContain('gpt-5');
    const allowed = only(await stack.run({ ...task, agent: { ...task.agent, model_aliases: ['gpt-5'] } }));
    expect(allowed).toMatchObject({ outcome: 'completed', completion_count: 1 });
  });

  it('keeps the traces of an agent that failed', async () => {
    const result = only(await stack.run(shell(`${oneCall('hello')}; exit 3`)));
    expect(result).toMatchObject({ status: 'ERROR', outcome: 'agent_error', trace_count: 1 });
    expect(result.agent?.exit_code).toBe(3);
  });

  it('keeps what was sampled before a timeout and leaves no process', async () => {
    const marker = 'floe-test-timeout-marker';
    const task = shell(`${oneCall('hello')}; FLOE_MARK=${marker} sleep 600`, { budgets: { agent: 4 } });
    const result = only(await stack.run(task));
    expect(result).toMatchObject({ status: 'TIMEOUT', outcome: 'agent_timeout', trace_count: 1 });
    expect(result.trainable_tokens).toBeGreaterThan(0);
    expect(result.error?.details).toMatchObject({ stage: 'agent', budget: 'stage' });
    expect(processesOf(marker)).toEqual([]);
  });

  it('leaves no process of a cancelled session and reports it as cancelled', async () => {
    const marker = 'floe-test-cancel-marker';
    const running = nextEvent(stack, (event) => event.type === 'session.state_changed' && event.status === 'RUNNING');
    const { task_id, session_ids } = await stack.client.submit(shell(`FLOE_MARK=${marker} sleep 600`));
    await running;
    await stack.client.cancel(task_id);
    const view = await stack.client.session(session_ids[0] as string);
    expect(view).toMatchObject({ status: 'CANCELLED', summary: { outcome: 'cancelled', reward: null } });
    await expect.poll(() => processesOf(marker), { timeout: 90_000, interval: 20 }).toEqual([]);
  });

  it('reports the index of a failed prepare action', async () => {
    const prepare = [
      { type: 'write_file' as const, target: 'a.txt', content: 'a' },
      { type: 'exec' as const, command: 'cat a.txt; echo oh no >&2; exit 7' },
    ];
    const result = only(await stack.run(shell('true', { runtime: { prepare } })));
    expect(result).toMatchObject({
      status: 'ERROR',
      outcome: 'env_error',
      error: { code: 'prepare_failed', stage: 'init' },
    });
    expect(result.error?.message).toContain('oh no');
    expect(result.error?.details).toMatchObject({ index: 1 });
  });

  it('refuses to upload from outside the upload roots', async () => {
    const prepare = [{ type: 'upload_dir' as const, source: '/etc', target: '.' }];
    const result = only(await stack.run(shell('true', { runtime: { prepare } })));
    expect(result.error?.code).toBe('source_forbidden');
  });

  it.each([
    ['a relative workdir', { runtime: { workdir: 'work' } }, 'runtime.workdir'],
    ['a workdir with a parent directory', { runtime: { workdir: '/work/../etc' } }, 'runtime.workdir'],
    ['an invalid variable name', { runtime: { env: { 'A=B': 'x' } } }, 'runtime.env.A=B'],
    ['a variable that is too long', { runtime: { env: { A: 'x'.repeat(131_072) } } }, 'runtime.env.A'],
    ['a model name with a NUL', { agent: { harness: 'pi', model_name: 'a\0b' } }, 'agent.model_name'],
    ['a misspelt setting', { agent: { harness: 'pi', settings: { dialekt: 'x' } } }, 'agent.settings'],
    ['a command for pi', { agent: { harness: 'pi', custom_shell: 'x' } }, 'agent.custom_shell'],
  ])('reports the path of %s', async (_, part, path) => {
    const refused = await stack.client
      .submit({ ...shell('true'), ...part } as TaskRequestInput)
      .catch((error) => error);
    expect(refused.code).toBe(path === 'agent.custom_shell' ? 'unsupported' : 'schema_violation');
    expect(refused.details.issues.map((issue: { path: string }) => issue.path)).toContain(path);
  });

  it.each([
    ['an unknown harness', { ...shell('true'), agent: { harness: 'unknown' } }, 'unknown_harness'],
    ['a shell harness without a command', { ...shell('true'), agent: { harness: 'shell' } }, 'schema_violation'],
    ['an unknown builder', shell('true', { builder: { strategy: 'nothing' } }), 'unknown_builder'],
    ['an unknown evaluator', shell('true', { evaluator: { strategy: 'nothing' } }), 'unknown_evaluator'],
    [
      'a bad evaluator config',
      shell('true', { evaluator: { strategy: 'test_on_output', config: { test_comand: 'x' } } }),
      'schema_violation',
    ],
  ])('refuses %s at submission', async (_, task, code) => {
    await expect(stack.client.submit(task as TaskRequestInput)).rejects.toMatchObject({ code });
    expect((await stack.client.tasks()).every((row) => row.total_sessions > 0)).toBe(true);
  });
});

describe('an engine that does not report versions in replies', () => {
  it('never has a token labelled with weights that did not sample that token', async () => {
    const stack = await startTestStack({ sim: { reportVersions: 'none', weightVersion: 'before' } });
    try {
      const first = only(await stack.run(shell(oneCall('hello'))));
      stack.sim.updateWeights('after');
      const second = only(await stack.run(shell(oneCall('hello'))));
      const report = checkAgainstLedger([first, second], stack.sim.ledger.entries(), 'processed');
      const versions = [first, second].map((result) => result.trajectory?.traces[0]?.version_spans[0]?.version);
      expect(versions[0]).toBe('before');
      // Directly after a weight update, the policy version of a token may be unknown. Everything else about the tokens must agree with the
      // engine's ledger.
      expect(['after', null]).toContain(versions[1]);
      expect(report.mismatches.filter((mismatch) => versions[1] !== null || mismatch.what !== 'version')).toEqual([]);
    } finally {
      await stack.close();
    }
  });
});

describe('an engine that fails', () => {
  it('causes a new attempt, and then engine_error with a null reward', async () => {
    const stack = await startTestStack({ sim: { faults: [{ kind: 'logprob_nan' }] } });
    try {
      const call = `${oneCall('hello')} || exit 1`;
      const result = only(await stack.run(shell(call, { max_attempts: 2 })));
      expect(result).toMatchObject({ status: 'ERROR', outcome: 'engine_error', reward: null, attempt: 2 });
      expect(result.error?.code).toBe('engine_error');
    } finally {
      await stack.close();
    }
  });
});
