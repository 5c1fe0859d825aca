import { FloeError, messageOf } from '@floe-rl/core';
import type { McpServer } from '@floe-rl/core/schema';
import { z } from 'zod';
import { declarationOf } from '../checked-arguments.ts';
import { validatorOf } from '../json-schema.ts';
import { McpConnection, type McpTool } from '../mcp-connection.ts';
import type { AnyTool, JsonSchema } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

const configSchema = z.strictObject({
  server: z.string().min(1).describe("name of one of the node's MCP servers (plugins.mcp_servers)"),
  allow: z.array(z.string().min(1)).nullable().default(null).describe('tools that the agent gets; null for all'),
  deny: z.array(z.string().min(1)).default([]).describe('tools that the agent does not get'),
  prefix: z
    .string()
    .regex(/^[A-Za-z0-9_-]{0,32}$/)
    .default('')
    .describe('text before the name of each tool, where two servers have tools of one name'),
  timeout_seconds: z.number().gt(0).max(3_600).default(120).describe('time limit of a call'),
  max_schema_kb: z
    .number()
    .gt(0)
    .max(1_024)
    .default(64)
    .describe('maximum size in KiB of the declarations of all tools, which are part of every prompt'),
});
type Config = z.output<typeof configSchema>;

/** Time in milliseconds that a call may take longer than its limit, so that the limit of the connection counts first. */
const MARGIN_MS = 5_000;
/** Maximum number of characters of what a server says about its tools. */
const MAX_INSTRUCTION_CHARS = 8_000;
const MAX_NAME_CHARS = 64;

/**
 * The tools of an MCP server of the node's operator. A task names the server and never its address or command, because the connection is
 * made on the node, outside of sandboxes. Each session has a connection of its own.
 */
export const mcpToolset = defineToolset({
  name: 'mcp',
  description: "the tools of one of the node's MCP servers",
  config: configSchema,
  scope: 'session',
  async open(config, { mcpServers }, signal) {
    const connection = await McpConnection.open(serverOf(config.server, mcpServers), signal);
    try {
      const tools = chosenTools(config, connection.tools).map((tool) => toolOf(tool, config, connection));
      refuseLarge(config, tools);
      const instructions = connection.instructions?.slice(0, MAX_INSTRUCTION_CHARS) ?? '';
      return { tools, ...(instructions === '' ? {} : { instructions }), close: () => connection.close() };
    } catch (error) {
      await connection.close();
      throw error;
    }
  },
});

function serverOf(name: string, servers: readonly McpServer[]): McpServer {
  const server = servers.find((one) => one.name === name);
  if (server !== undefined) return server;
  const known = servers.map((one) => one.name);
  throw refusal(`the node has no MCP server ${name}; it has: ${known.join(', ') || 'none'}`, { known });
}

function chosenTools({ server, allow, deny }: Config, tools: readonly McpTool[]): McpTool[] {
  const names = new Set(tools.map(({ name }) => name));
  const unknown = (allow ?? []).filter((name) => !names.has(name));
  if (unknown.length > 0) {
    throw refusal(`the MCP server ${server} has no tool ${unknown.join(', ')}; it has: ${[...names].join(', ')}`);
  }
  return tools.filter(({ name }) => (allow === null || allow.includes(name)) && !deny.includes(name));
}

function toolOf(
  { name, description, inputSchema }: McpTool,
  { server, prefix, timeout_seconds: seconds }: Config,
  connection: McpConnection,
): AnyTool {
  const parameters = inputSchema as JsonSchema;
  try {
    validatorOf(parameters);
  } catch (error) {
    const message = messageOf(error);
    throw refusal(`the MCP server ${server}: the schema of ${name} is invalid, so it must be in \`deny\`: ${message}`);
  }
  return {
    // Engines take only these characters in the name of a tool.
    name: `${prefix}${name.replace(/[^A-Za-z0-9_-]/g, '_')}`.slice(0, MAX_NAME_CHARS),
    description,
    effect: 'environment',
    parameters,
    timeoutMs: seconds * 1000 + MARGIN_MS,
    run: (args, _, signal) => connection.call(name, args, seconds * 1000, signal),
  };
}

function refuseLarge({ server, max_schema_kb: maxKb }: Config, tools: readonly AnyTool[]): void {
  const sizes = tools.map((tool) => ({
    name: tool.name,
    bytes: Buffer.byteLength(JSON.stringify(declarationOf(tool))),
  }));
  const total = sizes.reduce((sum, { bytes }) => sum + bytes, 0);
  if (total <= maxKb * 1024) return;
  const largest = sizes.sort((a, b) => b.bytes - a.bytes).slice(0, 3);
  const names = largest.map(({ name, bytes }) => `${name} (${Math.ceil(bytes / 1024)} KiB)`).join(', ');
  const size = `${Math.ceil(total / 1024)} KiB, more than ${maxKb} KiB`;
  throw refusal(`the tools of the MCP server ${server} take ${size}; choose with \`allow\`. The largest: ${names}`);
}

function refusal(message: string, details: object = {}): FloeError {
  return new FloeError('unsupported', `agent.settings.tools: ${message}`, { path: 'agent.settings.tools', ...details });
}
