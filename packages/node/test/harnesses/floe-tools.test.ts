import { describe, expect, it } from 'vitest';
import type { HarnessAdapter } from '../../src/harnesses/harness.ts';
import { findHarness, harnessRegistry } from '../../src/harnesses/registry.ts';
import { agentOf, fileOf, launchOf, TOOL_SERVER } from './launch-context.ts';

const words = { name: 'words', transport: 'stdio', command: 'node', args: ['w.js'], env: { WORD: 'hush' } };
/** References to the variables that stand for a dollar sign in Claude Code, Gemini CLI and Qwen Code. */
const DOLLAR = '$' + '{FLOE_DOLLAR}';
const QUOTED_DOLLAR = '$' + '{FLOE_QUOTED_DOLLAR}';
/** Members of a server of Gemini CLI and Qwen Code. A call may take longer than the limits that a call can set for itself. */
const GEMINI = { trust: true, timeout: 3_660_000 };
const PROGRAM = `/.floe/${DOLLAR}mcp.js`;

const supported = [...harnessRegistry().values()].filter(({ features }) => features.includes('mcp_servers'));
const unsupported = [...harnessRegistry().values()].filter(
  ({ features, runsOnNode }) => !features.includes('mcp_servers') && !runsOnNode,
);

/** Returns the MCP servers by name that the adapter writes to its JSON file, which has them under `key`. */
function serversOf(name: string, file: string, key: string, input: object): Record<string, unknown> {
  return JSON.parse(fileOf(launchOf(findHarness(name), input), file))[key];
}

describe("floe's tools in the configuration of a harness", () => {
  it.each([
    [
      'claude_code',
      'claude-code-mcp.json',
      { type: 'stdio', command: '/.floe/node', args: [PROGRAM], env: { LANG: 'C', PRICE: `${DOLLAR}5` } },
    ],
    [
      'gemini_cli',
      '.gemini/settings.json',
      { command: '/.floe/node', args: [PROGRAM], env: { LANG: 'C', PRICE: `${QUOTED_DOLLAR}5` }, ...GEMINI },
    ],
    [
      'qwen_code',
      'qwen-code-settings.json',
      { command: '/.floe/node', args: [PROGRAM], env: { LANG: 'C', PRICE: `${DOLLAR}5` }, ...GEMINI },
    ],
    [
      'openhands',
      'mcp.json',
      { transport: 'stdio', command: '/.floe/node', args: ['/.floe/$mcp.js'], env: TOOL_SERVER.env },
    ],
  ])('are an MCP server of %s beside those of the task', (name, file, server) => {
    const servers = serversOf(name, file, 'mcpServers', { floe_tools: true, mcp_servers: [words] });
    expect(servers.floe).toEqual(server);
    expect(servers.words).toMatchObject({ command: 'node', env: { WORD: 'hush' } });
    expect(servers.words).not.toHaveProperty('timeout');
    expect(Object.keys(serversOf(name, file, 'mcpServers', { mcp_servers: [words] }))).toEqual(['words']);
  });

  it('are an MCP server of opencode beside those of the task', () => {
    const servers = serversOf('opencode', 'floe.json', 'mcp', { floe_tools: true, mcp_servers: [words] });
    expect(servers.floe).toEqual({
      type: 'local',
      command: TOOL_SERVER.command,
      environment: TOOL_SERVER.env,
      enabled: true,
      timeout: 3_660_000,
    });
    expect(servers.words).not.toHaveProperty('timeout');
    expect(serversOf('opencode', 'floe.json', 'mcp', {})).toEqual({});
  });

  it('are a required MCP server of codex beside those of the task', () => {
    const config = (input: object) => fileOf(launchOf(findHarness('codex'), input), 'config.toml');
    const text = config({ floe_tools: true, mcp_servers: [words] });
    expect(text).toContain(
      '[mcp_servers.floe]\ncommand = "/.floe/node"\nargs = [ "/.floe/$mcp.js" ]\nrequired = true\ntool_timeout_sec = 3660\n\n' +
        '[mcp_servers.floe.env]\nLANG = "C"\nPRICE = "$5"\n',
    );
    expect(text).toContain('[mcp_servers.words]\ncommand = "node"\nargs = [ "w.js" ]\nrequired = true\n\n');
    expect(config({ mcp_servers: [words] })).not.toContain('mcp_servers.floe');
  });
});

describe.each(supported.map((adapter): [string, HarnessAdapter] => [adapter.name, adapter]))('%s', (_, adapter) => {
  it("refuses an MCP server of the task with the name of floe's own", () => {
    const agent = agentOf(adapter, { floe_tools: true, mcp_servers: [words, { ...words, name: 'floe' }] });
    expect(() => adapter.checkAgent(agent)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: expect.stringContaining('agent.mcp_servers.1.name'),
      }),
    );
    expect(() => adapter.checkAgent({ ...agent, floe_tools: false })).not.toThrow();
    expect(() => adapter.checkAgent({ ...agent, mcp_servers: agent.mcp_servers.slice(0, 1) })).not.toThrow();
  });
});

describe.each(unsupported.map((adapter): [string, HarnessAdapter] => [adapter.name, adapter]))('%s', (_, adapter) => {
  it("refuses floe's tools, because it has no MCP servers", () => {
    const agent = agentOf(adapter, { floe_tools: true, ...(adapter.name === 'shell' ? { custom_shell: 'run' } : {}) });
    const issues = [expect.objectContaining({ path: 'agent.floe_tools' })];
    expect(() => adapter.checkAgent(agent)).toThrow(
      expect.objectContaining({ code: 'unsupported', details: expect.objectContaining({ issues }) }),
    );
    expect(() => adapter.checkAgent({ ...agent, floe_tools: false })).not.toThrow();
  });
});

it('the list of unsupported harnesses has every harness without MCP servers', () => {
  expect(unsupported.map(({ name }) => name).sort()).toEqual(['mini_swe_agent', 'pi', 'shell']);
});
