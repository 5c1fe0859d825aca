import type {
  BrowserResult,
  DirectoryListing,
  FileText,
  PythonResult,
  RunOptions,
  RuntimeTools,
  ShellResult,
  ToolProcess,
} from '@floe-rl/sandbox';
import type { Box } from '../tools/tool.ts';
import type { BoxRequest, ToolProgram } from './protocol.ts';

/** Sends an operation to the node and resolves with its result. Rejects as the operation, or with the reason of `signal`. */
type Send = (request: BoxRequest, signal?: AbortSignal) => Promise<unknown>;

/** Returns the sandbox of an episode, whose operations the node performs. */
export function remoteBox(workdir: string, send: Send): Box {
  let processes = 0;
  const open = <Result>(program: ToolProgram, options: object): ToolProcess<Result> => {
    const process = ++processes;
    // The node receives the operations in their order, so that the process is open when its first code arrives.
    const opened = send({ op: 'open', process, program, options });
    opened.catch(() => {});
    return remoteProcess<Result>(process, opened, send);
  };
  return {
    workdir,
    shell: (options = {}) => open<ShellResult>('shell', options),
    python: (options = {}) => open<PythonResult>('python', options),
    browser: (options = {}) => open<BrowserResult>('browser', options),
    readFile: (path, options, signal) => send({ op: 'read', path, options }, signal) as Promise<FileText>,
    writeFile: async (path, content, signal) => void (await send({ op: 'write', path, content }, signal)),
    editFile: (path, edit, signal) => send({ op: 'edit', path, edit }, signal) as Promise<number>,
    list: (path, signal) => send({ op: 'list', path }, signal) as Promise<DirectoryListing>,
  };
}

function remoteProcess<Result>(process: number, opened: Promise<unknown>, send: Send): ToolProcess<Result> {
  return {
    async run(code: string, options: RunOptions, signal: AbortSignal) {
      await opened;
      return (await send({ op: 'run', process, code, options }, signal)) as Result;
    },
    interrupt: () => void send({ op: 'interrupt', process }).catch(() => {}),
    type: (text) => void send({ op: 'type', process, text }).catch(() => {}),
    restart: async (signal) => void (await send({ op: 'restart', process }, signal)),
    close: async () => void (await send({ op: 'close', process }).catch(() => {})),
  };
}

/** Performs the operations of one episode's sandbox on the node. */
export class BoxOperations {
  private readonly open: (signal: AbortSignal) => Promise<RuntimeTools>;
  private readonly processes = new Map<number, ToolProcess<unknown>>();
  private tools: Promise<RuntimeTools> | null = null;

  /** `open` opens the tools of the sandbox, at the first operation. */
  constructor(open: (signal: AbortSignal) => Promise<RuntimeTools>) {
    this.open = open;
  }

  async perform(request: BoxRequest, signal: AbortSignal): Promise<unknown> {
    this.tools ??= this.open(signal);
    const tools = await this.tools;
    switch (request.op) {
      case 'read':
        return tools.readFile(request.path, request.options, signal);
      case 'write':
        return tools.writeFile(request.path, contentOf(request.content), signal);
      case 'edit':
        return tools.editFile(request.path, request.edit as Parameters<RuntimeTools['editFile']>[1], signal);
      case 'list':
        return tools.list(request.path, signal);
      case 'open':
        this.processes.set(request.process, tools[request.program](request.options));
        return null;
      case 'run':
        return this.processes.get(request.process)?.run(request.code, request.options as RunOptions, signal);
      case 'interrupt':
        return void this.processes.get(request.process)?.interrupt();
      case 'type':
        return void this.processes.get(request.process)?.type(request.text);
      case 'restart':
        return this.processes.get(request.process)?.restart(signal);
      case 'close':
        return this.processes.get(request.process)?.close();
    }
  }

  /** Ends all shells, Python processes and browsers. Never rejects. */
  async close(): Promise<void> {
    const tools = await this.tools?.catch(() => null);
    await tools?.close();
  }
}

/** A Buffer arrives from another process as a Uint8Array. */
function contentOf(content: string | Uint8Array): string | Buffer {
  return typeof content === 'string' ? content : Buffer.from(content);
}
