import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const codex = findHarness('codex');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how' } };

describe('launching Codex', () => {
  const config = (...args: Parameters<typeof launchOf> extends [unknown, ...infer Rest] ? Rest : never): string =>
    fileOf(launchOf(codex, ...args), '/home/agent/.codex/config.toml');

  it('passes secrets, the instruction and prompts only in files, variables and stdin', () => {
    const { command, env, stdin } = launchOf(codex, { mcp_servers: [stdio, http], system_prompt: 'say "moin"' });
    const line = JSON.stringify(command);
    for (const hidden of [KEY, '--now', 'hush', 'moin']) expect(line).not.toContain(hidden);
    expect(stdin).toBe(INSTRUCTION);
    expect(line).toMatch(/"-"\]$/);
    expect(env.FLOE_API_KEY).toBe(KEY);
  });

  it('configures floe as a provider with the base URL of the session', () => {
    const text = config({ model_name: 'qwen/q:7b' });
    expect(text).toContain('model = "qwen/q:7b"\nmodel_provider = "floe"\n');
    expect(text).toContain(`[model_providers.floe]\nname = "floe"\nbase_url = "http://127.0.0.1:1/s/${KEY}/v1"\n`);
    expect(text).toContain('wire_api = "responses"\n');
    expect(text).not.toMatch(/bearer/);
  });

  it('writes one line per value, whatever the text of the task is', () => {
    const lines = (text: string): number => text.split('\n').length;
    const hostile = 'a"\n[features]\napps = true\r\u2028\\';
    const text = config({ model_name: hostile, system_prompt: hostile, mcp_servers: [{ ...stdio, command: hostile }] });
    expect(lines(text)).toBe(lines(config({ system_prompt: 'x', mcp_servers: [stdio] })));
    expect(text.match(/^apps/gm)).toHaveLength(1);
  });

  it("configures the policy's context window, and compaction while a reply still has enough tokens", () => {
    expect(config()).toContain('model_context_window = 32768\nmodel_auto_compact_token_limit = 24576\n');
    const settings = { max_tokens: 1_072 };
    const text = config({ settings }, { contextWindow: null });
    expect(text).toContain('model_context_window = 131072\nmodel_auto_compact_token_limit = 130000\n');
    expect(config({ settings: { max_tokens: 99_999 } })).toContain('model_auto_compact_token_limit = 1\n');
  });

  it('configures MCP servers as required, skills and an addition to the prompt', () => {
    const launch = launchOf(codex, { mcp_servers: [stdio, http], skills: [skill], system_prompt: 'moin' });
    const text = fileOf(launch, 'config.toml');
    expect(text).toContain('developer_instructions = "moin"\n');
    expect(text).toContain(
      '[mcp_servers.words]\ncommand = "node"\nargs = [ "w.js", "x y" ]\nrequired = true\n\n[mcp_servers.words.env]\nWORD = "hush"\n',
    );
    expect(text).toContain(
      '[mcp_servers.web]\nurl = "http://127.0.0.1:9/mcp"\nrequired = true\n\n[mcp_servers.web.http_headers]\nx-key = "hush"\n',
    );
    expect(fileOf(launch, '/home/agent/.codex/skills/lamps/SKILL.md')).toBe('how');
    for (const { path } of launch.files) expect(path).not.toMatch(/^\/work/);
  });

  it('can disable sub-agents', () => {
    expect(config()).not.toContain('agents');
    expect(config({ settings: { sub_agents: false } })).toContain('[agents]\nenabled = false\n');
  });

  it('refuses an unsupported transport with the path of the field', () => {
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

/** Sample of the lines that Codex 0.169.0 prints at the start of a run. */
const START = '{"type":"thread.started","thread_id":"01a1"}\n{"type":"turn.started"}\n';
const ITEM =
  '{"type":"item.completed","item":{"id":"item_3","type":"command_execution","command":"/bin/sh -lc \'echo hi\'","aggregated_output":"{\\"type\\":\\"turn.failed\\"}\\n","exit_code":0,"status":"completed"}}\n';
const DONE =
  '{"type":"turn.completed","usage":{"input_tokens":2000,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":40,"reasoning_output_tokens":0}}\n';
const failed = (message: string): string =>
  `${JSON.stringify({ type: 'error', message })}\n${JSON.stringify({ type: 'turn.failed', error: { message } })}\n`;

describe('judging a run of Codex', () => {
  const judge = (stdout: string, exitCode: number | null = 0, stderr = '') =>
    judgeOf(codex, stdout, { exitCode, stderr });

  it('accepts a completed turn', () => {
    expect(judge(START + ITEM + DONE)).toEqual({ ok: true });
  });

  it('reports the error of a failed turn', () => {
    const message = 'unexpected status 410 Gone: session ended, url: http://127.0.0.1:24417/s/k/v1/responses';
    expect(judge(START + failed(message), 1)).toEqual({ ok: false, message: `the turn failed: ${message}` });
  });

  it('accepts a reply that reached its length limit as the end of the agent', () => {
    expect(judge(START + failed('Incomplete response returned, reason: max_output_tokens'), 1)).toEqual({ ok: true });
    const filtered = failed('Incomplete response returned, reason: content_filter');
    expect(judge(START + filtered, 1)).toMatchObject({ ok: false });
  });

  it('fails a run whose output was truncated', () => {
    expect(judge(START + ITEM, null)).toEqual({ ok: false, message: 'codex was ended by a signal' });
    expect(judge(START + ITEM)).toEqual({ ok: false, message: 'codex ended before its turn was complete' });
    expect(judge('')).toMatchObject({ ok: false });
    expect(judge(START + DONE.slice(0, -9))).toMatchObject({ ok: false });
    expect(judge(START + DONE, 1, 'late')).toEqual({ ok: false, message: 'codex exited with 1: late' });
    expect(judge('', 1, 'required MCP servers failed to initialize: dead')).toMatchObject({
      message: expect.stringContaining('dead'),
    });
  });
});
