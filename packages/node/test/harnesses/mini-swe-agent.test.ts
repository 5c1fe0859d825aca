import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const mini = findHarness('mini_swe_agent');

const configOf = (...args: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never) =>
  JSON.parse(fileOf(launchOf(mini, ...args), 'floe.yaml'));

describe('launching mini-SWE-agent', () => {
  it('passes the instruction in the configuration, and neither it nor the key on the command line', () => {
    const { command, files } = launchOf(mini);
    for (const hidden of [KEY, '--now']) expect(JSON.stringify(command)).not.toContain(hidden);
    expect(configOf().run).toEqual({ task: INSTRUCTION });
    expect(files.map(({ mode }) => mode)).toEqual([0o600]);
  });

  it('keeps the key out of the configuration, which mini copies into the collected trajectory', () => {
    expect(fileOf(launchOf(mini), 'floe.yaml')).not.toContain(KEY);
  });

  it.each([
    ['openai_chat', 'openai/policy', 'litellm', 'max_tokens'],
    ['anthropic', 'anthropic/policy', 'litellm', 'max_tokens'],
    ['gemini', 'gemini/policy', 'litellm', 'max_tokens'],
    ['openai_responses', 'openai/policy', 'litellm_response', 'max_output_tokens'],
  ])('configures LiteLLM for %s', (dialect, model_name, model_class, bound) => {
    const { model } = configOf({ dialect, settings: { max_tokens: 77 } });
    expect(model).toMatchObject({ model_name, model_class, model_kwargs: { [bound]: 77 } });
  });

  it('starts in a directory without other configuration and works in the work tree', () => {
    const { command, files } = launchOf(mini);
    const ownDir = '/home/agent/.floe/mini_swe_agent';
    expect(command).toContain(ownDir);
    expect(files.map(({ path }) => path)).toEqual([`${ownDir}/floe.yaml`]);
    expect(configOf().environment.cwd).toBe('/work');
  });

  it('configures mini to run without confirmation and to exit when the agent is done', () => {
    expect(launchOf(mini).env).toMatchObject({ MSWEA_CONFIGURED: 'true', LITELLM_LOCAL_MODEL_COST_MAP: 'True' });
    expect(launchOf(mini).command).toEqual(expect.arrayContaining(['--yolo', '--exit-immediately']));
    expect(configOf()).toMatchObject({ agent: { cost_limit: 0 }, model: { cost_tracking: 'ignore_errors' } });
  });

  it("keeps mini's limits unless the task sets them", () => {
    expect(Object.keys(configOf().agent)).toEqual(['cost_limit']);
    expect(configOf().environment).not.toHaveProperty('timeout');
    const settings = { step_limit: 9, command_timeout_seconds: 120, format_error_limit: 0 };
    expect(configOf({ settings })).toMatchObject({
      agent: { step_limit: 9, max_consecutive_format_errors: 0 },
      environment: { timeout: 120 },
    });
    expect(configOf({}, { contextWindow: null }).model.model_kwargs.max_tokens).toBe(32_768);
  });

  it("uses the installation's Python, isolated from the Python variables of the task", () => {
    const line = (launchOf(mini).command as string[]).join(' ');
    expect(line).toContain('/opt/harness/venv/bin/python -E -u /opt/harness/venv/bin/mini --config mini.yaml');
  });

  it("can run the image's program, which needs no installation", () => {
    const input = { settings: { program: '/opt/venv/bin/mini' } };
    expect(mini.inImage(agentOf(mini, input))).toBe(true);
    expect(mini.inImage(agentOf(mini))).toBe(false);
    const { command } = launchOf(mini, input, { installDir: null });
    expect((command as string[]).join(' ')).toContain('/opt/venv/bin/mini --config mini.yaml');
    expect(() => launchOf(mini, {}, { installDir: null })).toThrow(
      expect.objectContaining({ code: 'harness_missing' }),
    );
  });

  it('refuses features and settings that it does not support', () => {
    for (const settings of [{ program: 'mini' }, { step_limit: 0 }, { surprise: 1 }]) {
      const check = () => mini.checkAgent(agentOf(mini, { settings }));
      expect(check).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    }
    expect(() => mini.checkAgent(agentOf(mini, { system_prompt: 'moin' }))).toThrow(
      expect.objectContaining({ code: 'unsupported' }),
    );
  });
});

/** Sample of the end of the output that mini-SWE-agent 2.4.6 prints after a submission. */
const SUBMITTED = "\nExit:\n\nSaved trajectory to '/logs/mini_swe_agent/trajectory.json'\n";
const TRACE =
  '  File "/opt/litellm/main.py", line 5297, in completion\nlitellm.BadRequestError: OpenAIException - the session used its 1 turns\n';

describe('judging a run of mini-SWE-agent', () => {
  it('accepts a run whose loop ended', () => {
    expect(judgeOf(mini, SUBMITTED)).toEqual({ ok: true });
    expect(judgeOf(mini, SUBMITTED.replace('Exit:\n', 'Exit:\nRepeatedFormatError'))).toEqual({ ok: true });
  });

  it('reports the error that ended the run', () => {
    expect(judgeOf(mini, '\nExit:\nthe session used', { exitCode: 1, stderr: TRACE })).toEqual({
      ok: false,
      message: `mini exited with 1: ${TRACE.trim()}`,
    });
  });

  it('fails a run without a trajectory', () => {
    expect(judgeOf(mini, '')).toEqual({ ok: false, message: 'mini ended without a trajectory' });
    expect(judgeOf(mini, SUBMITTED, { exitCode: null })).toEqual({ ok: false, message: 'mini was ended by a signal' });
  });
});
