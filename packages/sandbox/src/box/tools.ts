import { randomBytes } from 'node:crypto';
import { ToolError } from '../api/tools.ts';
import { browserDialect } from './browser.ts';
import { type Dialect, type Ending, Interpreter } from './interpreter.ts';
import type { ProcessSettings } from './programs.ts';
import { pythonDialect } from './python.ts';
import { shellDialect } from './shell.ts';
import { TextFiles } from './text-files.ts';
import type { ToolProcessSpec, ToolReply, ToolRequest, ToolRunLimits } from './tool-messages.ts';

/** Maximum number of shells and Python processes that are open at the same time. */
const MAX_PROCESSES = 64;
/** Name of the environment variable that marks all processes of a shell or of Python. */
const TOOL_MARK = 'FLOE_TOOL_MARK';
const EMPTY = Buffer.alloc(0);

export type BoxToolsOptions = {
  /** Directory to which the operations on files are confined; `null` for the whole sandbox. */
  readonly root: string | null;
  /** Environment variables that every process gets. With them the gateway finds the processes after this process has died. */
  readonly marks: Readonly<Record<string, string>>;
  /** Called when the last shell or Python process has been closed. The close waits for the result. Must not reject. */
  readonly onIdle: () => Promise<void>;
};

/** A shell or a Python process. It is started by its first run, and by the first run after it has ended. */
export class ToolSession {
  private readonly spec: ToolProcessSpec;
  private readonly options: BoxToolsOptions;
  private interpreter: Interpreter | null = null;
  private isBusy = false;
  private isClosed = false;

  constructor(spec: ToolProcessSpec, options: BoxToolsOptions) {
    this.spec = spec;
    this.options = options;
  }

  /** Runs code. Rejects with a {@link ToolError} when other code is running or the process cannot be started. */
  async run(code: Buffer, limits: ToolRunLimits): Promise<Ending & { readonly isFirst: boolean }> {
    if (this.isBusy) throw new ToolError('busy', 'the last command is still running');
    if (code.includes(0)) throw new ToolError('failed', 'the code contains a NUL character');
    this.isBusy = true;
    try {
      const isFirst = this.interpreter === null || this.interpreter.hasEnded;
      const interpreter = isFirst ? await this.start() : this.interpreter;
      if (interpreter === null || this.isClosed) throw new ToolError('failed', 'the process has been closed');
      const ending = await interpreter.execute(code, limits);
      if (ending.processEnd !== null) await interpreter.ended;
      return { ...ending, isFirst };
    } finally {
      this.isBusy = false;
    }
  }

  interrupt(): void {
    this.interpreter?.interrupt();
  }

  cancel(): void {
    this.interpreter?.cancel();
  }

  type(text: Buffer): void {
    this.interpreter?.type(text);
  }

  /** Ends the process and everything that it started. */
  async restart(): Promise<void> {
    await this.interpreter?.close();
    this.interpreter = null;
  }

  /** Does the same as {@link restart}, and no other process can be started afterwards. */
  async close(): Promise<void> {
    this.isClosed = true;
    await this.interpreter?.close();
  }

  private async start(): Promise<Interpreter> {
    const mark = randomBytes(9).toString('base64url');
    const settings = {
      ...this.spec,
      marks: { ...this.options.marks, [TOOL_MARK]: mark },
      marker: `${TOOL_MARK}=${mark}`,
    };
    const interpreter = await Interpreter.spawn(dialectOf(this.spec.kind, settings));
    this.interpreter = interpreter;
    if (this.isClosed) await interpreter.close();
    await interpreter.setUp();
    return interpreter;
  }
}

function dialectOf(kind: ToolProcessSpec['kind'], settings: ProcessSettings): Dialect {
  if (kind === 'python') return pythonDialect(settings);
  return kind === 'browser' ? browserDialect(settings) : shellDialect(settings, kind === 'terminal');
}

/** Performs the requests of a gateway about tools. Runs in the sandbox. */
export class BoxTools {
  private readonly options: BoxToolsOptions;
  private readonly reply: (message: ToolReply, body?: Buffer) => void;
  private readonly files: TextFiles;
  private readonly sessions = new Map<number, ToolSession>();

  constructor(options: BoxToolsOptions, reply: (message: ToolReply, body?: Buffer) => void) {
    this.options = options;
    this.reply = reply;
    this.files = new TextFiles(options.root);
  }

  /** Whether no shell and no Python process is open. */
  get isIdle(): boolean {
    return this.sessions.size === 0;
  }

  /** Kills all processes without waiting for their end. */
  killAll(): void {
    for (const session of this.sessions.values()) void session.close();
  }

  /** Performs a request and replies when it is done. Never throws. */
  receive(request: ToolRequest, body: Buffer): void {
    switch (request.type) {
      case 'tool_interrupt':
        this.sessions.get(request.process)?.interrupt();
        break;
      case 'tool_cancel':
        this.sessions.get(request.process)?.cancel();
        break;
      case 'tool_type':
        this.sessions.get(request.process)?.type(body);
        break;
      default: {
        const { id } = request;
        this.perform(request, body).catch((error: Error) => {
          const reason = error instanceof ToolError ? error.reason : 'failed';
          this.reply({ type: 'tool_failed', id, reason, message: error.message });
        });
      }
    }
  }

  private async perform(request: Extract<ToolRequest, { readonly id: number }>, body: Buffer): Promise<void> {
    const { id } = request;
    switch (request.type) {
      case 'tool_ping':
        break;
      case 'tool_open':
        if (this.sessions.size >= MAX_PROCESSES) {
          throw new ToolError('unavailable', `at most ${MAX_PROCESSES} shells and Python processes can be open`);
        }
        this.sessions.set(request.process, new ToolSession(request.spec, this.options));
        break;
      case 'tool_run':
        return this.run(id, this.session(request.process), body, request.limits);
      case 'tool_restart':
        await this.session(request.process).restart();
        break;
      case 'tool_close':
        await this.sessions.get(request.process)?.close();
        this.sessions.delete(request.process);
        if (this.isIdle) await this.options.onIdle();
        break;
      case 'tool_read': {
        const { content, ...rest } = await this.files.read(request.path, request);
        this.reply({ type: 'tool_text', id, ...rest }, content);
        return;
      }
      case 'tool_write':
        await this.files.write(request.path, body);
        break;
      case 'tool_edit': {
        const [oldText, newText] = [body.subarray(0, request.oldBytes), body.subarray(request.oldBytes)];
        const count = await this.files.edit(request.path, oldText, newText, request.replacesAll);
        this.reply({ type: 'tool_edited', id, count });
        return;
      }
      case 'tool_list': {
        const { entries, isPartial } = await this.files.list(request.path);
        this.reply({ type: 'tool_entries', id, isPartial }, Buffer.from(JSON.stringify(entries)));
        return;
      }
    }
    this.reply({ type: 'tool_done', id });
  }

  private async run(id: number, session: ToolSession, code: Buffer, limits: ToolRunLimits): Promise<void> {
    const { stdout, stderr, detail = EMPTY, ...ending } = await session.run(code, limits);
    const [stdoutBytes, stderrBytes] = [stdout.length, stderr.length];
    this.reply(
      { type: 'tool_ended', id, ...ending, stdoutBytes, stderrBytes },
      Buffer.concat([stdout, stderr, detail]),
    );
  }

  private session(number: number): ToolSession {
    const session = this.sessions.get(number);
    if (session === undefined) throw new ToolError('failed', 'the process is not open');
    return session;
  }
}
