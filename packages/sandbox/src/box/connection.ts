import { createReadStream } from 'node:fs';
import { chmod, type FileHandle, open, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { basename, dirname } from 'node:path';
import { type Clock, FloeError, KIB, MIB, PendingRequests, raceAbort, scheduleAfterInput } from '@floe-rl/core';
import { z } from 'zod';
import { PROCESS_ENDS, TOOL_FAILURES } from '../api/tools.ts';
import { RemoteChildren } from '../spawn/remote-children.ts';
import type { HelperRequest, SpawnedProcess, SpawnRequest } from '../spawn/spawner.ts';
import { encodeFrame, type Frame, FrameReader } from './frames.ts';
import type { BoxReply, BoxRequest, FileOwner, FileReply, FileRequest } from './messages.ts';
import { MAX_OUTCOME_BYTES, type ToolReply, type ToolRequest } from './tool-messages.ts';
import type { SandboxUser } from './users.ts';

/** Maximum length in bytes of the header of a reply. The longest is the first line of a command's output. */
const REPLY_HEADER_BYTES = 512 * KIB;

/** Maximum time in milliseconds between the first and the last byte of a message of the box server. */
const FRAME_MS = 30_000;

/** Maximum length in bytes of the path of a Unix socket on Linux. Node cuts a longer one off without an error. */
const MAX_SOCKET_PATH_BYTES = 107;

const idSchema = z.int().min(0);
const countSchema = z.int().min(0);
const exitCodeSchema = z.int().min(0).max(255).nullable();
const signalSchema = z
  .string()
  .regex(/^SIG[A-Z0-9]{1,10}$/)
  .nullable();

/** The replies of a box server. They are validated, because an agent may have taken over the box server of its sandbox. */
const replySchema: z.ZodType<BoxReply> = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('ready'),
    environment: z.record(z.string(), z.string()),
    user: z.strictObject({ uid: idSchema, gid: idSchema, name: z.string().nullable() }).nullable(),
  }),
  z.strictObject({ type: z.literal('started'), id: idSchema, pid: z.int().min(1) }),
  z.strictObject({ type: z.literal('failed'), id: idSchema, message: z.string() }),
  z.strictObject({ type: z.literal('output'), id: idSchema }),
  z.strictObject({ type: z.literal('line'), id: idSchema, line: z.string() }),
  z.strictObject({
    type: z.literal('done'),
    id: idSchema,
    stdoutBytes: countSchema,
    result: z.strictObject({
      exitCode: exitCodeSchema,
      signal: signalSchema,
      droppedBytes: countSchema,
      killedBy: z.enum(['memory', 'processes']).nullable(),
    }),
  }),
  z.strictObject({ type: z.literal('file_done'), id: idSchema }),
  z.strictObject({ type: z.literal('file_absent'), id: idSchema }),
  z.strictObject({ type: z.literal('file_too_large'), id: idSchema }),
  z.strictObject({ type: z.literal('file_failed'), id: idSchema, message: z.string() }),
  z.strictObject({ type: z.literal('tool_done'), id: idSchema }),
  z.strictObject({
    type: z.literal('tool_failed'),
    id: idSchema,
    reason: z.enum(TOOL_FAILURES),
    message: z.string(),
  }),
  z.strictObject({
    type: z.literal('tool_ended'),
    id: idSchema,
    exitCode: exitCodeSchema,
    signal: signalSchema,
    droppedBytes: countSchema,
    timedOut: z.boolean(),
    isFirst: z.boolean(),
    processEnd: z.enum(PROCESS_ENDS).nullable(),
    stdoutBytes: countSchema,
    stderrBytes: countSchema,
  }),
  z.strictObject({
    type: z.literal('tool_text'),
    id: idSchema,
    nextLine: z.int().min(1).nullable(),
    isCut: z.boolean(),
  }),
  z.strictObject({ type: z.literal('tool_edited'), id: idSchema, count: countSchema }),
  z.strictObject({ type: z.literal('tool_entries'), id: idSchema, isPartial: z.boolean() }),
]);

/** The answer to a request about files, with the content of a file that was read. */
export type FileAnswer = { readonly reply: FileReply; readonly content: Buffer };

/** The answer to a request about tools. */
export type ToolAnswer = { readonly reply: ToolReply; readonly content: Buffer };

/** What a request is about, which decides the replies that it may have. */
type Subject = 'files' | 'tools';
type ToolQuestion = Extract<ToolRequest, { readonly id: number }>;
type ToolNotice = Exclude<ToolRequest, { readonly id: number }>;

/** How a box server ended that the gateway had not asked to end. */
export type BoxEnd = {
  /** Whether the agent can have caused the end; false when the container engine, the spawn helper or the host failed. */
  readonly byAgent: boolean;
  /** The limit that a program of the agent exceeded; `null` when no limit was exceeded, or the cause is not known. */
  readonly killedBy: 'memory' | 'processes' | null;
};

export type BoxConnectionOptions = {
  readonly clock: Clock;
  /** Maximum length in bytes of the body of a reply. */
  readonly maxBodyBytes: number;
};

/** The gateway's connection to the box server of one sandbox. */
export class BoxConnection {
  /** Resolves when the connection has ended. */
  readonly closed: Promise<void>;
  /** Environment variables of the image, where the box server reports them. */
  environment: Readonly<Record<string, string>> = {};
  /** The user of the sandbox that the box server was asked for; `null` when there is none. */
  user: SandboxUser | null = null;
  /** Number of bytes that have arrived from the box server. */
  receivedBytes = 0;
  private readonly socket: Socket;
  private readonly clock: Clock;
  private readonly reader: FrameReader;
  private readonly onReady: () => void;
  private readonly children = new RemoteChildren((message) => this.sendToRunner(message));
  private readonly requests = new PendingRequests<FileAnswer | ToolAnswer, Subject>();
  private nextProcess = 1;
  private isReady = false;
  private isClosed = false;
  private frames = 0;
  /** Number of the incomplete message whose time limit is running; `null` when there is none. */
  private timedFrame: number | null = null;
  private cancelFrameLimit = (): void => {};

  constructor(socket: Socket, { clock, maxBodyBytes }: BoxConnectionOptions, onReady: () => void) {
    this.socket = socket;
    this.clock = clock;
    this.onReady = onReady;
    const limits = { headerBytes: REPLY_HEADER_BYTES, bodyBytes: maxBodyBytes };
    this.reader = new FrameReader(limits, (frame) => this.receive(frame));
    socket.on('data', (chunk: Buffer) => this.read(chunk));
    socket.on('error', () => {});
    this.closed = new Promise((resolve) => {
      socket.once('close', () => {
        this.lose('it has ended');
        resolve();
      });
    });
  }

  get hasEnded(): boolean {
    return this.isClosed;
  }

  /** Starts a command in the sandbox. Rejects with `runtime_failed` when the program cannot be started or the connection has ended. */
  async spawn(request: SpawnRequest): Promise<SpawnedProcess> {
    this.refuseClosed();
    return this.children.spawn(request);
  }

  /** Sends a request about files, with its body, and resolves with the answer. Rejects with `runtime_failed`. */
  askFiles(request: WithoutId<FileRequest>, body?: Buffer): Promise<FileAnswer> {
    return this.ask('files', request, body) as Promise<FileAnswer>;
  }

  /** Sends a request about tools, with its body, and resolves with the answer. Rejects with `runtime_failed`. */
  askTools(request: WithoutId<ToolQuestion>, body?: Buffer): Promise<ToolAnswer> {
    return this.ask('tools', request, body) as Promise<ToolAnswer>;
  }

  /** Returns a number for a shell or a Python process that no other process of this connection has. */
  newProcessNumber(): number {
    return this.nextProcess++;
  }

  /** Sends a request about tools that is not answered. */
  notifyTools(request: ToolNotice, body?: Buffer): void {
    void this.send(request, body);
  }

  /** Asks the box server to end with all its processes. */
  requestEnd(): void {
    void this.send({ type: 'close' });
  }

  /**
   * Writes a file in the sandbox. Its parts are read from `content` only as fast as the sandbox takes them. Rejects with `runtime_failed`,
   * or with an error of `content`.
   */
  async writeFile(
    path: string,
    { mode, owner }: { readonly mode: number; readonly owner: FileOwner },
    content: AsyncIterable<Buffer> | Iterable<Buffer>,
  ): Promise<void> {
    this.refuseClosed();
    // Waiting begins with the first message, because the connection can end before the last one.
    const { id, answer } = this.addRequest('files');
    await this.send({ type: 'create_file', id, path, mode, owner });
    try {
      for await (const part of content) {
        this.refuseClosed();
        await this.send({ type: 'append', id }, part);
      }
    } finally {
      await this.send({ type: 'close_file', id });
      requireDone((await answer) as FileAnswer, path);
    }
  }

  close(): void {
    this.socket.destroy();
  }

  /** Ends the connection and rejects all pending requests. `why` completes "the connection is lost: ...". */
  lose(why: string): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.cancelFrameLimit();
    this.socket.destroy();
    const error = lostError(why);
    this.children.failAll(error);
    this.requests.end(() => error);
  }

  private read(chunk: Buffer): void {
    if (this.isClosed) return;
    this.receivedBytes += chunk.length;
    try {
      this.reader.push(chunk);
      this.limitFrame();
    } catch (cause) {
      this.lose(`it sent a message that is not valid: ${(cause as Error).message.slice(0, 200)}`);
    }
  }

  /** Starts a time limit when only a part of a message has arrived. The connection is given up when the rest does not arrive in time. */
  private limitFrame(): void {
    const open = this.reader.isInFrame ? this.frames : null;
    if (open === this.timedFrame) return;
    this.timedFrame = open;
    this.cancelFrameLimit();
    const late = (): void => this.lose(`it did not complete a message in ${FRAME_MS / 1000} s`);
    this.cancelFrameLimit = open === null ? () => {} : scheduleAfterInput(this.clock, FRAME_MS, late);
  }

  private async ask(
    subject: Subject,
    request: WithoutId<FileRequest> | WithoutId<ToolQuestion>,
    body?: Buffer,
  ): Promise<FileAnswer | ToolAnswer> {
    this.refuseClosed();
    const { id, answer } = this.addRequest(subject);
    await this.send({ ...request, id } as BoxRequest, body);
    return answer;
  }

  private addRequest(subject: Subject): { readonly id: number; readonly answer: Promise<FileAnswer | ToolAnswer> } {
    const { id, reply } = this.requests.add(subject);
    // The connection can end before the request has been passed to the kernel, and so before the caller waits for the answer.
    reply.catch(() => {});
    return { id, answer: reply };
  }

  private refuseClosed(): void {
    if (this.isClosed) throw lostError('it has ended');
  }

  private sendToRunner(message: HelperRequest): void {
    if (message.type !== 'spawn') {
      void this.send(message);
      return;
    }
    const { stdin, ...request } = message.request;
    if (stdin === 'hold') throw new FloeError('runtime_failed', 'a command in a box cannot hold its stdin open');
    void this.send({ type: 'spawn', id: message.id, request, hasStdin: stdin !== undefined }, stdin);
  }

  /** Resolves when the message has been passed to the kernel, or when the connection has ended. */
  private send(message: BoxRequest, body?: Buffer): Promise<void> {
    if (this.isClosed) return Promise.resolve();
    const parts = encodeFrame(message, body);
    return new Promise((resolve) => {
      this.socket.cork();
      for (const part of parts.slice(0, -1)) this.socket.write(part);
      this.socket.write(parts.at(-1) as Buffer, () => resolve());
      this.socket.uncork();
    });
  }

  /** Throws an `Error` when the message is not valid, or is a reply to no pending request. */
  private receive({ header, body }: Frame): void {
    this.frames += 1;
    const reply = replySchema.parse(header);
    switch (reply.type) {
      case 'ready':
        if (this.isReady) throw new Error('it was ready before');
        this.isReady = true;
        this.environment = reply.environment;
        this.user = reply.user;
        this.onReady();
        break;
      case 'file_done':
      case 'file_absent':
      case 'file_too_large':
      case 'file_failed':
        this.settle('files', { reply, content: body });
        break;
      case 'tool_done':
      case 'tool_failed':
      case 'tool_ended':
      case 'tool_text':
      case 'tool_edited':
      case 'tool_entries':
        this.settle('tools', { reply, content: body });
        break;
      case 'done': {
        const { id, result, stdoutBytes } = reply;
        const [stdout, stderr] = [body.subarray(0, stdoutBytes), body.subarray(stdoutBytes)];
        const isKnown = this.children.receive({ type: 'done', id, result: { ...result, stdout, stderr } });
        if (!isKnown) throw unasked(reply);
        break;
      }
      default:
        if (!this.children.receive(reply)) throw unasked(reply);
    }
  }

  /** Throws an `Error` when no request about `subject` waits for the answer. */
  private settle(subject: Subject, answer: FileAnswer | ToolAnswer): void {
    const { reply } = answer;
    if (this.requests.find(reply.id) !== subject) throw unasked(reply);
    this.requests.resolve(reply.id, answer);
  }
}

function unasked({ type, id }: { readonly type: string; readonly id: number }): Error {
  return new Error(`no request ${id} waits for ${type}`);
}

type WithoutId<T> = T extends { readonly id: number } ? Omit<T, 'id'> : never;

function lostError(why: string): FloeError {
  return new FloeError('runtime_failed', `the connection to the box server of the sandbox is lost: ${why}`, {
    box: 'lost',
  });
}

/** Reads a file of the host in parts. It is opened when the first part is requested, and closed when no more are. */
export async function* partsOfFile(path: string): AsyncGenerator<Buffer> {
  yield* createReadStream(path, { highWaterMark: MIB });
}

/** Throws `runtime_failed` unless the request about the file `path` was performed. */
export function requireDone({ reply }: FileAnswer, path: string): void {
  if (reply.type === 'file_done') return;
  const why = reply.type === 'file_failed' ? reply.message : reply.type;
  throw new FloeError('runtime_failed', `the sandbox could not access ${path}: ${why}`, { path });
}

/** Maximum number of bytes of the body of a reply, for commands whose output is limited to `maxOutputBytes` per stream. */
export function replyBodyBytes(maxOutputBytes: number): number {
  return 2 * maxOutputBytes + MAX_OUTCOME_BYTES + MIB;
}

/** A Unix socket on which a gateway waits for the box server of one sandbox. */
export class BoxListener {
  private readonly server: Server;
  private readonly socketPath: string;
  private readonly directory: FileHandle | null;
  private readonly ready: Promise<BoxConnection>;
  /** The connection of the box server; `null` before it connects and after {@link accept} has returned it. */
  private pending: BoxConnection | null = null;

  /** `directory` is the directory of the socket, if the socket's address contains its descriptor. */
  private constructor(server: Server, socketPath: string, directory: FileHandle | null, options: BoxConnectionOptions) {
    this.server = server;
    this.socketPath = socketPath;
    this.directory = directory;
    // The box server can connect before its sandbox is reported as started. `accept` is then called after the connection.
    this.ready = new Promise((resolve) => {
      server.once('connection', (socket) => {
        server.on('connection', (other) => other.destroy());
        server.close();
        const connection = new BoxConnection(socket, options, () => resolve(connection));
        this.pending = connection;
      });
    });
  }

  /** Listens on the socket. */
  static async open(socketPath: string, options: BoxConnectionOptions): Promise<BoxListener> {
    const server = createServer();
    // The path in the state directory of a gateway can be longer than the path of a socket may be. An address that contains the directory's
    // descriptor is always short enough.
    const isLong = Buffer.byteLength(socketPath) > MAX_SOCKET_PATH_BYTES;
    const directory = isLong ? await open(dirname(socketPath)) : null;
    const listener = new BoxListener(server, socketPath, directory, options);
    try {
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen(
          directory === null ? socketPath : `/proc/self/fd/${directory.fd}/${basename(socketPath)}`,
          resolve,
        );
      });
      // On the host, the permissions of the socket's directory protect it. In the sandbox, the user of the box server may have another id than
      // on the host.
      await chmod(socketPath, 0o666);
      return listener;
    } catch (error) {
      await listener.close();
      throw error;
    }
  }

  /**
   * Waits for the first connection, and then until the box server is ready. The first connection is the box server's, because the box server
   * connects before it runs any command. No other connection is accepted. Rejects with the reason of `signal`, or with the error of `failed`.
   */
  async accept(failed: Promise<never>, signal: AbortSignal): Promise<BoxConnection> {
    try {
      const connection = await raceAbort(Promise.race([this.ready, failed]), signal);
      this.pending = null;
      return connection;
    } finally {
      await this.close();
    }
  }

  /** Stops listening. Closes a connection that {@link accept} has not returned. */
  async close(): Promise<void> {
    this.pending?.close();
    // Closing the server removes the socket at its address, so the descriptor in the address is closed afterwards.
    this.server.close();
    await this.directory?.close();
    await rm(this.socketPath, { force: true });
  }
}
