import { posix } from 'node:path';
import { type Clock, FloeError, MIB, onAbort, scheduleAfterInput } from '@floe-rl/core';
import { z } from 'zod';
import {
  type BrowserOptions,
  type BrowserResult,
  type BrowserView,
  type DirectoryListing,
  type FileEdit,
  type FileText,
  type PythonOptions,
  type PythonResult,
  type ReadOptions,
  type RunOptions,
  type RunResult,
  type RuntimeTools,
  type ShellOptions,
  type ShellResult,
  ToolError,
  type ToolProcess,
  type ToolsLoss,
} from '../api/tools.ts';
import { checkEnvironment, refuseNul } from '../workspace/environment.ts';
import type { BoxConnection, BoxEnd, ToolAnswer } from './connection.ts';
import { Heartbeat } from './heartbeat.ts';
import { type DirectoryEntry, MAX_ENTRIES, type PythonOutcome, type ToolProcessSpec } from './tool-messages.ts';

/** Maximum length in bytes of code to run, and of a file to write. */
const MAX_CODE_BYTES = MIB;
const MAX_FILE_BYTES = 16 * MIB;
/** Maximum number of bytes of a file that are read at once. */
const MAX_READ_BYTES = MIB;
/**
 * Maximum time in milliseconds for a reply of the box server, in addition to the time limit of code that it runs. It includes the start of
 * the process. After this time the box server is ended, because an agent can stop it.
 */
const REPLY_MS = 75_000;
/** Maximum time in milliseconds for the end of code or a process that the box server was asked to end. */
const END_MS = 5_000;

const entriesSchema: z.ZodType<DirectoryEntry[]> = z
  .array(
    z.strictObject({
      name: z.string().max(4_096),
      type: z.enum(['file', 'directory', 'link', 'other']),
      bytes: z.int().min(0).nullable(),
    }),
  )
  .max(MAX_ENTRIES);

const outcomeSchema: z.ZodType<PythonOutcome> = z.strictObject({
  result: z.string().nullable(),
  error: z.string().nullable(),
  images: z.array(z.base64()),
  omitted: z.int().min(0),
});

const viewSchema: z.ZodType<BrowserView> = z.strictObject({
  text: z.string(),
  image: z.strictObject({ type: z.enum(['image/png', 'image/jpeg']), data: z.base64() }).nullable(),
  failed: z.boolean(),
});

export type ToolClientParts = {
  readonly connection: BoxConnection;
  readonly clock: Clock;
  readonly workdir: string;
  /** Environment variables of every shell and Python process. */
  readonly env: Readonly<Record<string, string>>;
  /** Program and arguments to which the command line of each process is appended. */
  readonly prefix: readonly string[];
  readonly maxOutputBytes: number;
  readonly onActivity: (() => void) | undefined;
  /** Ends a box server that does not respond. Resolves when it has ended. Must not reject. */
  readonly end: () => Promise<void>;
  /** Ends a box server whose connection is lost, and returns how it ended. Must not reject. */
  readonly explainEnd: () => Promise<BoxEnd>;
  /** Called once, when all tools have been closed. Must not reject. */
  readonly release: () => Promise<void>;
};

/** A reply of a run. */
type Ended = Extract<ToolAnswer['reply'], { readonly type: 'tool_ended' }>;

/** The gateway's side of the tools in a sandbox. */
export class BoxToolClient implements RuntimeTools {
  private readonly parts: ToolClientParts;
  private readonly processes = new Set<ToolProcess<unknown>>();
  private readonly heartbeat: Heartbeat;
  private closing: Promise<void> | null = null;
  /** Whether the box server has received a request that runs code or works on files. */
  private wasUsed = false;
  private explaining: Promise<ToolsLoss> | null = null;
  private lostBy: ToolsLoss | null = null;

  constructor(parts: ToolClientParts) {
    this.parts = parts;
    const { clock, connection, end } = parts;
    this.heartbeat = new Heartbeat(clock, connection, (seconds) => {
      connection.lose(`it has not responded for ${seconds} s`);
      void end();
    });
  }

  get loss(): ToolsLoss | null {
    return this.lostBy;
  }

  shell({ pty = false, cwd, env }: ShellOptions = {}): ToolProcess<ShellResult> {
    const kind = pty ? 'terminal' : 'shell';
    return this.open({ kind, program: null, cwd, env }, (common, { exitCode, signal }) => ({
      ...common,
      exitCode,
      signal,
    }));
  }

  python({ program, cwd, env }: PythonOptions = {}): ToolProcess<PythonResult> {
    return this.open({ kind: 'python', program: program ?? null, cwd, env }, (common, _ended, detail) => {
      // A process that has ended reports no outcome.
      if (detail.length === 0) return { ...common, result: null, error: null, images: [], omitted: 0 };
      return { ...common, ...this.parse(outcomeSchema, detail) };
    });
  }

  browser({ program }: BrowserOptions = {}): ToolProcess<BrowserResult> {
    const spec = { kind: 'browser', program: program ?? null, cwd: '.', env: {} } as const;
    return this.open(spec, (common, _ended, detail) => {
      return { ...common, view: detail.length === 0 ? null : this.parse(viewSchema, detail) };
    });
  }

  readFile(path: string, options: ReadOptions, signal: AbortSignal): Promise<FileText> {
    return this.explained(signal, () => this.read(path, options, signal));
  }

  writeFile(path: string, content: string | Buffer, signal: AbortSignal): Promise<void> {
    return this.explained(signal, () => this.write(path, content, signal));
  }

  editFile(path: string, edit: FileEdit, signal: AbortSignal): Promise<number> {
    return this.explained(signal, () => this.edit(path, edit, signal));
  }

  list(path: string, signal: AbortSignal): Promise<DirectoryListing> {
    return this.explained(signal, () => this.entries(path, signal));
  }

  close(): Promise<void> {
    this.closing ??= this.closeAll();
    return this.closing;
  }

  /** Does work for the agent. When it fails because the box server is lost, first determines the cause of the loss. */
  private async explained<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      signal.throwIfAborted();
      if (!FloeError.is(error) || error.details.box !== 'lost') throw error;
      this.explaining ??= this.explainLoss(error);
      throw (await this.explaining).error;
    }
  }

  private async explainLoss({ code, message, details }: FloeError): Promise<ToolsLoss> {
    const { wasUsed } = this;
    const { byAgent, killedBy } = await this.parts.explainEnd();
    const limit = killedBy === null ? '' : `; a command exceeded the limit on ${killedBy}`;
    const error = new FloeError(code, `${message}${limit}`, { ...details, killed_by: killedBy });
    this.lostBy = { error, byAgent, wasUsed };
    return this.lostBy;
  }

  private async read(path: string, options: ReadOptions, signal: AbortSignal): Promise<FileText> {
    const { firstLine = 1, lineCount = null } = options;
    const maxBytes = MAX_READ_BYTES;
    const asked = { type: 'tool_read', path: this.resolve(path), firstLine, lineCount, maxBytes } as const;
    const { reply, content } = await this.ask(asked, signal);
    if (reply.type !== 'tool_text') throw this.unexpected(reply);
    const { nextLine, isCut } = reply;
    return { text: content.toString(), nextLine, isCut };
  }

  private async write(path: string, content: string | Buffer, signal: AbortSignal): Promise<void> {
    const bytes = typeof content === 'string' ? Buffer.from(content) : content;
    refuseLong('the content', bytes, MAX_FILE_BYTES);
    const { reply } = await this.ask({ type: 'tool_write', path: this.resolve(path) }, signal, bytes);
    if (reply.type !== 'tool_done') throw this.unexpected(reply);
  }

  private async edit(path: string, edit: FileEdit, signal: AbortSignal): Promise<number> {
    const [oldText, newText] = [Buffer.from(edit.oldText), Buffer.from(edit.newText)];
    const body = Buffer.concat([oldText, newText]);
    refuseLong('the text', body, MAX_FILE_BYTES);
    const replacesAll = edit.replacesAll ?? false;
    const asked = { type: 'tool_edit', path: this.resolve(path), oldBytes: oldText.length, replacesAll } as const;
    const { reply } = await this.ask(asked, signal, body);
    if (reply.type !== 'tool_edited') throw this.unexpected(reply);
    return reply.count;
  }

  private async entries(path: string, signal: AbortSignal): Promise<DirectoryListing> {
    const { reply, content } = await this.ask({ type: 'tool_list', path: this.resolve(path) }, signal);
    if (reply.type !== 'tool_entries') throw this.unexpected(reply);
    return { entries: this.parse(entriesSchema, content), isPartial: reply.isPartial };
  }

  private async closeAll(): Promise<void> {
    await Promise.all([...this.processes].map((process) => process.close()));
    await this.parts.release();
  }

  private open<Result>(
    { kind, program, cwd, env }: Pick<ToolProcessSpec, 'kind' | 'program'> & Pick<ShellOptions, 'cwd' | 'env'>,
    resultOf: (common: RunResult, ended: Ended, detail: Buffer) => Result,
  ): ToolProcess<Result> {
    const { parts } = this;
    const all = { ...parts.env, ...env };
    checkEnvironment(all);
    const spec = { kind, program, cwd: this.resolve(cwd ?? '.'), env: all, prefix: parts.prefix };
    const number = parts.connection.newProcessNumber();
    let opened: Promise<unknown> | null = null;
    let closed: Promise<void> | null = null;
    const process: ToolProcess<Result> = {
      run: (code, options, signal) =>
        this.explained(signal, async () => {
          if (closed !== null) throw new ToolError('failed', 'the process has been closed');
          opened ??= this.ask({ type: 'tool_open', process: number, spec }, signal);
          await opened.catch((error: unknown) => {
            opened = null;
            throw error;
          });
          return this.run(number, code, options, signal, resultOf);
        }),
      interrupt: () => parts.connection.notifyTools({ type: 'tool_interrupt', process: number }),
      type: (text) => parts.connection.notifyTools({ type: 'tool_type', process: number }, Buffer.from(text)),
      restart: (signal) =>
        this.explained(signal, async () => {
          if (opened !== null) await this.ask({ type: 'tool_restart', process: number }, signal);
        }),
      close: () => {
        closed ??= opened === null ? Promise.resolve() : this.closeProcess(number);
        this.processes.delete(process);
        return closed;
      },
    };
    this.processes.add(process);
    return process;
  }

  private async run<Result>(
    number: number,
    code: string,
    options: RunOptions,
    signal: AbortSignal,
    resultOf: (common: RunResult, ended: Ended, detail: Buffer) => Result,
  ): Promise<Result> {
    const { clock, connection, onActivity } = this.parts;
    signal.throwIfAborted();
    const body = Buffer.from(code);
    refuseLong('the code', body, MAX_CODE_BYTES);
    const limits = {
      timeoutMs: options.timeoutMs,
      maxOutputBytes: Math.min(options.maxOutputBytes ?? this.parts.maxOutputBytes, this.parts.maxOutputBytes),
      killsRest: options.killsRest ?? false,
    };
    const startedMs = clock.monotonicMs();
    onActivity?.();
    const cancel = (): void => connection.notifyTools({ type: 'tool_cancel', process: number });
    const asked = this.request({ type: 'tool_run', process: number, limits }, body);
    const { reply, content } = await this.answer(asked, limits.timeoutMs + REPLY_MS, signal, cancel);
    onActivity?.();
    if (reply.type !== 'tool_ended') throw this.unexpected(reply);
    const { stdoutBytes, stderrBytes, droppedBytes, timedOut, isFirst, processEnd } = reply;
    const outputBytes = stdoutBytes + stderrBytes;
    const common = {
      stdout: content.toString('utf8', 0, stdoutBytes),
      stderr: content.toString('utf8', stdoutBytes, outputBytes),
      ...{ droppedBytes, timedOut, isFirst, processEnd },
      wallMs: clock.monotonicMs() - startedMs,
    };
    return resultOf(common, reply, content.subarray(outputBytes));
  }

  private async ask(
    request: Parameters<BoxConnection['askTools']>[0],
    signal: AbortSignal,
    body?: Buffer,
  ): Promise<ToolAnswer> {
    signal.throwIfAborted();
    if (this.closing !== null) throw new ToolError('failed', 'the tools have been closed');
    return this.answer(this.request(request, body), REPLY_MS, signal);
  }

  private request(request: Parameters<BoxConnection['askTools']>[0], body?: Buffer): Promise<ToolAnswer> {
    const { connection } = this.parts;
    const isUse = request.type !== 'tool_open' && request.type !== 'tool_restart';
    this.wasUsed ||= isUse && !connection.hasEnded;
    return connection.askTools(request, body);
  }

  /**
   * Waits for an answer. When `signal` aborts, calls `cancel` and waits until the work has ended. Ends the box server when it does not answer
   * in time.
   */
  private async answer(
    asked: Promise<ToolAnswer>,
    limitMs: number,
    signal: AbortSignal,
    cancel: () => void = () => {},
  ): Promise<ToolAnswer> {
    const { clock, end } = this.parts;
    const late = scheduleAfterInput(clock, limitMs, () => void end());
    let cancelEnd = (): void => {};
    const release = onAbort(signal, () => {
      cancel();
      cancelEnd = scheduleAfterInput(clock, END_MS, () => void end());
    });
    try {
      const answer = await this.heartbeat.during(asked);
      signal.throwIfAborted();
      if (answer.reply.type === 'tool_failed') throw new ToolError(answer.reply.reason, answer.reply.message);
      return answer;
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    } finally {
      late();
      release();
      cancelEnd();
    }
  }

  private async closeProcess(number: number): Promise<void> {
    const { clock, connection, end } = this.parts;
    const late = scheduleAfterInput(clock, END_MS, () => void end());
    await connection.askTools({ type: 'tool_close', process: number }).catch(() => {});
    late();
  }

  private resolve(path: string): string {
    refuseNul('the path', [path]);
    return posix.resolve(this.parts.workdir, path);
  }

  /** Parses data of the box server. When it is not valid, ends the connection, because an agent has taken over the box server. */
  private parse<T>(schema: z.ZodType<T>, data: Buffer): T {
    try {
      return schema.parse(JSON.parse(data.toString()));
    } catch {
      throw this.unexpected({ type: 'data that is not valid' });
    }
  }

  private unexpected({ type }: { readonly type: string }): FloeError {
    this.parts.connection.close();
    return new FloeError('runtime_failed', `the box server of the sandbox answered with ${type}`, { box: 'lost' });
  }
}

function refuseLong(what: string, bytes: Buffer, maxBytes: number): void {
  if (bytes.length > maxBytes) throw new ToolError('too_large', `${what} is longer than ${maxBytes} bytes`);
}
