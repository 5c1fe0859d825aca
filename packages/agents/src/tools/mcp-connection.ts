import { FloeError, messageOf, raceAbort } from '@floe-rl/core';
import type { Content, ContentPart, McpServer } from '@floe-rl/core/schema';
import type { Client } from '@modelcontextprotocol/client';
import { imageProblem } from '../image-url.ts';
import { ToolError, type ToolResult } from './tool.ts';

/** Maximum number of tools of a server. */
const MAX_TOOLS = 1_000;
/** Maximum number of characters of an image in base64 that the model gets. */
const MAX_IMAGE_CHARS = 4 * 1024 * 1024;
/** Time limit in milliseconds of the first messages to a server. */
const CONNECT_MS = 30_000;

/** A tool as its server declares it. */
export type McpTool = { readonly name: string; readonly description: string; readonly inputSchema: object };

/** A connection to an MCP server, for one session. */
export class McpConnection {
  readonly tools: readonly McpTool[];
  /** What the server says about its tools; `undefined` for nothing. */
  readonly instructions: string | undefined;
  private readonly client: Client;
  private readonly name: string;
  private hasEnded = false;

  private constructor(name: string, client: Client, tools: readonly McpTool[]) {
    this.name = name;
    this.client = client;
    this.tools = tools;
    this.instructions = client.getInstructions();
    client.onclose = () => {
      this.hasEnded = true;
    };
  }

  /** Connects to a server or starts it, and lists its tools. Rejects with `setup_failed`, which names the server, or with the reason of `signal`. */
  static async open(server: McpServer, signal: AbortSignal): Promise<McpConnection> {
    const { Client } = await import('@modelcontextprotocol/client');
    const client = new Client({ name: 'floe', version: '1' });
    try {
      const transport = await transportOf(server);
      await raceAbort(client.connect(transport, { signal, timeout: CONNECT_MS }), signal);
      return new McpConnection(server.name, client, await listTools(client, signal));
    } catch (error) {
      await client.close().catch(() => {});
      signal.throwIfAborted();
      const message = `the MCP server ${server.name} cannot be used: ${messageWithCause(error)}`;
      throw new FloeError('setup_failed', message, { server: server.name }, error);
    }
  }

  /** Calls a tool. Rejects with a {@link ToolError} for all that the server does wrong, or with the reason of `signal`. */
  async call(name: string, args: unknown, timeoutMs: number, signal: AbortSignal): Promise<ToolResult> {
    if (this.hasEnded) throw new ToolError('unavailable', `the MCP server ${this.name} has ended`);
    try {
      // The loop has checked that the arguments are an object.
      const request = { name, arguments: args as Record<string, unknown> };
      const options = { signal, timeout: timeoutMs, maxTotalTimeout: timeoutMs };
      const { content, structuredContent, isError } = await this.client.callTool(request, options);
      const parts = content.map(partOf);
      if (parts.length === 0 && structuredContent !== undefined) {
        parts.push({ type: 'text', text: JSON.stringify(structuredContent) });
      }
      return { content: joined(parts), isError: isError === true };
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ToolError) throw error;
      if (this.hasEnded) throw new ToolError('unavailable', `the MCP server ${this.name} has ended during the call`);
      throw new ToolError('failed', `the MCP server ${this.name}: ${messageWithCause(error)}`);
    }
  }

  /** Ends the connection and a server that it started. Never rejects. */
  async close(): Promise<void> {
    await this.client.close().catch(() => {});
  }
}

async function transportOf(server: McpServer): Promise<Parameters<Client['connect']>[0]> {
  if (server.transport === 'stdio') {
    const { StdioClientTransport, getDefaultEnvironment } = await import('@modelcontextprotocol/client/stdio');
    const { command, args, env } = server;
    return new StdioClientTransport({ command, args, env: { ...getDefaultEnvironment(), ...env } });
  }
  const { SSEClientTransport, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const Transport = server.transport === 'sse' ? SSEClientTransport : StreamableHTTPClientTransport;
  return new Transport(new URL(server.url), { requestInit: { headers: server.headers } });
}

/** Lists the tools of all pages. The client itself ends a list that has too many. */
async function listTools(client: Client, signal: AbortSignal): Promise<McpTool[]> {
  const { tools } = await client.listTools({}, { signal, timeout: CONNECT_MS });
  if (tools.length > MAX_TOOLS) throw new Error(`it has more than ${MAX_TOOLS} tools`);
  return tools.map(({ name, description = '', inputSchema }) => ({ name, description, inputSchema }));
}

type McpContent = Awaited<ReturnType<Client['callTool']>>['content'][number];

function partOf(content: McpContent): ContentPart {
  const text = (value: string): ContentPart => ({ type: 'text', text: value });
  switch (content.type) {
    case 'text':
      return text(content.text);
    case 'image':
      if (content.data.length > MAX_IMAGE_CHARS) return text('[an image is left out, because it is too large]');
      return (
        imageOf(`data:${content.mimeType};base64,${content.data}`) ??
        text('[an image is left out, because it is invalid]')
      );
    case 'resource':
      return text('text' in content.resource ? content.resource.text : `[file ${content.resource.uri}]`);
    case 'resource_link':
      return text(`[link ${content.uri}]`);
    default:
      return text(`[${content.type} is left out]`);
  }
}

function imageOf(url: string): ContentPart | null {
  const part = { type: 'image_url' as const, image_url: { url } };
  return imageProblem([part]) === null ? part : null;
}

/** Returns a text where there are no images. */
function joined(parts: readonly ContentPart[]): Content {
  const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []));
  return texts.length === parts.length ? texts.join('\n') : [...parts];
}

function messageWithCause(error: unknown): string {
  const message = messageOf(error);
  const cause = error instanceof Error && error.cause instanceof Error ? ` (${error.cause.message})` : '';
  return `${message}${cause}`.slice(0, 1_000);
}
