import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { McpServer } from '@floe-rl/core/schema';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { never } from '../../../../../sandbox/test/backends/workbench.ts';
import { mcpToolset } from '../../../../src/tools/built-in/mcp.ts';
import { checkArguments } from '../../../../src/tools/checked-arguments.ts';
import type { ToolResult } from '../../../../src/tools/tool.ts';
import { type OpenToolset, openToolset } from '../../../../src/tools/toolset.ts';

const SERVER = join(import.meta.dirname, '..', '..', '..', 'host', 'plugins', 'mcp-server.js');

function stdio(mode: string): McpServer {
  const env = { GREETING: 'hello' };
  return { name: 'test', transport: 'stdio', command: process.execPath, args: [SERVER, mode], env };
}

const opened: OpenToolset[] = [];
afterEach(async () => {
  for (const { close } of opened.splice(0)) await close?.();
});

/** Opens the tools of a server. Resolves with their names and a function that calls one. */
async function open(server: McpServer, config: object = {}) {
  const context = {
    ...{ box: null, environment: null, seed: 0, metadata: {}, skills: [], services: {}, mcpServers: [server] },
    openTools: () => Promise.reject(new Error('there are no further tools')),
  };
  const toolset = await openToolset(mcpToolset, { server: 'test', ...config }, context, never);
  opened.push(toolset);
  const call = async (name: string, args: object = {}): Promise<ToolResult> => {
    const tool = toolset.tools.find((one) => one.name === name);
    if (tool?.effect !== 'environment') throw new Error(`no tool ${name}`);
    const checked = checkArguments(tool, args);
    if ('problem' in checked) throw new Error(`wrong arguments: ${checked.problem}`);
    const result = await tool.run(checked.args, { box: null, services: {}, count: () => {}, measure: () => {} }, never);
    return typeof result === 'string' ? { content: result } : result;
  };
  return { names: toolset.tools.map(({ name }) => name), instructions: toolset.instructions, call };
}

describe('the tools of an MCP server that the node starts', () => {
  it('are those that the server lists, with its variables and instructions', async () => {
    const { names, instructions, call } = await open(stdio('good'));
    expect(names).toEqual(['echo', 'die', 'fail', 'refuse', 'hang', 'a_picture']);
    expect(instructions).toBe('Echo is for texts.');
    expect(await call('echo', { text: 'I say' })).toEqual({ content: 'I say hello', isError: false });
    await expect(call('echo', {})).rejects.toThrow(/wrong arguments: must have required property 'text'/);
  });

  it('are chosen by name, and get a prefix', async () => {
    const chosen = await open(stdio('good'), { allow: ['echo', 'fail'], deny: ['fail'], prefix: 'test_' });
    expect(chosen.names).toEqual(['test_echo']);
    expect((await chosen.call('test_echo', { text: 'I say' })).content).toBe('I say hello');
    await expect(open(stdio('good'), { allow: ['absent'] })).rejects.toThrow(/test has no tool absent; it has: echo/);
  });

  it('return images and failures', async () => {
    const { call } = await open(stdio('good'));
    expect(await call('a_picture')).toMatchObject({
      content: [
        { type: 'text', text: 'look' },
        { type: 'image_url', image_url: { url: expect.stringMatching(/^data:image\/png;base64,/) } },
        { type: 'text', text: '[link file:///x]' },
      ],
    });
    expect(await call('fail')).toEqual({ content: 'it failed', isError: true });
    await expect(call('refuse')).rejects.toMatchObject({
      name: 'ToolError',
      message: expect.stringMatching(/the MCP server test: .*no such thing/),
    });
  });

  it('have an error that names the server when it dies, and when it is called after that', async () => {
    const { call } = await open(stdio('good'));
    await expect(call('die')).rejects.toMatchObject({
      reason: 'unavailable',
      message: 'the MCP server test has ended during the call',
    });
    await expect(call('echo', { text: 'x' })).rejects.toMatchObject({
      reason: 'unavailable',
      message: 'the MCP server test has ended',
    });
  });

  it('end at their time limit', async () => {
    const { call } = await open(stdio('good'), { timeout_seconds: 0.2 });
    await expect(call('hang')).rejects.toMatchObject({
      reason: 'failed',
      message: expect.stringMatching(/test:.*time/i),
    });
    expect((await call('echo', { text: 'I say' })).content).toBe('I say hello');
  });

  it.each([
    ['ends at its start', 'silent', /the MCP server test cannot be used/, 'setup_failed'],
    ['lists tools without an end', 'endless', /the MCP server test cannot be used/, 'setup_failed'],
    ['declares too much', 'huge', /take 9\d KiB, more than 64 KiB.*huge \(98 KiB\)/, 'unsupported'],
    ['declares an invalid schema', 'broken', /the schema of broken is invalid/, 'unsupported'],
  ])('are refused when the server %s', async (_, mode, message, code) => {
    await expect(open(stdio(mode))).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
  });

  it('can be used without those that are refused', async () => {
    expect((await open(stdio('huge'), { deny: ['huge'] })).names).toHaveLength(6);
    expect((await open(stdio('broken'), { deny: ['broken'] })).names).toHaveLength(6);
  });

  it('are refused when the node has no such server, or the program is missing', async () => {
    await expect(open(stdio('good'), { server: 'other' })).rejects.toThrow(/no MCP server other; it has: test/);
    const missing: McpServer = { name: 'test', transport: 'stdio', command: '/nonexistent', args: [], env: {} };
    await expect(open(missing)).rejects.toMatchObject({ code: 'setup_failed' });
  });

  it.each([{ command: 'sh' }, { url: 'http://127.0.0.1' }])('have no %j from a task', async (extra) => {
    await expect(open(stdio('good'), extra)).rejects.toMatchObject({ code: 'schema_violation' });
  });
});

describe('the tools of an MCP server over HTTP', () => {
  let child: ChildProcess;
  let url: string;
  beforeAll(async () => {
    child = spawn(process.execPath, [SERVER, 'good', 'http'], { stdio: ['ignore', 'pipe', 'inherit'] });
    if (child.stdout === null) throw new Error('no output');
    const [line] = await once(child.stdout, 'data');
    url = `http://127.0.0.1:${String(line).trim()}/`;
  });
  afterAll(() => {
    child.kill();
  });
  const remote = (headers: Record<string, string>): McpServer => ({ name: 'test', transport: 'http', url, headers });

  it('are called with the headers of the operator', async () => {
    const { call } = await open(remote({ 'x-key': 'secret' }));
    expect((await call('echo', { text: 'I say' })).content).toBe('I say ');
    await expect(open(remote({}))).rejects.toMatchObject({ code: 'setup_failed' });
  });

  it('have an error that names the server when it dies', async () => {
    const { call } = await open(remote({ 'x-key': 'secret' }));
    await expect(call('die')).rejects.toThrow(/the MCP server test/);
    await expect(call('echo', { text: 'x' })).rejects.toThrow(/the MCP server test/);
  });
});
