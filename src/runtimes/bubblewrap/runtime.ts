import { chown, readFile, rm, writeFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { posix } from 'node:path';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { SandboxFile } from '../../core/sandbox.ts';
import { endOrGiveUp } from '../kill-wait.ts';
import { tellKill } from '../kills.ts';
import type { Cgroups } from '../processes/cgroup.ts';
import { endOwned } from '../processes/orphans.ts';
import type { Owner } from '../processes/owner.ts';
import { isAlive, readProcess } from '../processes/process-table.ts';
import type { ExecRequest, ExecResult, Runtime, RuntimePaths, StartRequest } from '../runtime.ts';
import type { SpawnedProcess, Spawner, SpawnResult } from '../spawn/spawner.ts';
import { tarOf } from '../tar-stream.ts';
import { EXTRACT_SCRIPT, NO_FILE, READ_SCRIPT } from '../transfer-script.ts';
import {
  ARTIFACTS_DIR,
  baseEnvironment,
  checkEnvironment,
  commandArgs,
  LOGS_DIR,
  RELAY_PORT,
  refuseNul,
  sandboxArgs,
} from './command.ts';
import { execFile, type Holder } from './holder.ts';
import { AGENT_HOME, HOST_PATH, type SandboxHost } from './host.ts';
import { type Command, groupLimits, spawnRequest } from './spawn-request.ts';

const MB = 1024 * 1024;
/** After SIGKILL the kernel takes a few milliseconds to empty a process namespace. */
const REAP_POLL_MS = 2;
/** Kept of the output of floe's own small commands. */
const TOOL_OUTPUT_BYTES = 64 * 1024;
const STDERR_CHARS = 500;
/** bwrap's last words when what it is to run is not there. */
const NO_PROGRAM = /^bwrap: execvp /m;
/** The conventional code of a shell that does not find a command. */
const EXIT_NO_PROGRAM = 127;

export type BubblewrapParts = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly owner: Owner;
  readonly dir: string;
  readonly host: SandboxHost;
  readonly request: StartRequest;
  readonly holder: Holder;
  readonly uid: number;
  /** null: limits rest on watching the processes. */
  readonly cgroups: Cgroups | null;
};

type Ended = SpawnResult & {
  /** False when bwrap failed before the command ran. */
  readonly ran: boolean;
};

export class BubblewrapRuntime implements Runtime {
  readonly backend = 'bubblewrap';
  readonly isolation = 'sandboxed';
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  private readonly parts: BubblewrapParts;
  private readonly fixedArgs: readonly string[];
  private readonly running = new Map<SpawnedProcess, Promise<unknown>>();
  private proxySocket: Promise<string> | null = null;
  private stopping: Promise<void> | null = null;
  private nextExec = 0;

  constructor(parts: BubblewrapParts) {
    const { request } = parts;
    this.parts = parts;
    this.paths = { workdir: request.spec.workdir, home: AGENT_HOME, artifacts: ARTIFACTS_DIR, logs: LOGS_DIR };
    this.fixedArgs = sandboxArgs(parts.host, request, parts.holder.layout);
    const direct = request.spec.network === 'host' && request.proxy !== null;
    this.proxyOrigin = direct ? request.proxy.tcpOrigin : `http://127.0.0.1:${RELAY_PORT}`;
  }

  async exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    const { spec } = this.parts.request;
    const startedMs = this.parts.clock.monotonicMs();
    const env = { ...baseEnvironment(AGENT_HOME), ...spec.env, ...request.env };
    const cwd = posix.resolve(spec.workdir, request.cwd ?? '.');
    const argv = typeof request.command === 'string' ? ['/bin/sh', '-c', request.command] : request.command;
    const ended = await this.run(
      {
        argv,
        cwd,
        env,
        stdin: request.stdin,
        withProxy: request.withProxy === true && spec.network === 'none',
        maxOutputBytes: Math.floor(spec.max_output_mb * MB),
      },
      signal,
    );
    const killedBy = ended.killedBy ?? null;
    const stderr = ended.stderr.toString();
    // In an image the agent can remove programs, the shell too: that is the command's failure, not the sandbox's.
    const missing = !ended.ran && killedBy === null && NO_PROGRAM.test(stderr);
    if (!ended.ran && killedBy === null && !missing) throw this.notRun(stderr, cwd);
    return {
      ...(missing ? { exitCode: EXIT_NO_PROGRAM, signal: null } : exitOf(ended, killedBy !== null)),
      stdout: ended.stdout.toString(),
      stderr,
      droppedBytes: ended.droppedBytes,
      killedBy,
      wallMs: this.parts.clock.monotonicMs() - startedMs,
    };
  }

  async writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    if (files.length === 0) return;
    const { workdir } = this.paths;
    const placed = files.map((file) => ({ ...file, path: posix.resolve(workdir, file.path) }));
    await this.tool(
      ['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', '/'],
      { stdin: tarOf(placed, this.parts.clock.nowMs()) },
      'write files',
      signal,
    );
  }

  async uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    const to = posix.resolve(this.paths.workdir, target);
    await this.tool(['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', to], { upload: hostDir }, `upload ${hostDir}`, signal);
  }

  async readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    const from = posix.resolve(this.paths.workdir, path);
    // One byte more than allowed tells a file that is too large from one that just fits.
    const argv = ['/bin/sh', '-c', READ_SCRIPT, 'sh', from, String(maxBytes + 1)];
    const ended = await this.run(this.toolCommand(argv, { maxOutputBytes: 2 * maxBytes + 2 }), signal);
    if (ended.exitCode === NO_FILE) return null;
    if (ended.exitCode !== 0) throw this.toolFailure(`read ${from}`, ended);
    if (ended.stdout.length > maxBytes) {
      throw new FloeError('runtime_failed', `${from} is larger than ${maxBytes} bytes`, { path: from });
    }
    return ended.stdout;
  }

  stop(): Promise<void> {
    this.stopping ??= this.tearDown();
    return this.stopping;
  }

  private async tearDown(): Promise<void> {
    for (const child of this.running.keys()) child.kill();
    await Promise.allSettled(this.running.values());
    const { holder, owner, clock, request } = this.parts;
    holder.process.kill();
    // Where the spawn helper died, something may have been started that its death did not reach.
    await holder.process.done.catch(() =>
      endOwned(owner.id, ({ name }) => name === request.name, clock).catch(() => {}),
    );
    await rm(this.parts.dir, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
  }

  private toolCommand(argv: readonly string[], extra: Partial<Command>): Command {
    return {
      argv,
      cwd: '/',
      env: baseEnvironment(AGENT_HOME),
      withProxy: false,
      maxOutputBytes: TOOL_OUTPUT_BYTES,
      ...extra,
    };
  }

  private async tool(
    argv: readonly string[],
    extra: Partial<Command>,
    what: string,
    signal: AbortSignal,
  ): Promise<void> {
    const ended = await this.run(this.toolCommand(argv, extra), signal);
    if (ended.exitCode !== 0) throw this.toolFailure(what, ended);
  }

  private toolFailure(what: string, ended: Ended): FloeError {
    const stderr = ended.stderr.toString().trim().slice(-STDERR_CHARS);
    const { name, spec } = this.parts.request;
    // tar calls a full disk by many names, so the limit is always said.
    const limit = `the storage of a session here is ${spec.storage_mb} MiB`;
    return new FloeError('runtime_failed', `sandbox ${name} could not ${what} (${limit}): ${stderr}`, { stderr });
  }

  /** Runs one command in the session's namespaces to its end, and to the end of everything it started. */
  private async run(command: Command, signal: AbortSignal): Promise<Ended> {
    signal.throwIfAborted();
    this.refuseStopped();
    checkEnvironment(command.env);
    refuseNul('the command', [...command.argv, command.cwd]);
    const id = this.nextExec++;
    const { dir, host, spawner, request } = this.parts;
    const relaySocket = command.withProxy ? await this.openProxySocket() : null;
    const plainRoot = request.spec.image === null;
    const { options, argv } = commandArgs(host, { ...command, relaySocket, plainRoot });
    const files = {
      args: execFile(dir, id, 'args'),
      status: execFile(dir, id, 'status'),
      packing: execFile(dir, id, 'packing'),
    };
    await writeFile(files.args, [...this.fixedArgs, '--json-status-fd', '8', ...options].join('\0'), { mode: 0o600 });
    this.refuseStopped();
    let killedBy: Ended['killedBy'] = null;
    request.onActivity?.();
    const cgroup = (await this.parts.cgroups?.create(request.name, groupLimits(request.spec, command))) ?? null;
    try {
      const child = await spawner.spawn(spawnRequest(this.parts, command, { files, argv, cgroup }));
      const ended = await this.finish(child, files.status, signal);
      killedBy = ended.killedBy;
      const packingFailed = command.upload !== undefined && (await readFile(files.packing).catch(() => null)) !== null;
      return packingFailed ? { ...ended, exitCode: ended.exitCode || 1 } : ended;
    } finally {
      request.onActivity?.();
      tellKill(request, killedBy ?? null, signal);
      await Promise.all([cgroup?.remove(), ...Object.values(files).map((file) => rm(file, { force: true }))]);
    }
  }

  private async finish(child: SpawnedProcess, statusFile: string, signal: AbortSignal): Promise<Ended> {
    const abort = (): void => child.kill();
    const ending = this.ended(child, statusFile);
    this.running.set(child, ending);
    if (signal.aborted || this.stopping !== null) abort();
    signal.addEventListener('abort', abort, { once: true });
    try {
      const ended = await endOrGiveUp(ending, signal, this.parts.clock, this.parts.request.name);
      signal.throwIfAborted();
      this.refuseStopped();
      return ended;
    } finally {
      signal.removeEventListener('abort', abort);
      this.running.delete(child);
    }
  }

  private async ended(child: SpawnedProcess, statusFile: string): Promise<Ended> {
    const result = await child.done;
    const status = await readFile(statusFile, 'utf8').catch(() => '');
    const initPid = Number(/"child-pid": (\d+)/.exec(status)?.[1]);
    if (!Number.isNaN(initPid)) await this.gone(initPid);
    return { ...result, ran: status.includes('"exit-code"') };
  }

  /** Resolves when the first process of a sandbox has ended: the kernel ends all others of its namespace before that. */
  private gone(pid: number): Promise<void> {
    return new Promise((resolve) => {
      const look = (): void => {
        if (isAlive(readProcess(pid))) this.parts.clock.schedule(REAP_POLL_MS, look);
        else resolve();
      };
      look();
    });
  }

  private notRun(stderr: string, cwd: string): FloeError {
    const why = stderr.trim().slice(-STDERR_CHARS);
    // The command never ran, so all of this is bwrap's own report.
    if (why.includes("Can't chdir to")) {
      return new FloeError('workdir_missing', `there is no directory ${cwd} in the sandbox`, { path: cwd });
    }
    return new FloeError('runtime_failed', `sandbox ${this.parts.request.name} could not run a command: ${why}`, {
      stderr: why,
    });
  }

  private refuseStopped(): void {
    if (this.stopping === null) return;
    throw new FloeError('runtime_failed', `sandbox ${this.parts.request.name} has been stopped`);
  }

  /** Path of the session's proxy socket in the holder's namespace. */
  private openProxySocket(): Promise<string> {
    this.proxySocket ??= this.bindProxySocket();
    return this.proxySocket;
  }

  private async bindProxySocket(): Promise<string> {
    const { spawner, host, holder, request, uid } = this.parts;
    if (request.proxy === null) {
      throw new FloeError('runtime_failed', `sandbox ${request.name} was started without a proxy`);
    }
    const { socketPath } = request.proxy;
    if (host.mode === 'user') return socketPath;
    // The sandbox's user cannot reach the directory that the socket is in, so it is shown where it can.
    await chown(socketPath, uid, uid);
    const target = `${holder.layout.base}/in/proxy.sock`;
    const pid = String(holder.process.pid);
    const argv = ['nsenter', '--mount', '--target', pid, '--', 'mount', '--bind', socketPath, target];
    const child = await spawner.spawn({ argv, env: { PATH: HOST_PATH }, maxOutputBytes: TOOL_OUTPUT_BYTES });
    const { exitCode, stderr } = await child.done;
    if (exitCode === 0) return target;
    throw new FloeError('runtime_failed', `the proxy socket cannot be shown in ${request.name}: ${stderr.toString()}`);
  }
}

/** bwrap reports the end by a signal as a shell does, by an exit code of 128 and the signal's number. */
function exitOf(ended: Ended, killed: boolean): { exitCode: number | null; signal: string | null } {
  if (killed || ended.signal !== null) return { exitCode: null, signal: ended.signal ?? 'SIGKILL' };
  const number = (ended.exitCode ?? 0) - 128;
  const name = Object.entries(constants.signals).find(([, value]) => value === number)?.[0];
  return name === undefined ? { exitCode: ended.exitCode, signal: null } : { exitCode: null, signal: name };
}
