import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const qwen = findHarness('qwen_code');

const BASE = `http://127.0.0.1:1/s/${KEY}`;
const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how', 'deep/a.txt': 'b' } };

type Rest = Parameters<typeof launchOf> extends [unknown, ...infer More] ? More : never;
const settingsOf = (...rest: Rest) => JSON.parse(fileOf(launchOf(qwen, ...rest), 'qwen-code-settings.json'));

describe('launching Qwen Code', () => {
  it('passes secrets and the instruction only in files, variables and stdin', () => {
    for (const dialect of qwen.dialects) {
      const { command, env, files, stdin } = launchOf(qwen, { dialect, mcp_servers: [stdio, http] });
      const line = JSON.stringify(command);
      for (const hidden of [KEY, '--now', 'hush']) expect(line).not.toContain(hidden);
      expect(stdin).toBe(INSTRUCTION);
      const file = files.find(({ path }) => path === env.QWEN_CODE_SYSTEM_SETTINGS_PATH);
      expect(file?.mode).toBe(0o600);
    }
  });

  it('sends an instruction that starts with a slash to the model, not to the command parser', () => {
    expect(launchOf(qwen, {}, { instruction: '/goal the text' }).stdin).toBe('\n/goal the text');
  });

  it.each([
    ['openai_chat', 'openai', `${BASE}/v1`, 'OPENAI_API_KEY', undefined],
    ['openai_responses', 'openai', `${BASE}/v1`, 'OPENAI_API_KEY', 'responses'],
    ['anthropic', 'anthropic', BASE, 'ANTHROPIC_API_KEY', undefined],
    ['gemini', 'gemini', BASE, 'GEMINI_API_KEY', undefined],
  ])('configures the API for %s', (dialect, authType, baseUrl, envKey, wireApi) => {
    const input = { dialect, model_name: 'qwen/q:7b' };
    const { command, env } = launchOf(qwen, input);
    expect((command as string[]).join(' ')).toContain(`--auth-type ${authType} --model=qwen/q:7b --yolo`);
    expect(env[envKey]).toBe(KEY);
    const { model, modelProviders, security } = settingsOf(input);
    expect(model.name).toBe('qwen/q:7b');
    expect(security.auth.selectedType).toBe(authType);
    expect(Object.keys(modelProviders)).toEqual([authType]);
    const [only, ...others] = modelProviders[authType];
    expect(others).toEqual([]);
    expect(only).toMatchObject({ id: 'qwen/q:7b', baseUrl, envKey });
    expect(only.wireApi).toBe(wireApi);
    // With the Responses API, encrypted reasoning content must be requested. Otherwise Qwen Code sends earlier thinking back to the model
    // as the text of an assistant message.
    const include = wireApi === 'responses' ? ['reasoning.encrypted_content'] : undefined;
    expect(only.generationConfig.extra_body?.include).toEqual(include);
  });

  it("configures the policy's context window and whether it accepts images", () => {
    const configOf = (...rest: Rest) => settingsOf(...rest).modelProviders.openai[0].generationConfig;
    expect(configOf()).toMatchObject({
      contextWindowSize: 32_768,
      samplingParams: { max_tokens: 8_192 },
      modalities: { image: false },
    });
    expect(launchOf(qwen).env.QWEN_CODE_MAX_OUTPUT_TOKENS).toBe('8192');
    const settings = { max_tokens: 77, vision: true };
    expect(configOf({ settings }, { contextWindow: null })).toMatchObject({
      contextWindowSize: 131_072,
      samplingParams: { max_tokens: 77 },
      modalities: { image: true },
    });
    expect(launchOf(qwen, { settings }).env.QWEN_CODE_MAX_OUTPUT_TOKENS).toBe('77');
  });

  it('configures MCP servers, skills and an addition to the prompt', () => {
    const launch = launchOf(qwen, { mcp_servers: [stdio, http], skills: [skill], system_prompt: '--moin' });
    expect(settingsOf({ mcp_servers: [stdio, http] }).mcpServers).toEqual({
      words: { command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' }, trust: true },
      web: { httpUrl: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' }, trust: true },
    });
    expect(fileOf(launch, '/home/agent/.qwen/skills/lamps/SKILL.md')).toBe('how');
    expect(fileOf(launch, '/home/agent/.qwen/skills/lamps/deep/a.txt')).toBe('b');
    // The option and the system prompt form one argument, so that a prompt that starts with a dash is not parsed as an option.
    expect((launch.command as string[]).at(-1)).toBe('--append-system-prompt=--moin');
    for (const { path } of launch.files) expect(path).not.toMatch(/^\/work/);
  });

  it('refuses an addition to the prompt that exceeds the argument limit', () => {
    const check = (prompt: string) => () => qwen.checkAgent(agentOf(qwen, { system_prompt: prompt }));
    const room = 128 * 1024 - 1 - '--append-system-prompt='.length;
    expect(check('x'.repeat(room))).not.toThrow();
    expect(check('x'.repeat(room + 1))).toThrow(expect.objectContaining({ code: 'unsupported' }));
    expect(check('é'.repeat(room / 2 + 1))).toThrow(/agent.system_prompt/);
    expect(check('a\0b')).toThrow(expect.objectContaining({ code: 'schema_violation' }));
  });

  it('accepts a model name that starts like an option or contains a variable', () => {
    const { command, env } = launchOf(qwen, { model_name: '-x$HOME' });
    expect(command).toContain('--model=-x$HOME');
    expect(settingsOf({ model_name: '-x$HOME' }).model.name).toBe(`-x\${FLOE_DOLLAR}HOME`);
    expect(env.FLOE_DOLLAR).toBe('$');
  });

  it('disables model calls that are not part of the task', () => {
    expect(settingsOf()).toMatchObject({
      memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
      general: { enableAutoUpdate: false },
      privacy: { usageStatisticsEnabled: false },
      telemetry: { enabled: false },
    });
  });

  it('refuses unknown settings', () => {
    const check = (settings: object) => () => qwen.checkAgent(agentOf(qwen, { settings }));
    expect(check({ surprise: 1 })).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(check({ max_tokens: 0 })).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(check({ vision: true })).not.toThrow();
  });
});

describe('judging a run of Qwen Code', () => {
  // Samples of output lines in the form that Qwen Code 0.24.4 prints, shortened.
  const turn =
    '{"type":"assistant","message":{"content":[{"type":"text","text":"{\\"type\\":\\"result\\",\\"is_error\\":true}"}]}}\n';
  const success = '{"type":"result","subtype":"success","is_error":false,"num_turns":2,"result":"Done."}\n';
  const error = (message: string): string =>
    `${JSON.stringify({ type: 'result', subtype: 'error_during_execution', is_error: true, error: { message } })}\n`;
  const judge = (stdout: string, more = {}) => judgeOf(qwen, stdout, more);

  it('decides by the result line', () => {
    expect(judge(turn + success)).toEqual({ ok: true });
    expect(judge(turn + error('[API Error: 400 {"type":"error"}]'), { exitCode: 1 })).toEqual({
      ok: false,
      message: 'the result is an error (error_during_execution): [API Error: 400 {"type":"error"}]',
    });
    expect(judge(success, { exitCode: 1, stderr: 'x' })).toEqual({ ok: false, message: 'qwen exited with 1: x' });
    expect(judge(turn)).toEqual({ ok: false, message: 'qwen ended without a result' });
    expect(judge('', { exitCode: 52, stderr: 'bad settings' })).toMatchObject({ message: expect.stringMatching('52') });
  });

  it('accepts errors that the policy caused', () => {
    const loop = 'Loop detection halted the run (consecutive_identical_tool_calls: the model repeated the same call).';
    const broken = '[API Error: Anthropic stream contained malformed tool call arguments: completed argument buffer]';
    for (const message of [loop, broken]) expect(judge(error(message), { exitCode: 1 })).toEqual({ ok: true });
  });

  it('names the MCP servers that did not start', () => {
    const stderr =
      'Ripgrep not available.\nWarning: MCP server(s) failed to start: gone, a.b. Continuing with built-in tools and any\n';
    expect(judge(success, { stderr })).toEqual({ ok: false, message: 'MCP servers did not start: gone, a.b' });
  });

  it('reads a long output in less than a second', () => {
    expect(judge(success + '"type":"result"\n'.repeat(20_000))).toMatchObject({ ok: false });
    const stderr = `Warning: MCP server(s) failed to start: ${'. '.repeat(200_000)}`;
    expect(judge(success, { stderr })).toEqual({ ok: true });
  });
});
