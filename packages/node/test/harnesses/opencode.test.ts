import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const opencode = findHarness('opencode');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how', 'deep/a.txt': 'b' } };

const configOf = (...args: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never) =>
  JSON.parse(fileOf(launchOf(opencode, ...args), 'floe.json'));
const lastWordOf = (input = {}) => JSON.parse(launchOf(opencode, input).env.OPENCODE_CONFIG_CONTENT ?? '');

describe('launching opencode', () => {
  it('passes secrets, the instruction and prompts only in files, variables and stdin', () => {
    const { command, stdin } = launchOf(opencode, { mcp_servers: [stdio, http], system_prompt: 'say "moin" --all' });
    for (const hidden of [KEY, '--now', 'hush', 'moin']) expect(JSON.stringify(command)).not.toContain(hidden);
    expect(stdin).toBe(INSTRUCTION);
  });

  it('writes its files outside the work tree', () => {
    const launch = launchOf(opencode, { skills: [skill], system_prompt: 'moin' });
    for (const { path } of launch.files) expect(path).toMatch(/^\/home\/agent\//);
    expect(fileOf(launch, '/home/agent/.config/opencode/skills/lamps/SKILL.md')).toBe('how');
    expect(fileOf(launch, '/home/agent/.config/opencode/skills/lamps/deep/a.txt')).toBe('b');
    const { instructions } = JSON.parse(fileOf(launch, 'floe.json'));
    expect(launch.files.map(({ path }) => path)).toContain(instructions[0]);
    expect(fileOf(launch, instructions[0])).toBe('moin');
    expect(configOf().instructions).toEqual([]);
    const config = launch.files.find(({ path }) => path === launch.env.OPENCODE_CONFIG);
    expect(config?.mode).toBe(0o600);
  });

  it.each([
    ['openai_chat', '@ai-sdk/openai-compatible'],
    ['openai_responses', '@ai-sdk/openai'],
    ['anthropic', '@ai-sdk/anthropic'],
  ])('uses a package that ships with opencode for %s', (dialect, npm) => {
    const { floe } = configOf({ dialect }).provider;
    expect(floe).toMatchObject({ npm, options: { baseURL: `http://127.0.0.1:1/s/${KEY}/v1`, apiKey: KEY } });
  });

  it('sets no timeouts for the policy', () => {
    expect(configOf().provider.floe.options).toMatchObject({
      timeout: false,
      headerTimeout: false,
      chunkTimeout: false,
    });
  });

  it('sets the policy for every agent and overrides the configuration of a repository', () => {
    expect(lastWordOf({ model_name: 'qwen/q:7b' })).toMatchObject({
      model: 'floe/qwen/q:7b',
      small_model: 'floe/qwen/q:7b',
      enabled_providers: ['floe'],
      share: 'disabled',
      autoupdate: false,
      permission: 'allow',
      agent: { title: { disable: true } },
    });
    expect(configOf({ model_name: 'qwen/q:7b' }).provider.floe.models).toHaveProperty(['qwen/q:7b']);
    const { command } = launchOf(opencode, { model_name: 'qwen/q:7b' });
    expect((command as string[]).join(' ')).toContain('--model floe/qwen/q:7b');
  });

  it("configures the policy's context window and whether it accepts images", () => {
    expect(configOf().provider.floe.models.policy).toMatchObject({
      limit: { context: 32_768, output: 8_192 },
      attachment: false,
      modalities: { input: ['text'], output: ['text'] },
    });
    const settings = { max_tokens: 50_000, vision: true };
    expect(configOf({ settings }, { contextWindow: null }).provider.floe.models.policy).toMatchObject({
      limit: { context: 131_072, output: 50_000 },
      attachment: true,
      modalities: { input: ['text', 'image'] },
    });
    expect(launchOf(opencode, { settings }).env.OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX).toBe('50000');
  });

  it("writes MCP servers in opencode's format", () => {
    expect(configOf({ mcp_servers: [stdio, http] }).mcp).toEqual({
      words: { type: 'local', command: ['node', 'w.js', 'x y'], environment: { WORD: 'hush' }, enabled: true },
      web: {
        type: 'remote',
        url: 'http://127.0.0.1:9/mcp',
        headers: { 'x-key': 'hush' },
        oauth: false,
        enabled: true,
      },
    });
  });

  it('writes no placeholders that opencode would replace', () => {
    const args = ['{env:HOME}', '{file:/etc/passwd}', '{"a":{}}', '\\{env:X}'];
    const launch = launchOf(opencode, { mcp_servers: [{ ...stdio, args }], model_name: '{env:HOME}' });
    for (const text of [fileOf(launch, 'floe.json'), launch.env.OPENCODE_CONFIG_CONTENT]) {
      expect(text).not.toMatch(/\{(env|file):/);
    }
    expect(JSON.parse(fileOf(launch, 'floe.json')).mcp.words.command).toEqual(['node', ...args]);
    expect(lastWordOf({ model_name: '{env:HOME}' }).model).toBe('floe/{env:HOME}');
  });
});

/** Sample of the line that opencode 1.18.33 prints at the end of a model call that requested tools. */
const TOOLS =
  '{"type":"step_finish","timestamp":1795250733734,"sessionID":"ses_e0","part":{"id":"prt_1","reason":"tool-calls","messageID":"msg_1","sessionID":"ses_e0","type":"step-finish","tokens":{"total":9515,"input":85,"output":38,"reasoning":0,"cache":{"write":0,"read":9392}},"cost":0}}\n';
const TEXT =
  '{"type":"text","timestamp":1795250734019,"sessionID":"ses_e0","part":{"id":"prt_2","messageID":"msg_2","sessionID":"ses_e0","type":"text","text":"{\\"type\\":\\"error\\",\\"timestamp\\":9,\\"error\\":{\\"name\\":\\"x\\"}}","time":{"start":1795250733931,"end":1795250733939}}}\n';
const STOP =
  '{"type":"step_finish","timestamp":1795250734020,"sessionID":"ses_e0","part":{"id":"prt_3","reason":"stop","messageID":"msg_2","sessionID":"ses_e0","type":"step-finish","tokens":{"total":9554,"input":59,"output":23,"reasoning":0,"cache":{"write":0,"read":9472}},"cost":0}}\n';
const errorAt = (timestamp: number) =>
  `{"type":"error","timestamp":${timestamp},"sessionID":"ses_e0","error":{"name":"APIError","data":{"message":"the script is over","statusCode":400,"isRetryable":false,"metadata":{"url":"http://127.0.0.1:18999/s/k/v1/chat/completions"}}}}\n`;
const UNAVAILABLE =
  'timestamp=2026-11-21T09:08:39.006Z level=WARN run=8ed74158 message="server unavailable" key=bad type=local status=failed\n';

describe('judging a run of opencode', () => {
  const judge = (stdout: string, report = {}) => judgeOf(opencode, stdout, report);

  it('accepts a run whose last model call ended the turn', () => {
    expect(judge(TOOLS + TEXT + STOP)).toEqual({ ok: true });
    expect(judge(TOOLS + STOP.replace('"stop"', '"length"'))).toEqual({ ok: true });
  });

  it('reports an error after the last model call', () => {
    const message = 'the script is over';
    expect(judge(errorAt(1), { exitCode: 1 })).toEqual({ ok: false, message });
    expect(judge(TOOLS + errorAt(1_795_250_733_734), { exitCode: 1 })).toEqual({ ok: false, message });
    const nameless = '{"type":"error","timestamp":1,"error":{"name":"MessageAbortedError","data":{}}}\n';
    expect(judge(nameless)).toEqual({ ok: false, message: 'MessageAbortedError' });
  });

  it('accepts a run that recovered from an error, even with exit code 1', () => {
    expect(judge(errorAt(1) + TOOLS + STOP, { exitCode: 1 })).toEqual({ ok: true });
    expect(judge(errorAt(1) + STOP, { exitCode: 137 })).toMatchObject({ ok: false });
  });

  it('fails a run whose output was truncated', () => {
    expect(judge(TOOLS)).toEqual({ ok: false, message: 'opencode ended before its turn was complete' });
    expect(judge(TOOLS + STOP.slice(0, -9))).toEqual({
      ok: false,
      message: 'opencode ended before its turn was complete',
    });
    expect(judge('')).toEqual({ ok: false, message: 'opencode ended without a model call' });
    expect(judge(STOP, { exitCode: null, stderr: 'oom' })).toMatchObject({ message: expect.stringContaining('oom') });
    expect(judge('', { exitCode: 1, stderr: 'no such model' })).toMatchObject({
      message: 'opencode exited with 1: no such model',
    });
  });

  it('fails a run whose MCP server did not start', () => {
    expect(judge(STOP, { stderr: UNAVAILABLE })).toEqual({ ok: false, message: 'MCP servers did not start: bad' });
    expect(judge(STOP, { stderr: UNAVAILABLE.replace('failed', 'disabled') })).toEqual({ ok: true });
  });
});
