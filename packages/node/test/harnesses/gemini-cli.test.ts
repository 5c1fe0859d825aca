import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const gemini = findHarness('gemini_cli');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const sse = { ...http, name: 'old', transport: 'sse' };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how', 'deep/a.txt': 'b' } };

type Settings = {
  readonly general: object;
  readonly model: { readonly compressionThreshold: number };
  readonly modelConfigs: {
    readonly customOverrides: readonly {
      readonly match: { readonly model: string };
      readonly modelConfig: { readonly model?: string; readonly generateContentConfig?: object };
    }[];
  };
  readonly tools: { readonly truncateToolOutputThreshold: number };
  readonly mcpServers: object;
  readonly context?: object;
};
const settingsOf = (...launch: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never): Settings =>
  JSON.parse(fileOf(launchOf(gemini, ...launch), '/home/agent/.gemini/settings.json'));

describe('launching Gemini CLI', () => {
  it('passes secrets, the instruction and prompts only in files, variables and stdin', () => {
    const { command, env, files, stdin } = launchOf(gemini, { mcp_servers: [stdio, http], system_prompt: 'moin' });
    const line = JSON.stringify(command);
    for (const hidden of [KEY, '--now', 'hush', 'moin']) expect(line).not.toContain(hidden);
    expect(stdin).toBe(INSTRUCTION);
    expect(env).toMatchObject({ GEMINI_API_KEY: KEY, GOOGLE_GEMINI_BASE_URL: `http://127.0.0.1:1/s/${KEY}` });
    expect(files.find(({ path }) => path.endsWith('settings.json'))?.mode).toBe(0o600);
    for (const { path } of files) expect(path).not.toMatch(/^\/work/);
  });

  it('sends an instruction that starts with a slash to the model, not to the command parser', () => {
    expect(launchOf(gemini, {}, { instruction: '/quit the text' }).stdin).toBe('\n/quit the text');
    expect(launchOf(gemini, {}, { instruction: '-h' }).stdin).toBe('-h');
  });

  it("sets the policy's name for every model call and limits the replies of agents", () => {
    const { command } = launchOf(gemini, { model_name: 'qwen/q:7b' });
    expect((command as string[]).join(' ')).toContain('--model=qwen/q:7b --yolo');
    const { customOverrides } = settingsOf({ model_name: 'qwen/q:7b' }).modelConfigs;
    const replies = customOverrides.filter(({ match }) => match.model === 'qwen/q:7b');
    expect(replies.map(({ modelConfig }) => modelConfig)).toEqual([
      { generateContentConfig: { maxOutputTokens: 8_192 } },
    ]);
    const others = customOverrides.filter(({ match }) => match.model !== 'qwen/q:7b');
    expect(others.map(({ match }) => match.model)).toEqual(
      expect.arrayContaining(['base', 'chat-compression-default', 'agent-history-provider-summarizer']),
    );
    for (const { modelConfig } of others) expect(modelConfig).toEqual({ model: 'qwen/q:7b' });
  });

  it('refuses a model name that a header cannot contain', () => {
    const check = (name: string) => () => gemini.checkAgent(agentOf(gemini, { model_name: name }));
    for (const name of ['漢', 'a\nb', 'a\x7f']) expect(check(name)).toThrow(/agent.model_name: .*Latin-1/);
    for (const name of ['-x', 'org/é "q" $HOME']) expect(check(name)).not.toThrow();
  });

  it("scales the compaction threshold from the assumed window of a million tokens to the policy's", () => {
    const tokens = (settings: Settings): number => Math.round(settings.model.compressionThreshold * 1_048_576);
    expect(tokens(settingsOf())).toBe(16_384);
    expect(settingsOf().tools.truncateToolOutputThreshold).toBe(24_576);
    expect(settingsOf().general).toMatchObject({ enableAutoUpdate: false, maxAttempts: 3 });
    const short = settingsOf({ settings: { max_tokens: 1_000 } }, { contextWindow: null });
    expect(tokens(short)).toBe(131_072 - 3_000);
    expect(short.tools.truncateToolOutputThreshold).toBe(3_000);
    const long = settingsOf({ settings: { max_tokens: 100_000 } }, { contextWindow: null });
    expect(tokens(long)).toBe(65_536);
    expect(long.tools.truncateToolOutputThreshold).toBe(40_000);
  });

  it('configures MCP servers, skills and an addition to the prompt', () => {
    const launch = launchOf(gemini, { mcp_servers: [stdio, http, sse], skills: [skill], system_prompt: 'moin' });
    expect(settingsOf({ mcp_servers: [stdio, http, sse] }).mcpServers).toEqual({
      words: { command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' }, trust: true },
      web: { httpUrl: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' }, trust: true },
      old: { url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' }, trust: true },
    });
    expect(fileOf(launch, '/home/agent/.gemini/GEMINI.md')).toBe('moin');
    expect(fileOf(launch, '/home/agent/.gemini/skills/lamps/SKILL.md')).toBe('how');
    expect(fileOf(launch, '/home/agent/.gemini/skills/lamps/deep/a.txt')).toBe('b');
    expect(launchOf(gemini).files.map(({ path }) => path)).toEqual(['/home/agent/.gemini/settings.json']);
  });

  it('prevents an @ in the addition to the prompt from importing a file', () => {
    expect(settingsOf({ system_prompt: 'moin' }).context).toBeUndefined();
    expect(settingsOf({ system_prompt: 'use @pytest.fixture' }).context).toEqual({ importFormat: 'flat' });
  });

  it('refuses reserved model names, unknown settings and other dialects', () => {
    const check = (input: object) => () => gemini.checkAgent(agentOf(gemini, input));
    for (const model_name of ['auto', 'flash-lite', 'pro']) {
      expect(check({ model_name })).toThrow(expect.objectContaining({ code: 'unsupported' }));
    }
    expect(check({ settings: { surprise: 1 } })).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(check({ dialect: 'openai_chat' })).toThrow(expect.objectContaining({ code: 'unsupported' }));
    expect(check({ model_name: 'policy', settings: { max_tokens: 5 } })).not.toThrow();
  });
});

describe('judging a run of Gemini CLI', () => {
  // Samples of output lines in the form that Gemini CLI 0.61.0 prints, shortened.
  const call = `{"type":"tool_use","tool_name":"run_shell_command","parameters":{"command":"echo '{\\"type\\":\\"result\\"'"}}\n`;
  const result = (rest: string): string => `{"type":"result","timestamp":"2026-11-21T08:37:20.204Z",${rest}}\n`;
  const success = result('"status":"success","stats":{"tool_calls":4}');
  const ended = result('"status":"error","stats":{"tool_calls":0}');
  const error = (message: string): string => `${JSON.stringify({ type: 'error', severity: 'error', message })}\n`;
  const refused = result(
    '"status":"error","error":{"type":"unknown","message":"[API Error: {\\"error\\":{\\"code\\":400}}]"}',
  );
  const judge = (stdout: string, more = {}) => judgeOf(gemini, stdout, more);

  it('decides by the result line', () => {
    expect(judge(call + success)).toEqual({ ok: true });
    // After an HTTP error 400, Gemini CLI exits with 400 modulo 256 = 144. An exit code above 128 counts as the end by a signal, so `exitCode`
    // is `null`.
    expect(judge(call + refused, { exitCode: null })).toEqual({
      ok: false,
      message: '[API Error: {"error":{"code":400}}]',
    });
    expect(judge(call, { exitCode: 41, stderr: 'Invalid auth method selected.\n' })).toEqual({
      ok: false,
      message: 'gemini exited with 41: Invalid auth method selected.',
    });
    expect(judge(success, { exitCode: 1 })).toMatchObject({ ok: false });
    expect(judge(call)).toEqual({ ok: false, message: 'gemini ended without a result' });
  });

  it('accepts errors that the policy caused', () => {
    const thought = 'The model returned reasoning thoughts but no final response text. If your context window is near';
    expect(judge(error(thought) + ended)).toEqual({ ok: true });
    expect(judge(error('Invalid stream: cut') + ended)).toEqual({ ok: false, message: 'Invalid stream: cut' });
    expect(judge(ended)).toEqual({ ok: false, message: 'the result is error' });
  });

  it('fails a run whose MCP servers did not start', () => {
    const stderr = 'YOLO mode is enabled.\nMCP issues detected. Run /mcp list for status.\n';
    expect(judge(success, { stderr })).toMatchObject({ ok: false, message: expect.stringContaining('MCP servers') });
  });

  it('reads a long output in less than a second', () => {
    expect(judge(success + '{"type":"result"\n'.repeat(20_000))).toMatchObject({ ok: false });
    expect(judge('\n'.repeat(4_000_000) + success)).toEqual({ ok: true });
  });
});
