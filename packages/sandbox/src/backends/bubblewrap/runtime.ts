import { chown, readFile, rm, writeFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { posix } from 'node:path';
import { FloeError } from '@floe-rl/core';
import type { SandboxFile } from '../../api/files.ts';
import type { ExecRequest, ExecResult, RuntimePaths, RuntimeSnapshot } from '../../api/runtime.ts';
import type { RuntimeTools } from '../../api/tools.ts';
import { endOwned } from '../../processes/orphans.ts';
import { isAlive, readProcess } from '../../processes/process-table.ts';
import type { SpawnedProcess, SpawnResult } from '../../spawn/spawner.ts';
import {
  AGENT_HOME,
  baseEnvironment,
  checkEnvironment,
  proxyOriginOf,
  refuseNul,
  sandboxEnvironment,
  sandboxPaths,
} from '../../workspace/environment.ts';
import { EXTRACT_SCRIPT, NO_FILE, READ_SCRIPT, tarOf } from '../../workspace/transfer.ts';
import { type CommandState, CommandTurns, releasedError, restoredError } from '../command-turns.ts';
import { argvOf, execResult, SandboxRuntime, TOOL_OUTPUT_BYTES, tooLarge } from '../sandbox-runtime.ts';
import {
  type BubblewrapParts,
  boxArgv,
  type Command,
  commandArgs,
  groupLimits,
  mcpArgv,
  type RelayedProxy,
  sandboxArgs,
  spawnRequest,
} from './command.ts';
import { bindInto, deriveHolder, endHolder, type Holder } from './holder.ts';
import { BubblewrapSnapshot, usedBytes } from './snapshot.ts';

/**
 * Interval in milliseconds of the checks whether a sandbox's first process has ended. After SIGKILL, the kernel needs a few milliseconds to
 * end it.
 */
const EXIT_POLL_MS = 2;
/** Maximum number of characters of a failed command's error output, taken from its end, that the error message quotes. */
const STDERR_CHARS = 500;
/** Matches the message that bwrap prints when the program to run does not exist. */
const NO_PROGRAM = /^bwrap: execvp /m;
/** Exit code of a shell that did not find the command. */
const EXIT_NO_PROGRAM = 127;

/**
 * Maximum length of a chain of snapshots that are each based on the files of the one before. Each adds a user namespace, and the kernel allows
 * 32 nested user namespaces.
 */
const MAX_DEPTH = 24;

/** The namespaces in which commands run. A snapshot and a restore replace them by new namespaces. */
type Namespaces = CommandState & {
  readonly holder: Holder;
  /** User id on the host under which the processes run. */
  readonly uid: number;
  /** Options of bwrap that are the same for every command. */
  readonly fixedArgs: readonly string[];
  /** Paths of the sockets of proxies that are mounted. */
  readonly sockets: Map<RelayedProxy, Promise<string>>;
};

type EndedCommand = SpawnResult & {
  /** Whether the command was started; false when bwrap failed earlier. */
  readonly ran: boolean;
};

export class BubblewrapRuntime extends SandboxRuntime<BubblewrapParts> {
  readonly backend = 'bubblewrap';
  readonly isolation = 'namespaces';
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  readonly mcpCommand: readonly string[];
  private readonly turns: CommandTurns<Namespaces>;
  /** Namespaces that are prepared for the next restore. They have the files of the snapshot that the sandbox was last restored to. */
  private spare: { readonly of: RuntimeSnapshot; readonly ready: Promise<Namespaces | null> } | null = null;
  /** Settles when the holder processes of replaced namespaces have ended. */
  private retired: Promise<unknown> = Promise.resolve();
  /** Environment variables of every command. */
  private readonly environment: Readonly<Record<string, string>>;
  private nextCommand = 0;
  private nextSocket = 0;

  constructor(parts: BubblewrapParts) {
    super(parts);
    const { request } = parts;
    this.paths = sandboxPaths(request.spec);
    this.mcpCommand = mcpArgv(parts.host);
    this.turns = new CommandTurns(this.namespacesOf(parts.holder, parts.uid));
    this.proxyOrigin = proxyOriginOf(request);
    this.environment = sandboxEnvironment(request, parts.imageEnv);
  }

  async exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    const { clock, request: start } = this.parts;
    const { spec } = start;
    const startedMs = clock.monotonicMs();
    const cwd = posix.resolve(spec.workdir, request.cwd ?? '.');
    const ended = await this.run(
      {
        argv: argvOf(request.command),
        cwd,
        env: { ...this.environment, ...spec.env, ...request.env },
        stdin: request.stdin,
        isService: request.isService,
        proxies: this.proxiesOf(request),
        maxOutputBytes: this.maxOutputBytes,
      },
      signal,
    );
    const result = execResult(ended, clock.monotonicMs() - startedMs);
    // A signal ends bwrap itself only when its processes are killed from outside the sandbox, for example because the host has no memory left.
    const isKilled = result.killedBy !== null || ended.signal !== null;
    if (ended.ran || isKilled) return { ...result, ...exitOf(ended, result.killedBy !== null) };
    // An agent can remove programs from its image, even the shell. When a program is missing, only the command has failed, not the sandbox.
    if (NO_PROGRAM.test(result.stderr)) return { ...result, exitCode: EXIT_NO_PROGRAM, signal: null };
    throw this.startFailure(result.stderr, cwd);
  }

  async writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    if (files.length === 0) return;
    const absolute = files.map((file) => ({ ...file, path: posix.resolve(this.paths.workdir, file.path) }));
    const stdin = await tarOf(absolute, this.parts.clock.nowMs());
    await this.runTool(['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', '/'], { stdin }, 'write files', signal);
  }

  async uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    const to = posix.resolve(this.paths.workdir, target);
    await this.runTool(['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', to], { upload: hostDir }, `upload ${hostDir}`, signal);
  }

  async readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    const from = posix.resolve(this.paths.workdir, path);
    // Reads up to one byte more than allowed, to distinguish a file that is too large from a file of exactly the allowed size.
    const argv = ['/bin/sh', '-c', READ_SCRIPT, 'sh', from, String(maxBytes + 1)];
    const ended = await this.run(this.toolCommand(argv, { maxOutputBytes: 2 * maxBytes + 2 }), signal);
    if (ended.exitCode === NO_FILE) return null;
    if (ended.exitCode !== 0) throw this.toolFailure(`read ${from}`, ended);
    if (ended.stdout.length > maxBytes) {
      throw tooLarge(from, maxBytes);
    }
    return ended.stdout;
  }

  openTools(signal: AbortSignal): Promise<RuntimeTools> {
    const proxies = this.proxiesOf({ withProxy: false });
    const argv = boxArgv(this.parts.host, proxies);
    const run = (boxSocket: string, killed: AbortSignal) =>
      this.run(this.toolCommand(argv, { boxSocket, proxies }), killed);
    return this.openToolServer(run, this.environment, signal);
  }

  override async snapshot(signal: AbortSignal): Promise<RuntimeSnapshot> {
    this.refuseEnded(signal);
    const { name: sandbox } = this;
    const { imagePath } = this.parts;
    let bytes = 0;
    const { holder, uid } = await this.turns.whenIdle(async (from) => {
      if (from.holder.layout.depth >= MAX_DEPTH) {
        const problem = `sandbox ${sandbox} is based on ${MAX_DEPTH} snapshots, and another one is not possible`;
        throw new FloeError('unsupported', problem);
      }
      bytes = await usedBytes(from.holder);
      return this.derive(from, signal);
    });
    return new BubblewrapSnapshot({ sandbox, bytes, holder, uid, imagePath });
  }

  override async restore(snapshot: RuntimeSnapshot, signal: AbortSignal): Promise<void> {
    this.refuseEnded(signal);
    const source = usableSnapshot(snapshot, this.parts.imagePath);
    await this.turns.afterEnding(restoredError(this.name), async (from) => {
      const spare = this.spare?.of === snapshot ? await this.spare.ready : null;
      if (spare !== null) this.spare = null;
      const next = spare ?? (await this.derive(source, signal));
      this.retired = Promise.all([this.retired, endHolder(from.holder.process), this.dropSpare()]);
      this.spare = { of: snapshot, ready: this.derive(source, new AbortController().signal).catch(() => null) };
      return next;
    });
  }

  onProxiesReplaced(): void {
    // A mount keeps the old socket when the socket file is replaced. The next command mounts the new socket.
    this.turns.state.sockets.clear();
  }

  protected async remove(): Promise<void> {
    const { owner, clock, dir } = this.parts;
    await this.turns.settled;
    await Promise.all([this.dropSpare(), this.retired]);
    const { process } = this.turns.state.holder;
    process.kill();
    // If the spawn helper died, a command that it had just started may still be running. In this case all processes with this sandbox's
    // label are killed.
    await process.done.catch(() => endOwned(owner.id, ({ name }) => name === this.name, clock).catch(() => {}));
    await rm(dir, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
  }

  private namespacesOf(holder: Holder, uid: number): Namespaces {
    const fixedArgs = sandboxArgs(this.parts.host, this.parts.request, holder.layout);
    return { holder, uid, fixedArgs, sockets: new Map(), ended: new AbortController() };
  }

  /** Makes namespaces that start with the files of `frozen`. */
  private async derive({ holder, uid }: Pick<Namespaces, 'holder' | 'uid'>, signal: AbortSignal): Promise<Namespaces> {
    return this.namespacesOf(await deriveHolder(holder, { ...this.parts, uid }, signal), uid);
  }

  private async dropSpare(): Promise<void> {
    const ready = this.spare?.ready;
    this.spare = null;
    const spare = await ready;
    if (spare != null) await endHolder(spare.holder.process);
  }

  private toolCommand(argv: readonly string[], extra: Partial<Command>): Command {
    return {
      argv,
      cwd: '/',
      env: baseEnvironment(AGENT_HOME),
      proxies: [],
      maxOutputBytes: TOOL_OUTPUT_BYTES,
      ...extra,
    };
  }

  private async runTool(
    argv: readonly string[],
    extra: Partial<Command>,
    action: string,
    signal: AbortSignal,
  ): Promise<void> {
    const ended = await this.run(this.toolCommand(argv, extra), signal);
    if (ended.exitCode !== 0) throw this.toolFailure(action, ended);
  }

  private toolFailure(action: string, ended: EndedCommand): FloeError {
    const stderr = ended.stderr.toString().trim().slice(-STDERR_CHARS);
    // `tar` reports a full disk with many different messages, so the error message always states the storage limit.
    const limit = `the storage of a session here is ${this.parts.request.spec.storage_mb} MiB`;
    return new FloeError('runtime_failed', `sandbox ${this.name} could not ${action} (${limit}): ${stderr}`, {
      stderr,
    });
  }

  /** Runs one command in the session's namespaces. Resolves when the command and every process that it started have ended. */
  private async run(command: Command, signal: AbortSignal): Promise<EndedCommand> {
    this.refuseEnded(signal);
    checkEnvironment(command.env);
    refuseNul('the command', [...command.argv, command.cwd]);
    return this.turns.use(signal, (namespaces, linked) => {
      this.refuseStopped();
      return this.runIn(namespaces, command, linked);
    });
  }

  private async runIn(namespaces: Namespaces, given: Command, signal: AbortSignal): Promise<EndedCommand> {
    const { dir, host, spawner, request } = this.parts;
    const command = await this.withBoxSocket(namespaces, given);
    const path = `${dir}/exec-${this.nextCommand++}`;
    const files = { args: `${path}.args`, status: `${path}.status`, packing: `${path}.packing` };
    const relaySockets: Partial<Record<RelayedProxy, string>> = {};
    for (const name of command.proxies) relaySockets[name] = await this.openSocket(namespaces, name);
    const plainRoot = request.spec.image === null;
    const { options, argv } = commandArgs(host, { ...command, relaySockets, plainRoot });
    await writeFile(files.args, [...namespaces.fixedArgs, ...options].join('\0'), { mode: 0o600 });
    try {
      this.refuseEnded(signal);
      return await this.runCommand(groupLimits(request.spec, command), signal, async (cgroup) => {
        const child = await spawner.spawn(
          spawnRequest(this.parts, namespaces.holder, command, { files, argv, cgroup }),
        );
        const ended = await this.awaitEnd(child, this.namespaceEnd(child, files.status), signal);
        const packingFailed =
          command.upload !== undefined && (await readFile(files.packing).catch(() => null)) !== null;
        return packingFailed ? { ...ended, exitCode: ended.exitCode || 1 } : ended;
      });
    } finally {
      await Promise.all(Object.values(files).map((file) => rm(file, { force: true })));
    }
  }

  /**
   * Resolves when the command and every process of its pid namespace have ended. Rejects when the spawn helper dies, as `child.done` does.
   */
  private async namespaceEnd(child: SpawnedProcess, statusFile: string): Promise<EndedCommand> {
    const result = await child.done;
    const status = await readFile(statusFile, 'utf8').catch(() => '');
    const initPid = Number(/"child-pid": (\d+)/.exec(status)?.[1]);
    if (!Number.isNaN(initPid)) await this.processEnd(initPid);
    return { ...result, ran: status.includes('"exit-code"') };
  }

  /**
   * Resolves when the first process of a sandbox has ended. The kernel ends all other processes of the pid namespace before the first one.
   */
  private processEnd(pid: number): Promise<void> {
    return new Promise((resolve) => {
      const poll = (): void => {
        if (isAlive(readProcess(pid))) this.parts.clock.schedule(EXIT_POLL_MS, poll);
        else resolve();
      };
      poll();
    });
  }

  private startFailure(bwrapOutput: string, cwd: string): FloeError {
    const stderr = bwrapOutput.trim().slice(-STDERR_CHARS);
    // The command was not started, so the error output is a message of bwrap and not of the command.
    if (stderr.includes("Can't chdir to")) {
      return new FloeError('workdir_missing', `there is no directory ${cwd} in the sandbox`, { path: cwd });
    }
    return new FloeError('runtime_failed', `sandbox ${this.name} could not run a command: ${stderr}`, { stderr });
  }

  /** Returns the proxies that a command reaches through the relay. */
  private proxiesOf({ withProxy }: Pick<ExecRequest, 'withProxy'>): RelayedProxy[] {
    const { spec, egressSocket } = this.parts.request;
    if (spec.network === 'host') return [];
    return [...(withProxy === true ? ['proxy' as const] : []), ...(egressSocket == null ? [] : ['egress' as const])];
  }

  /** Returns the path of a proxy's socket in the mount namespace. The first call mounts the socket at this path. */
  private openSocket(namespaces: Namespaces, name: RelayedProxy): Promise<string> {
    const opened = namespaces.sockets.get(name) ?? this.bindSocket(namespaces, name);
    namespaces.sockets.set(name, opened);
    return opened;
  }

  private async bindSocket(namespaces: Namespaces, name: RelayedProxy): Promise<string> {
    const { proxy, egressSocket } = this.parts.request;
    const socketPath = name === 'proxy' ? proxy?.socketPath : egressSocket;
    if (socketPath == null) throw new FloeError('runtime_failed', `sandbox ${this.name} was started without a proxy`);
    return this.mountSocket(namespaces, socketPath, `${name}-${this.nextSocket++}.sock`);
  }

  private async withBoxSocket(namespaces: Namespaces, command: Command): Promise<Command> {
    const { boxSocket } = command;
    if (boxSocket === undefined) return command;
    return { ...command, boxSocket: await this.mountSocket(namespaces, boxSocket, `box-${this.nextSocket++}.sock`) };
  }

  /** Makes a socket of the host available in the mount namespace. Resolves with its path there. */
  private async mountSocket({ holder, uid }: Namespaces, socketPath: string, name: string): Promise<string> {
    if (this.parts.host.mode === 'user') return socketPath;
    // The sandbox's user may not enter the socket's directory on the host, so the socket is mounted at a path that this user can reach.
    await chown(socketPath, uid, uid);
    const target = `${holder.layout.base}/in/${name}`;
    await bindInto(holder, { ...this.parts, uid }, socketPath, target);
    return target;
  }
}

/** Returns `snapshot` if a sandbox with this image can be restored to it. Throws `unsupported` otherwise. */
export function usableSnapshot(snapshot: RuntimeSnapshot, imagePath: string | null): BubblewrapSnapshot {
  if (!(snapshot instanceof BubblewrapSnapshot)) {
    throw new FloeError('unsupported', `a bubblewrap sandbox has no use for a snapshot of ${snapshot.backend}`);
  }
  if (snapshot.imagePath !== imagePath) {
    throw new FloeError('unsupported', `the snapshot of ${snapshot.sandbox} is of a sandbox with another image`);
  }
  if (snapshot.isReleased) throw releasedError(snapshot);
  return snapshot;
}

/**
 * Returns the exit code of a command and the signal that ended it. Like a shell, bwrap reports the end by a signal as 128 plus the signal's
 * number.
 */
function exitOf(ended: SpawnResult, killed: boolean): { exitCode: number | null; signal: string | null } {
  if (killed || ended.signal !== null) return { exitCode: null, signal: ended.signal ?? 'SIGKILL' };
  const number = (ended.exitCode ?? 0) - 128;
  const name = Object.entries(constants.signals).find(([, value]) => value === number)?.[0];
  return name === undefined ? { exitCode: ended.exitCode, signal: null } : { exitCode: null, signal: name };
}
