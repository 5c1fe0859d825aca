import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const claude = findHarness('claude_code');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };
const skill = { name: 'lamps', files: { 'SKILL.md': 'how', 'deep/a.txt': 'b' } };

describe('launching Claude Code', () => {
  it('passes secrets, the instruction and prompts only in files, variables and stdin', () => {
    const system_prompt = 'say "moin" --all';
    const { command, stdin } = launchOf(claude, { mcp_servers: [stdio, http], system_prompt });
    const line = JSON.stringify(command);
    for (const hidden of [KEY, '--now', 'hush', 'moin']) expect(line).not.toContain(hidden);
    expect(stdin).toBe(INSTRUCTION);
  });

  it('sends an instruction that starts with a slash to the model, not to the command parser', () => {
    expect(launchOf(claude, {}, { instruction: '/compact the text' }).stdin).toBe('\n/compact the text');
  });

  it("sets every model name to the policy's", () => {
    const { env } = launchOf(claude, { model_name: 'qwen/q:7b' });
    const models = Object.entries(env).filter(([name]) => /_MODEL$/.test(name));
    expect(models.length).toBeGreaterThanOrEqual(8);
    for (const [name, value] of models) expect(value, name).toBe('qwen/q:7b');
  });

  it("configures the policy's context window", () => {
    expect(launchOf(claude).env).toMatchObject({
      CLAUDE_CODE_MAX_CONTEXT_TOKENS: '32768',
      CLAUDE_CODE_AUTO_COMPACT_WINDOW: '32768',
      CLAUDE_CODE_MAX_OUTPUT_TOKENS: '8192',
    });
    const { env } = launchOf(claude, { settings: { max_tokens: 77 } }, { contextWindow: null });
    expect(env).toMatchObject({ CLAUDE_CODE_MAX_CONTEXT_TOKENS: '131072', CLAUDE_CODE_MAX_OUTPUT_TOKENS: '77' });
  });

  it('configures MCP servers, skills and an addition to the prompt', () => {
    const launch = launchOf(claude, { mcp_servers: [stdio, http], skills: [skill], system_prompt: 'moin' });
    expect(JSON.parse(fileOf(launch, 'mcp.json'))).toEqual({
      mcpServers: {
        words: { type: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } },
        web: { type: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } },
      },
    });
    expect(fileOf(launch, '/home/agent/.claude/skills/lamps/SKILL.md')).toBe('how');
    expect(fileOf(launch, '/home/agent/.claude/skills/lamps/deep/a.txt')).toBe('b');
    expect(fileOf(launch, 'prompt.md')).toBe('moin');
    const options = launch.command as readonly string[];
    for (const name of ['--mcp-config', '--append-system-prompt-file']) {
      const path = options[options.indexOf(name) + 1];
      expect(launch.files.map((file) => file.path)).toContain(path);
    }
    for (const { path } of launch.files) expect(path).not.toMatch(/^\/work/);
  });

  it('applies its settings and refuses a tool name that is an option', () => {
    const settings = { simple: true, tools: ['Bash', 'Edit'], disallowed_tools: ['mcp__a-b__c'] };
    const { command, env } = launchOf(claude, { settings });
    expect(env.CLAUDE_CODE_SIMPLE).toBe('1');
    expect((command as string[]).join(' ')).toContain('--tools Bash,Edit --disallowed-tools mcp__a-b__c --');
    expect(launchOf(claude).env).not.toHaveProperty('CLAUDE_CODE_SIMPLE');
    for (const bad of [
      { tools: ['--model'] },
      { tools: ['Bash,Edit'] },
      { disallowed_tools: ['a b'] },
      { surprise: 1 },
    ]) {
      const check = () => claude.checkAgent(agentOf(claude, { settings: bad }));
      expect(check).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    }
  });

  it('refuses skills in simple mode, which has no tool that reads them', () => {
    const simple = { settings: { simple: true } };
    for (const more of [{ skills: [skill] }, { skills_path: '/skills' }]) {
      const check = () => claude.checkAgent(agentOf(claude, { ...simple, ...more }));
      expect(check).toThrow(expect.objectContaining({ code: 'unsupported' }));
      expect(() => claude.checkAgent(agentOf(claude, more))).not.toThrow();
    }
    expect(() => claude.checkAgent(agentOf(claude, simple))).not.toThrow();
  });
});

/** Sample of the line that Claude Code 2.1.329 prints at the start of a run, without the fields about cost. */
const INIT =
  '{"type":"system","subtype":"init","cwd":"/work","session_id":"55f6","tools":["Task","Bash"],"mcp_servers":[{"name":"words","status":"connected","source":"dynamic"}],"model":"policy","permissionMode":"bypassPermissions","claude_code_version":"2.1.329"}\n';
const DONE =
  '{"duration_api_ms":106,"stop_reason":"end_turn","session_id":"55f6","permission_denials":[],"terminal_reason":"completed","is_error":false,"num_turns":2,"subtype":"success","api_error_status":null,"result":"Done.","type":"result","duration_ms":334,"result_index":0}\n';
const REFUSED =
  '{"duration_api_ms":42,"stop_reason":"stop_sequence","session_id":"9253","permission_denials":[],"terminal_reason":"api_error","is_error":true,"num_turns":2,"subtype":"success","api_error_status":400,"api_error_type":"invalid_request_error","result":"API Error: 400 the session used its 1 turns","type":"result","duration_ms":209}\n';
const ASSISTANT =
  '{"type":"assistant","message":{"id":"msg_2","type":"message","role":"assistant","content":[{"type":"text","text":"{\\"type\\":\\"result\\",\\"is_error\\":true}"}]},"session_id":"55f6"}\n';

describe('judging a run of Claude Code', () => {
  const judge = (stdout: string, exitCode: number | null = 0, stderr = '') =>
    judgeOf(claude, stdout, { exitCode, stderr });

  it('accepts a result without an error', () => {
    expect(judge(INIT + ASSISTANT + DONE)).toEqual({ ok: true });
  });

  it('uses the last result, because background agents continue a run after the first', () => {
    expect(judge(INIT + REFUSED + INIT + DONE)).toEqual({ ok: true });
    expect(judge(INIT + DONE + INIT + REFUSED, 1)).toMatchObject({ ok: false });
  });

  it('reports the error of the API even when the subtype is success', () => {
    expect(judge(INIT + REFUSED, 1)).toEqual({
      ok: false,
      message: 'the result is an error (api_error): API Error: 400 the session used its 1 turns',
    });
  });

  it('reports errors of a result without text', () => {
    const line = { type: 'result', subtype: 'error_during_execution', is_error: true, errors: ['no such tool', 'x'] };
    expect(judge(`${JSON.stringify(line)}\n`, 1)).toEqual({
      ok: false,
      message: 'the result is an error (error_during_execution): no such tool; x',
    });
  });

  it('fails a run whose output was truncated', () => {
    expect(judge(INIT + ASSISTANT, null, 'oom')).toEqual({ ok: false, message: 'claude was ended by a signal: oom' });
    expect(judge(INIT + ASSISTANT)).toEqual({ ok: false, message: 'claude ended without a result' });
    expect(judge(INIT + DONE.slice(0, -20))).toMatchObject({ ok: false });
    expect(judge('', 1, 'cannot be used with root')).toMatchObject({ message: expect.stringContaining('root') });
    expect(judge(`${INIT}{"type":"assi\n${DONE}`)).toEqual({ ok: true });
  });

  it('fails a run whose MCP server did not start', () => {
    const failed = INIT.replace('"connected"', '"failed"');
    expect(judge(failed + DONE)).toEqual({ ok: false, message: 'MCP servers did not start: words' });
  });
});
