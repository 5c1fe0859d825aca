import { describe, expect, test } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const mini = findHarness('mini_swe_agent');

const configOf = (...args: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never) =>
  JSON.parse(fileOf(launchOf(mini, ...args), 'floe.yaml'));

describe('a launch of mini-SWE-agent', () => {
  test('has the instruction in its configuration, and neither it nor the key on the command line', () => {
    const { command, files } = launchOf(mini);
    for (const hidden of [KEY, '--now']) expect(JSON.stringify(command)).not.toContain(hidden);
    expect(configOf().run).toEqual({ task: INSTRUCTION });
    expect(files.map(({ mode }) => mode)).toEqual([0o600]);
  });

  test('has no key in what it writes into its trajectory, which is collected', () => {
    expect(fileOf(launchOf(mini), 'floe.yaml')).not.toContain(KEY);
  });

  test.each([
    ['openai_chat', 'openai/policy', 'litellm', 'max_tokens'],
    ['anthropic', 'anthropic/policy', 'litellm', 'max_tokens'],
    ['gemini', 'gemini/policy', 'litellm', 'max_tokens'],
    ['openai_responses', 'openai/policy', 'litellm_response', 'max_output_tokens'],
  ])('speaks %s through LiteLLM', (dialect, model_name, model_class, bound) => {
    const { model } = configOf({ dialect, settings: { max_tokens: 77 } });
    expect(model).toMatchObject({ model_name, model_class, model_kwargs: { [bound]: 77 } });
  });

  test('starts where there is no configuration but its own, and works in the work tree', () => {
    const { command, files } = launchOf(mini);
    const ownDir = '/home/agent/.floe/mini_swe_agent';
    expect(command).toContain(ownDir);
    expect(files.map(({ path }) => path)).toEqual([`${ownDir}/floe.yaml`]);
    expect(configOf().environment.cwd).toBe('/work');
  });

  test('asks nobody, and ends when it is done', () => {
    expect(launchOf(mini).env).toMatchObject({ MSWEA_CONFIGURED: 'true', LITELLM_LOCAL_MODEL_COST_MAP: 'True' });
    expect(launchOf(mini).command).toEqual(expect.arrayContaining(['--yolo', '--exit-immediately']));
    expect(configOf()).toMatchObject({ agent: { cost_limit: 0 }, model: { cost_tracking: 'ignore_errors' } });
  });

  test('leaves limits to the program that the task does not set', () => {
    expect(Object.keys(configOf().agent)).toEqual(['cost_limit']);
    expect(configOf().environment).not.toHaveProperty('timeout');
    const settings = { step_limit: 9, command_timeout_seconds: 120, format_error_limit: 0 };
    expect(configOf({ settings })).toMatchObject({
      agent: { step_limit: 9, max_consecutive_format_errors: 0 },
      environment: { timeout: 120 },
    });
    expect(configOf({}, { contextWindow: null }).model.model_kwargs.max_tokens).toBe(32_768);
  });

  test("is run by the installation's Python, on which the task's variables have no effect", () => {
    const line = (launchOf(mini).command as string[]).join(' ');
    expect(line).toContain('/opt/harness/venv/bin/python -E -u /opt/harness/venv/bin/mini --config mini.yaml');
  });

  test("may be the image's own, which needs no installation", () => {
    const input = { settings: { program: '/opt/venv/bin/mini' } };
    expect(mini.inImage(agentOf(mini, input))).toBe(true);
    expect(mini.inImage(agentOf(mini))).toBe(false);
    const { command } = launchOf(mini, input, { installDir: null });
    expect((command as string[]).join(' ')).toContain('/opt/venv/bin/mini --config mini.yaml');
    expect(() => launchOf(mini, {}, { installDir: null })).toThrow(
      expect.objectContaining({ code: 'harness_missing' }),
    );
  });

  test('refuses what it has no place for', () => {
    for (const settings of [{ program: 'mini' }, { step_limit: 0 }, { surprise: 1 }]) {
      const check = () => mini.checkAgent(agentOf(mini, { settings }));
      expect(check).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    }
    expect(() => mini.checkAgent(agentOf(mini, { system_prompt: 'moin' }))).toThrow(
      expect.objectContaining({ code: 'unsupported' }),
    );
  });
});

/** As 2.4.6 ends its output. */
const SUBMITTED = "\nExit:\n\nSaved trajectory to '/logs/mini_swe_agent/trajectory.json'\n";
const TRACE =
  '  File "/opt/litellm/main.py", line 5297, in completion\nlitellm.BadRequestError: OpenAIException - the session used its 1 turns\n';

describe('the judgement of a run of mini-SWE-agent', () => {
  test('is good when its loop came to an end', () => {
    expect(judgeOf(mini, SUBMITTED)).toEqual({ ok: true });
    expect(judgeOf(mini, SUBMITTED.replace('Exit:\n', 'Exit:\nRepeatedFormatError'))).toEqual({ ok: true });
  });

  test('names the error that it did not go on from', () => {
    expect(judgeOf(mini, '\nExit:\nthe session used', { exitCode: 1, stderr: TRACE })).toEqual({
      ok: false,
      message: `mini exited with 1: ${TRACE.trim()}`,
    });
  });

  test('is bad without a trajectory', () => {
    expect(judgeOf(mini, '')).toEqual({ ok: false, message: 'mini ended without a trajectory' });
    expect(judgeOf(mini, SUBMITTED, { exitCode: null })).toEqual({ ok: false, message: 'mini was ended by a signal' });
  });
});
