import { readdir, readlink, stat } from 'node:fs/promises';
import { join, posix } from 'node:path';
import { FloeError, MIB, onAbort, raceAbort, scheduleAfterInput } from '@floe-rl/core';
import type { Isolation, RuntimeBackend } from '@floe-rl/core/schema';
import type { SandboxFile } from '../../api/files.ts';
import type {
  ExecRequest,
  ExecResult,
  Runtime,
  RuntimePaths,
  RuntimeSnapshot,
  StartRequest,
} from '../../api/runtime.ts';
import type { RuntimeTools } from '../../api/tools.ts';
import { type BoxConnection, type BoxEnd, partsOfFile, requireDone } from '../../box/connection.ts';
import type { FileOwner } from '../../box/messages.ts';
import { BoxToolClient } from '../../box/tool-client.ts';
import { BOX_BYTES, BOX_TASKS, startToolServer, type ToolServer } from '../../box/tool-server.ts';
import type { SpawnedProcess, SpawnResult } from '../../spawn/spawner.ts';
import { COMMAND_MARK, checkEnvironment, refuseNul } from '../../workspace/environment.ts';
import { DEFAULT_FILE_MODE } from '../../workspace/transfer.ts';
import { type CommandState, CommandTurns, restoredError } from '../command-turns.ts';
import { fileBlocks } from '../host-limits.ts';
import { argvOf, execResult, type SandboxParts, SandboxRuntime, tooLarge } from '../sandbox-runtime.ts';
import { BoxSnapshot, packWorkdir, type SnapshotBox, snapshotDir, unpackWorkdir } from './snapshot.ts';

/**
 * Maximum time in milliseconds in which a box server ends a killed command. After this time the whole sandbox is ended, because an agent with
 * the box server's user id can stop the box server.
 */
const KILL_MS = 3_000;

/**
 * Shell script that starts a command in a box. It makes the kernel kill the command rather than the box server when the memory of the sandbox
 * is used up. It forbids core dumps, limits the file size, and replaces itself by the command. Arguments: the maximum file size as {@link
 * fileBlocks} returns it, then the command and its arguments.
 */
const EXEC_SCRIPT = `{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
ulimit -c 0
ulimit -f "$1"
shift
exec "$@"`;

/** Throws `unsupported` for a sandbox that is to be started with the files of a snapshot. */
export function refuseSnapshot(snapshot: StartRequest['snapshot']): void {
  if (snapshot == null) return;
  const problem = 'a snapshot of this back end contains only the workdir, so no sandbox can be started from it';
  throw new FloeError('unsupported', problem);
}

/** A user of a sandbox other than root. */
export type BoxUser = {
  readonly owner: FileOwner;
  /** Variables of root's commands. They replace the user's variables of the same names. */
  readonly rootVariables: Readonly<Record<string, string>>;
  /** Returns the command that starts a box server with a socket of this name in the directory of the sandbox on the host. */
  readonly toolServerCommand: (socketName: string) => readonly string[];
};

/** A command of the sandbox, as it is passed to the box server. */
type BoxCommand = {
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  readonly stdin?: Buffer | string | undefined;
  readonly isService?: ExecRequest['isService'];
  /** Memory in bytes and number of tasks that the command may use in addition to the limits of the task. */
  readonly extra?: { readonly bytes: number; readonly tasks: number };
};

export type BoxParts = SandboxParts & {
  readonly backend: RuntimeBackend;
  readonly isolation: Isolation;
  readonly connection: BoxConnection;
  readonly paths: RuntimePaths;
  /** Origin at which commands reach the session's proxy. */
  readonly proxyOrigin: string;
  /** Command line of the MCP server in the sandbox. */
  readonly mcpCommand: readonly string[];
  /** Environment variables of every command. */
  readonly environment: Readonly<Record<string, string>>;
  /** User that runs the agent's commands and owns its files; `null` when this is root, and when the sandbox has only one user. */
  readonly user: BoxUser | null;
  /** Random part of the mark of the sandbox's commands. */
  readonly token: string;
  /** Directories in the sandbox of the control group that contains all of its processes. */
  readonly cgroupDirectories: readonly string[];
  /** Ends the sandbox with all its processes and removes it. May be called twice. Must not reject. */
  readonly end: () => Promise<void>;
  /** Returns how the sandbox ended after its connection was lost. */
  readonly explainEnd: () => Promise<BoxEnd>;
};

/** A sandbox in which a box server runs the commands. Its provider starts the box server and ends the sandbox. */
export class BoxRuntime extends SandboxRuntime<BoxParts> {
  readonly backend: RuntimeBackend;
  readonly isolation: Isolation;
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  readonly mcpCommand: readonly string[];
  private readonly turns = new CommandTurns<CommandState>({ ended: new AbortController() });
  private nextCommand = 0;

  constructor(parts: BoxParts) {
    super(parts);
    this.backend = parts.backend;
    this.isolation = parts.isolation;
    this.paths = parts.paths;
    this.proxyOrigin = parts.proxyOrigin;
    this.mcpCommand = parts.mcpCommand;
  }

  exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    return this.execAs(this.owner, request, signal);
  }

  writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    return this.writeAs(this.owner, files, signal);
  }

  uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    return this.uploadAs(this.owner, hostDir, target, signal);
  }

  readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    return this.readAs(this.owner, path, maxBytes, signal);
  }

  openTools(signal: AbortSignal): Promise<RuntimeTools> {
    return this.openToolsAs(this.parts.user, signal);
  }

  override asRoot(): Runtime {
    if (this.parts.user === null) return this;
    const { backend, isolation, paths, proxyOrigin, mcpCommand } = this;
    const root: Runtime = {
      ...{ backend, isolation, paths, proxyOrigin, mcpCommand },
      exec: (request, signal) => this.execAs(null, request, signal),
      writeFiles: (files, signal) => this.writeAs(null, files, signal),
      uploadDir: (hostDir, target, signal) => this.uploadAs(null, hostDir, target, signal),
      readFile: (path, maxBytes, signal) => this.readAs(null, path, maxBytes, signal),
      openTools: (signal) => this.openToolsAs(null, signal),
      snapshot: (signal) => this.snapshot(signal),
      restore: (snapshot, signal) => this.restore(snapshot, signal),
      stop: () => this.stop(),
      asRoot: () => root,
    };
    return root;
  }

  private get owner(): FileOwner {
    return this.parts.user?.owner ?? null;
  }

  private execAs(owner: FileOwner, request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    return this.turns.use(signal, (_state, linked) => this.execNow(owner, request, linked));
  }

  private writeAs(owner: FileOwner, files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    return this.turns.use(signal, (_state, linked) => this.writeNow(owner, files, linked));
  }

  private uploadAs(owner: FileOwner, hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    return this.turns.use(signal, (_state, linked) => this.uploadNow(owner, hostDir, target, linked));
  }

  private readAs(owner: FileOwner, path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    return this.turns.use(signal, (_state, linked) => this.readNow(owner, path, maxBytes, linked));
  }

  private openToolsAs(user: BoxUser | null, signal: AbortSignal): Promise<RuntimeTools> {
    return new Promise((resolve, reject) => {
      // The tools use the sandbox until they are closed.
      const closed = this.turns.use(signal, async ({ ended }, linked) => {
        this.refuseEnded(signal);
        const server = user === null ? null : await this.startToolServer(user, linked);
        await new Promise<void>((close) => {
          let release = (): void => {};
          const tools = this.newTools(server, async () => {
            release();
            await server?.end();
            close();
          });
          release = onAbort(ended.signal, () => void tools.close());
          resolve(tools);
        });
      });
      closed.catch(reject);
    });
  }

  /**
   * Starts a box server as a user other than root, for the tools. The sandbox's own box server runs as root, so its file operations could read
   * and change what the user may not.
   */
  private startToolServer({ owner, toolServerCommand }: BoxUser, signal: AbortSignal): Promise<ToolServer> {
    const { clock, dir } = this.parts;
    const socketName = `tools-${this.nextCommand++}.sock`;
    const command = {
      argv: toolServerCommand(socketName),
      cwd: '/',
      env: this.environmentOf(owner),
      extra: { bytes: BOX_BYTES, tasks: BOX_TASKS },
    };
    const maxOutputBytes = this.maxOutputBytes;
    const options = { clock, maxOutputBytes, socketPath: join(dir, socketName) };
    return startToolServer((_path, killed) => this.run(owner, command, killed), options, signal);
  }

  override async snapshot(signal: AbortSignal): Promise<RuntimeSnapshot> {
    this.refuseEnded(signal);
    const { dir, request } = this.parts;
    let packed = { path: '', bytes: 0 };
    await this.turns.whenIdle(async (state) => {
      packed = await packWorkdir(this.asSnapshotBox(signal), snapshotDir(dir), request.spec.storage_mb * MIB);
      return state;
    });
    return new BoxSnapshot(this.backend, this.name, packed.bytes, packed.path);
  }

  override async restore(snapshot: RuntimeSnapshot, signal: AbortSignal): Promise<void> {
    this.refuseEnded(signal);
    if (!(snapshot instanceof BoxSnapshot) || snapshot.backend !== this.backend) {
      const problem = `a ${this.backend} sandbox cannot be restored to a snapshot of ${snapshot.backend}`;
      throw new FloeError('unsupported', problem);
    }
    const { path } = snapshot;
    await this.turns.afterEnding(restoredError(this.name), async (state) => {
      await unpackWorkdir(this.asSnapshotBox(signal), path);
      return state;
    });
  }

  private asSnapshotBox(signal: AbortSignal): SnapshotBox {
    const { name } = this;
    const exec = (request: ExecRequest): Promise<ExecResult> => this.execNow(null, request, signal);
    return { name, workdir: this.paths.workdir, connection: this.parts.connection, exec, signal };
  }

  private async execNow(owner: FileOwner, request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    const { clock, connection } = this.parts;
    const startedMs = clock.monotonicMs();
    this.refuseEnded(signal);
    const cwd = this.resolve(request.cwd ?? '.');
    const argv = argvOf(request.command);
    const env = { ...this.environmentOf(owner), ...request.env };
    checkEnvironment(env);
    refuseNul('the command', [...argv, cwd]);
    const { reply } = await raceAbort(connection.askFiles({ type: 'check_directory', path: cwd, owner }), signal);
    if (reply.type !== 'file_done') {
      throw new FloeError('workdir_missing', `there is no directory ${cwd} in the sandbox`, { path: cwd });
    }
    const { stdin, isService } = request;
    const ended = await this.run(owner, { argv, cwd, env, stdin, isService }, signal);
    const result = execResult(ended, clock.monotonicMs() - startedMs);
    return result.killedBy === null ? result : { ...result, exitCode: null, signal: 'SIGKILL' };
  }

  /** Returns the variables of a user's commands. */
  private environmentOf(owner: FileOwner): Record<string, string> {
    const { environment, request, user } = this.parts;
    return { ...environment, ...request.spec.env, ...(owner === null ? user?.rootVariables : {}) };
  }

  /** Runs a command of a user until it ends. */
  private run(owner: FileOwner, command: BoxCommand, signal: AbortSignal): Promise<SpawnResult> {
    const { connection, request } = this.parts;
    const { spec } = request;
    const { argv, cwd, env, stdin, isService = false, extra = { bytes: 0, tasks: 0 } } = command;
    const mark = `${this.name}:${this.nextCommand++}:${this.parts.token}`;
    return this.runCommand(null, signal, async () => {
      this.refuseEnded(signal);
      const started = connection.spawn({
        argv: ['/bin/sh', '-c', EXEC_SCRIPT, 'floe-exec', fileBlocks(request.spec), ...argv],
        cwd,
        env: { ...env, [COMMAND_MARK]: mark },
        stdin,
        owner,
        marker: `${COMMAND_MARK}=${mark}`,
        maxOutputBytes: this.maxOutputBytes,
        limits: {
          memoryBytes: spec.memory_mb * MIB + extra.bytes,
          taskCount: spec.max_processes + extra.tasks,
          sharedCgroups: this.parts.cgroupDirectories,
        },
        onOutput: isService ? undefined : request.onActivity,
      });
      return this.awaitCommand(started, signal).catch((thrown) => this.endOfSandbox(thrown, signal));
    });
  }

  private async writeNow(owner: FileOwner, files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    for (const { path, content, mode = DEFAULT_FILE_MODE } of files) {
      this.refuseEnded(signal);
      const bytes = typeof content === 'string' ? Buffer.from(content) : content;
      await raceAbort(this.parts.connection.writeFile(this.resolve(path), { mode, owner }, [bytes]), signal);
    }
  }

  private async uploadNow(owner: FileOwner, hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    this.refuseEnded(signal);
    try {
      await raceAbort(this.upload(owner, hostDir, this.resolve(target), signal), signal);
    } catch (cause) {
      signal.throwIfAborted();
      const why = (cause as Error).message;
      throw new FloeError('runtime_failed', `sandbox ${this.name} could not upload ${hostDir}: ${why}`, {}, cause);
    }
  }

  private async readNow(owner: FileOwner, path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    this.refuseEnded(signal);
    const from = this.resolve(path);
    const asked = this.parts.connection.askFiles({ type: 'read_file', path: from, maxBytes, owner });
    const { reply, content } = await raceAbort(asked, signal);
    switch (reply.type) {
      case 'file_absent':
        return null;
      case 'file_too_large':
        throw tooLarge(from, maxBytes);
      case 'file_failed':
        throw new FloeError('runtime_failed', `sandbox ${this.name} could not read ${from}: ${reply.message}`);
      case 'file_done':
        return content.subarray(0, maxBytes);
    }
  }

  /** Returns tools that `server` runs, a box server of the user. With `null`, the sandbox's own box server runs them. */
  private newTools(server: ToolServer | null, release: () => Promise<void>): BoxToolClient {
    const { clock, connection, request, end, explainEnd } = this.parts;
    const common = {
      ...{ clock, release },
      workdir: this.paths.workdir,
      env: this.environmentOf(server === null ? null : this.owner),
      maxOutputBytes: this.maxOutputBytes,
      onActivity: request.onActivity,
    };
    // The limits of a box server that runs as a command also hold for its processes.
    if (server !== null) return new BoxToolClient({ ...common, ...server, prefix: [] });
    const prefix = ['/bin/sh', '-c', EXEC_SCRIPT, 'floe-tool', fileBlocks(request.spec)];
    return new BoxToolClient({ ...common, connection, end, explainEnd, prefix });
  }

  protected async remove(): Promise<void> {
    await this.parts.end();
    this.parts.connection.close();
  }

  private resolve(path: string): string {
    return posix.resolve(this.paths.workdir, path);
  }

  /**
   * Waits until a command has started and ended. Ends the whole sandbox when the box server does not end an aborted command in time, because
   * an agent may have stopped the box server.
   */
  private async awaitCommand(started: Promise<SpawnedProcess>, signal: AbortSignal): Promise<SpawnResult> {
    const { clock, end, connection } = this.parts;
    let cancel = (): void => {};
    const release = onAbort(signal, () => {
      cancel = scheduleAfterInput(clock, KILL_MS, () => void end().finally(() => connection.close()));
    });
    try {
      const child = await started;
      return await this.awaitEnd(child, child.done, signal);
    } finally {
      cancel();
      release();
    }
  }

  /**
   * Returns the result of a command whose sandbox has ended. The agent can end its sandbox, so this is a result and not an error, unless the
   * container engine or the host has failed. Rejects with `thrown` when that is another error.
   */
  private async endOfSandbox(thrown: unknown, signal: AbortSignal): Promise<SpawnResult> {
    if (!FloeError.is(thrown) || thrown.details.box !== 'lost') throw thrown;
    this.refuseEnded(signal);
    const { byAgent, killedBy } = await this.parts.explainEnd();
    if (!byAgent) throw thrown;
    const none = Buffer.alloc(0);
    return { exitCode: null, signal: 'SIGKILL', stdout: none, stderr: none, droppedBytes: 0, killedBy };
  }

  private async upload(owner: FileOwner, hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    const { connection } = this.parts;
    const mode = (await stat(hostDir)).mode & 0o777;
    requireDone(await connection.askFiles({ type: 'create_directory', path: target, mode, owner }), target);
    for (const entry of await readdir(hostDir, { withFileTypes: true })) {
      this.refuseEnded(signal);
      const [from, to] = [join(hostDir, entry.name), posix.join(target, entry.name)];
      if (entry.isDirectory()) await this.upload(owner, from, to, signal);
      else if (entry.isFile()) {
        const mode = (await stat(from)).mode & 0o777;
        await connection.writeFile(to, { mode, owner }, partsOfFile(from));
      } else if (entry.isSymbolicLink()) {
        const target = await readlink(from);
        requireDone(await connection.askFiles({ type: 'create_link', path: to, target, owner }), to);
      }
    }
  }
}
