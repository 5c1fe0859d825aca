import { describe, expect, it } from 'vitest';
import { findHarness } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, INSTRUCTION, judgeOf, KEY, launchOf } from './launch-context.ts';

const openhands = findHarness('openhands');

const stdio = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } };
const http = { name: 'web', transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } };

describe('launching OpenHands', () => {
  it('passes secrets and the instruction only in files and variables', () => {
    const launch = launchOf(openhands, { mcp_servers: [stdio, http] }, { installDir: null });
    for (const hidden of [KEY, '--now', 'hush']) expect(JSON.stringify(launch.command)).not.toContain(hidden);
    const command = launch.command as readonly string[];
    expect(command[0]).toBe('openhands');
    expect(fileOf(launch, command[command.indexOf('--file') + 1] ?? '?')).toBe(INSTRUCTION);
    expect(command).toEqual(expect.arrayContaining(['--headless', '--json', '--override-with-envs']));
  });

  it('configures LiteLLM for the policy', () => {
    expect(launchOf(openhands, { model_name: 'qwen/q' }).env).toMatchObject({
      LLM_MODEL: 'openai/qwen/q',
      LLM_API_KEY: KEY,
      LLM_BASE_URL: `http://127.0.0.1:1/s/${KEY}/v1`,
    });
  });

  it('configures MCP servers and collects the conversation', () => {
    const launch = launchOf(openhands, { mcp_servers: [stdio, http] });
    expect(JSON.parse(fileOf(launch, '/home/agent/.openhands/mcp.json'))).toEqual({
      mcpServers: {
        words: { transport: 'stdio', command: 'node', args: ['w.js', 'x y'], env: { WORD: 'hush' } },
        web: { transport: 'http', url: 'http://127.0.0.1:9/mcp', headers: { 'x-key': 'hush' } },
      },
    });
    expect(launch.env.OPENHANDS_CONVERSATIONS_DIR).toBe('/logs/openhands');
  });

  it('uses the path of the program in the image', () => {
    const settings = { program: '/opt/openhands/bin/openhands' };
    expect((launchOf(openhands, { settings }).command as string[])[0]).toBe(settings.program);
    for (const bad of [{ program: 'bin/openhands' }, { program: '' }, { model: 'x' }]) {
      const check = () => openhands.checkAgent(agentOf(openhands, { settings: bad }));
      expect(check).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    }
  });
});

/** Formats an event in the way in which OpenHands-CLI 1.16 prints it. */
const event = (fields: object) => `${JSON.stringify(fields, null, 1).replaceAll(/\n\s*/g, ' ')}\n`;
const ACTION = event({
  id: 'e1',
  source: 'agent',
  tool_name: 'finish',
  action: { message: 'Done: "kind": "x"', kind: 'FinishAction' },
  kind: 'ActionEvent',
});
const OBSERVED = event({
  id: 'e2',
  source: 'environment',
  observation: { kind: 'FinishObservation' },
  kind: 'ObservationEvent',
});
const FAILED = event({
  id: 'e3',
  source: 'environment',
  code: 'LLMBadRequestError',
  detail: 'the session used its 1 turns',
  kind: 'ConversationErrorEvent',
});
const USAGE = event({ id: 'e4', source: 'environment', key: 'stats', value: {}, kind: 'ConversationStateUpdateEvent' });
const GOODBYE = 'Agent finished\nGoodbye! 👋\nConversation ID: 0f\n';

describe('judging a run of OpenHands', () => {
  it('accepts a run that ended with an event of the agent', () => {
    expect(judgeOf(openhands, ACTION + OBSERVED + USAGE + GOODBYE)).toEqual({ ok: true });
  });

  it('reports the error that ended the conversation, even with exit code 0', () => {
    expect(judgeOf(openhands, ACTION + FAILED + USAGE + GOODBYE)).toEqual({
      ok: false,
      message: 'LLMBadRequestError: the session used its 1 turns',
    });
  });

  it('accepts a run that reached the iteration limit', () => {
    const limit = FAILED.replace('LLMBadRequestError', 'MaxIterationsReached');
    expect(judgeOf(openhands, ACTION + OBSERVED + limit + GOODBYE)).toEqual({ ok: true });
  });

  it('names the remedy when the image does not contain the program', () => {
    const { exitCode, stderr } = { exitCode: 127, stderr: 'sh: openhands: not found' };
    expect(judgeOf(openhands, '', { exitCode, stderr })).toMatchObject({
      ok: false,
      message: expect.stringContaining('runtime.image'),
    });
  });

  it('fails a run without an event of the agent', () => {
    expect(judgeOf(openhands, GOODBYE)).toEqual({
      ok: false,
      message: 'openhands ended without an event of the agent',
    });
    expect(judgeOf(openhands, ACTION, { exitCode: 1, stderr: 'no key' })).toEqual({
      ok: false,
      message: 'openhands exited with 1: no key',
    });
  });
});
