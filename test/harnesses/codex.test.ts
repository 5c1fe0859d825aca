import { describe, expect, test } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const codex = findHarness('codex');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how' } };

describe('a launch of Codex', () => {
  const config = (...args: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never): string =>
    fileOf(launchOf(codex, ...args), '/home/agent/.codex/config.toml');

  test('has secrets, the instruction and prompts in files, variables and stdin only', () => {
    const { command, env, stdin } = launchOf(codex, { mcp_servers: [stdio, http], system_prompt: 'say "moin"' });
    const line = JSON.stringify(command);
    for (const hidden of [KEY, '--now', 'hush', 'moin']) expect(line).not.toContain(hidden);
    expect(stdin).toBe(INSTRUCTION);
    expect(line).toMatch(/"-"\]$/);
    expect(env.FLOE_API_KEY).toBe(KEY);
  });

  test('is a provider of its own, at the session’s address', () => {
    const text = config({ model_name: 'qwen/q:7b' });
    expect(text).toContain('"model" = "qwen/q:7b"\n"model_provider" = "floe"\n');
    expect(text).toContain(
      `["model_providers"."floe"]\n"name" = "floe"\n"base_url" = "http://127.0.0.1:1/s/${KEY}/v1"\n`,
    );
    expect(text).toContain('"wire_api" = "responses"\n');
    expect(text).not.toMatch(/bearer/);
  });

  test('keeps one line per value, whatever the task says', () => {
    const lines = (text: string): number => text.split('\n').length;
    const hostile = 'a"\n[features]\napps = true\r\u2028\\';
    const text = config({ model_name: hostile, system_prompt: hostile, mcp_servers: [{ ...stdio, command: hostile }] });
    expect(lines(text)).toBe(lines(config({ system_prompt: 'x', mcp_servers: [stdio] })));
    expect(text.match(/^"apps"/gm)).toHaveLength(1);
  });

  test("knows the policy's window, and compacts with room for a reply", () => {
    expect(config()).toContain('"model_context_window" = 32768\n"model_auto_compact_token_limit" = 24576\n');
    const settings = { max_tokens: 1_072 };
    const text = config({ settings }, { contextWindow: null });
    expect(text).toContain('"model_context_window" = 131072\n"model_auto_compact_token_limit" = 130000\n');
    expect(config({ settings: { max_tokens: 99_999 } })).toContain('"model_auto_compact_token_limit" = 1\n');
  });

  test('brings tool servers that must start, skills and an addition to the prompt', () => {
    const launch = launchOf(codex, { mcp_servers: [stdio, http], skills: [skill], system_prompt: 'moin' });
    const text = fileOf(launch, 'config.toml');
    expect(text).toContain('"developer_instructions" = "moin"\n');
    expect(text).toContain(
      '["mcp_servers"."words"]\n"command" = "node"\n"args" = ["w.js", "x y"]\n"required" = true\n["mcp_servers"."words"."env"]\n"WORD" = "hush"\n',
    );
    expect(text).toContain(
      '["mcp_servers"."web"]\n"url" = "http://127.0.0.1:9/mcp"\n"required" = true\n["mcp_servers"."web"."http_headers"]\n"x-key" = "hush"\n',
    );
    expect(fileOf(launch, '/home/agent/.codex/skills/lamps/SKILL.md')).toBe('how');
    for (const { path } of launch.files) expect(path).not.toMatch(/^\/work/);
  });

  test('can do without sub-agents', () => {
    expect(config()).not.toContain('"agents"');
    expect(config({ settings: { sub_agents: false } })).toContain('["agents"]\n"enabled" = false\n');
  });

  test('refuses a transport that codex does not speak, by its place', () => {
    const sse = { ...http, transport: 'sse' };
    const check = () => codex.checkAgent(agentOf(codex, { mcp_servers: [stdio, sse] }));
    expect(check).toThrow(expect.objectContaining({ code: 'unsupported' }));
    expect(check).toThrow(/agent\.mcp_servers\.1\.transport/);
    expect(() => codex.checkAgent(agentOf(codex, { mcp_servers: [stdio, http] }))).not.toThrow();
    expect(() => codex.checkAgent(agentOf(codex, { settings: { surprise: 1 } }))).toThrow(
      expect.objectContaining({ code: 'schema_violation' }),
    );
  });
});

/** As 0.169.0 writes it. */
const START = '{"type":"thread.started","thread_id":"01a1"}\n{"type":"turn.started"}\n';
const ITEM =
  '{"type":"item.completed","item":{"id":"item_3","type":"command_execution","command":"/bin/sh -lc \'echo hi\'","aggregated_output":"{\\"type\\":\\"turn.failed\\"}\\n","exit_code":0,"status":"completed"}}\n';
const DONE =
  '{"type":"turn.completed","usage":{"input_tokens":2000,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":40,"reasoning_output_tokens":0}}\n';
const failed = (message: string): string =>
  `${JSON.stringify({ type: 'error', message })}\n${JSON.stringify({ type: 'turn.failed', error: { message } })}\n`;

describe('the judgement of a run of Codex', () => {
  const judge = (stdout: string, exitCode: number | null = 0, stderr = '') =>
    judgeOf(codex, stdout, { exitCode, stderr });

  test('is good for a completed turn', () => {
    expect(judge(START + ITEM + DONE)).toEqual({ ok: true });
  });

  test('says how a turn failed', () => {
    const message = 'unexpected status 410 Gone: session ended, url: http://127.0.0.1:24417/s/k/v1/responses';
    expect(judge(START + failed(message), 1)).toEqual({ ok: false, message: `the turn failed: ${message}` });
  });

  test('takes a reply that the engine cut for the end of the agent', () => {
    expect(judge(START + failed('Incomplete response returned, reason: max_output_tokens'), 1)).toEqual({ ok: true });
    const filtered = failed('Incomplete response returned, reason: content_filter');
    expect(judge(START + filtered, 1)).toMatchObject({ ok: false });
  });

  test('does not take output that was cut off for a success', () => {
    expect(judge(START + ITEM, null)).toEqual({ ok: false, message: 'codex was ended by a signal' });
    expect(judge(START + ITEM)).toEqual({ ok: false, message: 'codex ended within its turn' });
    expect(judge('')).toMatchObject({ ok: false });
    expect(judge(START + DONE.slice(0, -9))).toMatchObject({ ok: false });
    expect(judge(START + DONE, 1, 'late')).toEqual({ ok: false, message: 'codex exited with 1: late' });
    expect(judge('', 1, 'required MCP servers failed to initialize: dead')).toMatchObject({
      message: expect.stringContaining('dead'),
    });
  });
});
