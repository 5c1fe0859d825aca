import { isRecord } from '@floe-rl/core';

/** Protocol versions of the Model Context Protocol that the server speaks, the latest first. */
const VERSIONS = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];
/** Error codes of JSON-RPC. */
const PARSE_ERROR = -32_700;
const INVALID_REQUEST = -32_600;
const METHOD_NOT_FOUND = -32_601;
const INVALID_PARAMS = -32_602;
const INTERNAL_ERROR = -32_603;
/** Maximum length in characters of a message. A longer message ends the server, because the server does not keep it to find its end. */
const MAX_MESSAGE = 64 * 1024 * 1024;

type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };
type Id = string | number;

export type McpContent =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly data: string; readonly mimeType: string };

export type McpTool = {
  readonly name: string;
  readonly description: string;
  /** JSON schema of the arguments. */
  readonly inputSchema: { readonly [name: string]: Json };
  /**
   * Runs the tool. `onCancel` registers a function that is called when the client cancels the call. Throws an {@link ArgumentError} for wrong
   * arguments.
   */
  call(args: Readonly<Record<string, unknown>>, onCancel: (cancel: () => void) => void): Promise<McpToolResult>;
};

export type McpToolResult = { readonly content: readonly McpContent[]; readonly isError: boolean };

/** The arguments of a tool are missing or of a wrong type. */
export class ArgumentError extends Error {}

class RpcError extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** A server of the Model Context Protocol with tools, for the stdio transport: messages of JSON-RPC 2.0, one in a line. */
export class McpServer {
  private readonly info: { readonly name: string; readonly version: string };
  private readonly tools: ReadonlyMap<string, McpTool>;
  private readonly write: (line: string) => void;
  private readonly running = new Map<Id, { cancel: () => void; isCancelled: boolean }>();
  private text = '';

  /** `write` sends a line to the client. */
  constructor(
    info: { readonly name: string; readonly version: string },
    tools: readonly McpTool[],
    write: (line: string) => void,
  ) {
    this.info = info;
    this.tools = new Map(tools.map((tool) => [tool.name, tool]));
    this.write = write;
  }

  /** Reads the next characters of the input. Throws an `Error` when a message is too long. */
  push(chunk: string): void {
    const lines = (this.text + chunk).split('\n');
    this.text = lines.pop() ?? '';
    if (this.text.length > MAX_MESSAGE) throw new Error(`a message is longer than ${MAX_MESSAGE} characters`);
    for (const line of lines) if (line.trim() !== '') this.receive(line);
  }

  private receive(line: string): void {
    let message: unknown;
    try {
      message = JSON.parse(line);
    } catch (cause) {
      this.fail(null, new RpcError(PARSE_ERROR, (cause as Error).message));
      return;
    }
    // Version 2025-03-26 allows batches; the responses may be sent one by one.
    for (const one of Array.isArray(message) ? message : [message]) this.handle(one);
  }

  private handle(message: unknown): void {
    if (!isRecord(message) || message.jsonrpc !== '2.0') {
      this.fail(null, new RpcError(INVALID_REQUEST, 'the message is not JSON-RPC 2.0'));
      return;
    }
    const { id, method } = message;
    const params = isRecord(message.params) ? message.params : {};
    // A message without a method is a response. The server sends no requests.
    if (typeof method !== 'string') {
      if (!('result' in message || 'error' in message)) this.fail(idOf(id), new RpcError(INVALID_REQUEST, 'no method'));
      return;
    }
    const known = idOf(id);
    if (known === null) {
      if (method === 'notifications/cancelled') this.cancel(params);
      return;
    }
    this.answer(known, method, params).then(
      (result) => {
        if (result !== null) this.send({ jsonrpc: '2.0', id: known, result });
      },
      (error: Error) => this.fail(known, error),
    );
  }

  /** Resolves with the result of a request; `null` when the request gets no answer. */
  private async answer(id: Id, method: string, params: Readonly<Record<string, unknown>>): Promise<object | null> {
    switch (method) {
      case 'initialize': {
        const { protocolVersion } = params;
        const version = VERSIONS.find((each) => each === protocolVersion) ?? VERSIONS[0];
        return { protocolVersion: version, capabilities: { tools: {} }, serverInfo: this.info };
      }
      case 'ping':
        return {};
      case 'tools/list':
        return { tools: [...this.tools.values()].map(({ call: _call, ...tool }) => tool) };
      case 'tools/call':
        return this.call(id, params);
      default:
        throw new RpcError(METHOD_NOT_FOUND, `there is no method ${method}`);
    }
  }

  private async call(id: Id, params: Readonly<Record<string, unknown>>): Promise<McpToolResult | null> {
    const tool = this.tools.get(String(params.name));
    if (tool === undefined) throw new RpcError(INVALID_PARAMS, `there is no tool ${String(params.name)}`);
    const args = params.arguments ?? {};
    if (!isRecord(args)) throw new RpcError(INVALID_PARAMS, 'the arguments are not an object');
    const entry = { cancel: () => {}, isCancelled: false };
    this.running.set(id, entry);
    try {
      const result = await tool.call(args, (cancel) => {
        entry.cancel = cancel;
      });
      return entry.isCancelled ? null : result;
    } catch (error) {
      if (entry.isCancelled) return null;
      if (error instanceof ArgumentError) throw new RpcError(INVALID_PARAMS, error.message);
      throw error;
    } finally {
      this.running.delete(id);
    }
  }

  private cancel({ requestId }: Readonly<Record<string, unknown>>): void {
    const known = idOf(requestId);
    const entry = known === null ? undefined : this.running.get(known);
    if (entry === undefined) return;
    entry.isCancelled = true;
    entry.cancel();
  }

  private fail(id: Id | null, error: Error): void {
    const code = error instanceof RpcError ? error.code : INTERNAL_ERROR;
    this.send({ jsonrpc: '2.0', id, error: { code, message: error.message } });
  }

  private send(message: object): void {
    this.write(`${JSON.stringify(message)}\n`);
  }
}

function idOf(id: unknown): Id | null {
  return typeof id === 'string' || typeof id === 'number' ? id : null;
}
