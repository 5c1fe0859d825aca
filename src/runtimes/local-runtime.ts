import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readFile, realpath, rm, stat } from 'node:fs/promises';
import { dirname, join, resolve, sep } from 'node:path';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { removeTree } from '../core/remove-tree.ts';
import type { SandboxFile } from '../core/sandbox.ts';
import { baseEnvironment, checkEnvironment, refuseNul } from './bubblewrap/command.ts';
import { endOrGiveUp } from './kill-wait.ts';
import { tellKill } from './kills.ts';
import type { Cgroups } from './processes/cgroup.ts';
import { endOwned } from './processes/orphans.ts';
import type { Owner } from './processes/owner.ts';
import type { ExecRequest, ExecResult, Runtime, RuntimePaths, StartRequest } from './runtime.ts';
import type { SpawnedProcess, Spawner, SpawnLimits, SpawnRequest, SpawnResult } from './spawn/spawner.ts';
import { EXTRACT_SCRIPT, PACK_SCRIPT } from './transfer-script.ts';

const MB = 1024 * 1024;
/** RLIMIT_FSIZE counts in these in every shell. */
const ULIMIT_BLOCK_BYTES = 512;
const TOOL_OUTPUT_BYTES = 64 * 1024;
const DEFAULT_MODE = 0o644;
/** Marks a command's processes, so that those that leave its process group are found. */
const MARK = 'FLOE_COMMAND_MARK';

/**
 * Joins a control group where it may, since no process leaves one by forking, sets the limits that every system has and becomes the
 * command; where util-linux is there, one that dies with its parent. Arguments: the group's directory or an empty string,
 * largest file in blocks or an empty string, the command.
 */
const EXEC_SCRIPT = `[ -z "$1" ] || { echo 0 >"$1/cgroup.procs"; } 2>/dev/null || :
ulimit -c 0
[ -z "$2" ] || ulimit -f "$2"
shift 2
if command -v setpriv >/dev/null 2>&1; then exec setpriv --pdeathsig KILL -- /bin/sh -c 'exec "$@"' sh "$@"; fi
exec "$@"`;

/** A command, and the largest file that it may write in {@link ULIMIT_BLOCK_BYTES}, or an empty string. */
type LocalCommand = Omit<SpawnRequest, 'marker' | 'onOutput'> & { readonly fileBlocks: string };

/** For floe's own tools. */
const NO_LIMITS: SpawnLimits = { memoryBytes: Number.POSITIVE_INFINITY, taskCount: Number.POSITIVE_INFINITY };

export type LocalParts = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly owner: Owner;
  /** null: a command's processes are found by its mark alone. */
  readonly cgroups: Cgroups | null;
  readonly dir: string;
  readonly request: StartRequest;
  /** Random, so that the mark cannot be guessed by another session. */
  readonly token: string;
};

export class LocalRuntime implements Runtime {
  readonly backend = 'local';
  readonly isolation = 'none';
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  private readonly parts: LocalParts;
  private readonly running = new Map<SpawnedProcess, Promise<unknown>>();
  private stopping: Promise<void> | null = null;
  /** A spawn helper died while it ran something of this sandbox: what it left must be looked for. */
  private helperDied = false;
  private nextExec = 0;

  constructor(parts: LocalParts) {
    const { dir, request } = parts;
    this.parts = parts;
    this.paths = {
      workdir: join(dir, 'work'),
      home: join(dir, 'home'),
      artifacts: join(dir, 'artifacts'),
      logs: join(dir, 'logs'),
    };
    this.proxyOrigin = request.proxy?.tcpOrigin ?? '';
  }

  async exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    const { clock, request: start } = this.parts;
    const { spec } = start;
    const startedMs = clock.monotonicMs();
    signal.throwIfAborted();
    this.refuseStopped();
    const cwd = resolve(this.paths.workdir, request.cwd ?? '.');
    if (!(await isDirectory(cwd))) {
      throw new FloeError('workdir_missing', `there is no directory ${cwd}`, { path: cwd });
    }
    const env = { ...this.environment(), ...spec.env, ...request.env };
    const argv = typeof request.command === 'string' ? ['/bin/sh', '-c', request.command] : request.command;
    checkEnvironment(env);
    refuseNul('the command', argv);
    const blocks = String(Math.ceil((spec.max_file_mb * MB) / ULIMIT_BLOCK_BYTES));
    const ended = await this.run(
      {
        argv,
        fileBlocks: blocks,
        env,
        cwd,
        stdin: request.stdin,
        maxOutputBytes: Math.floor(spec.max_output_mb * MB),
        limits: { memoryBytes: spec.memory_mb * MB, taskCount: spec.max_processes },
      },
      signal,
    );
    const killedBy = ended.killedBy ?? null;
    return {
      exitCode: ended.exitCode,
      signal: ended.signal,
      stdout: ended.stdout.toString(),
      stderr: ended.stderr.toString(),
      droppedBytes: ended.droppedBytes,
      killedBy,
      wallMs: clock.monotonicMs() - startedMs,
    };
  }

  async writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    for (const file of files) {
      signal.throwIfAborted();
      this.refuseStopped();
      const path = resolve(this.paths.workdir, file.path);
      await this.refuseOutside(path);
      await mkdir(dirname(path), { recursive: true });
      // A link in the way is replaced, never written through.
      await rm(path, { force: true });
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
      await this.withFile(path, flags, async (handle) => {
        await handle.writeFile(file.content);
        await handle.chmod(file.mode ?? DEFAULT_MODE);
      });
    }
  }

  async uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    const to = resolve(this.paths.workdir, target);
    await this.refuseOutside(to);
    const report = join(this.parts.dir, `packing-${this.nextExec}`);
    const extract = ['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', to];
    const argv = ['/bin/sh', '-c', PACK_SCRIPT, 'floe-upload', hostDir, report, ...extract];
    const tool = { argv, fileBlocks: '', env: this.environment(), maxOutputBytes: TOOL_OUTPUT_BYTES };
    const ended = await this.run(tool, signal);
    const packingFailed = (await readFile(report).catch(() => null)) !== null;
    await rm(report, { force: true });
    if (ended.exitCode === 0 && !packingFailed) return;
    throw new FloeError(
      'runtime_failed',
      `session ${this.name} could not upload ${hostDir}: ${ended.stderr.toString()}`,
    );
  }

  async readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    signal.throwIfAborted();
    const from = resolve(this.paths.workdir, path);
    const real = await realpath(from).catch(() => null);
    if (real === null || !(await stat(real)).isFile()) return null;
    await this.refuseOutside(real);
    const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
    return this.withFile(real, flags, async (handle) => {
      const info = await handle.stat();
      if (!info.isFile()) return null;
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(Math.min(info.size, maxBytes) + 1));
      if (bytesRead > maxBytes) {
        throw new FloeError('runtime_failed', `${from} is larger than ${maxBytes} bytes`, { path: from });
      }
      return buffer.subarray(0, bytesRead);
    });
  }

  stop(): Promise<void> {
    this.stopping ??= this.tearDown();
    return this.stopping;
  }

  private get name(): string {
    return this.parts.request.name;
  }

  private environment(): Record<string, string> {
    const { home } = this.paths;
    const path = process.env.PATH;
    return {
      ...baseEnvironment(home),
      TMPDIR: join(this.parts.dir, 'tmp'),
      ...(path === undefined ? {} : { PATH: path }),
    };
  }

  private async tearDown(): Promise<void> {
    for (const child of this.running.keys()) child.kill();
    await Promise.allSettled(this.running.values());
    const { owner, clock } = this.parts;
    if (this.helperDied) await endOwned(owner.id, ({ name }) => name === this.name, clock).catch(() => {});
    await removeTree(this.parts.dir).catch(() => {});
  }

  private async run(request: LocalCommand, signal: AbortSignal): Promise<SpawnResult> {
    signal.throwIfAborted();
    this.refuseStopped();
    const { argv, fileBlocks, limits = NO_LIMITS, ...rest } = request;
    const marker = `${MARK}=${this.name}:${this.nextExec++}:${this.parts.token}`;
    const env = { ...request.env, [MARK]: marker.slice(MARK.length + 1) };
    const cgroup = (await this.parts.cgroups?.create(this.name, null)) ?? null;
    const cgroups = cgroup?.directories ?? [];
    const { onActivity } = this.parts.request;
    let killedBy: SpawnResult['killedBy'] = null;
    onActivity?.();
    try {
      const child = await this.parts.spawner.spawn({
        ...rest,
        argv: ['/bin/sh', '-c', EXEC_SCRIPT, 'floe-exec', cgroups[0] ?? '', fileBlocks, ...argv],
        env,
        marker,
        limits: { ...limits, cgroups },
        onOutput: onActivity,
      });
      const ended = await this.finish(child, signal);
      killedBy = ended.killedBy;
      return ended;
    } finally {
      onActivity?.();
      tellKill(this.parts.request, killedBy ?? null, signal);
      await cgroup?.remove();
    }
  }

  private async finish(child: SpawnedProcess, signal: AbortSignal): Promise<SpawnResult> {
    const abort = (): void => child.kill();
    this.running.set(child, child.done);
    if (signal.aborted || this.stopping !== null) abort();
    signal.addEventListener('abort', abort, { once: true });
    try {
      const ended = await endOrGiveUp(child.done, signal, this.parts.clock, this.name);
      signal.throwIfAborted();
      this.refuseStopped();
      return ended;
    } catch (error) {
      if (FloeError.is(error) && error.details.helper === 'died') this.helperDied = true;
      throw error;
    } finally {
      signal.removeEventListener('abort', abort);
      this.running.delete(child);
    }
  }

  private refuseStopped(): void {
    if (this.stopping !== null) throw new FloeError('runtime_failed', `session ${this.name} has been stopped`);
  }

  /** Throws `runtime_failed` when the path, with every link on the way followed, is not below the session's directory. */
  private async refuseOutside(path: string): Promise<void> {
    const root = await realpath(this.parts.dir);
    let existing = path;
    for (;;) {
      const real = await realpath(existing).catch(() => null);
      if (real !== null) {
        if (real === root || real.startsWith(root + sep)) return;
        break;
      }
      if (dirname(existing) === existing) break;
      existing = dirname(existing);
    }
    throw new FloeError('runtime_failed', `${path} is outside the directory of session ${this.name}`, { path });
  }

  private async withFile<T>(path: string, flags: number, use: (handle: FileHandle) => Promise<T>): Promise<T> {
    let handle: FileHandle;
    try {
      handle = await open(path, flags, 0o600);
    } catch (cause) {
      throw new FloeError('runtime_failed', `session ${this.name}: ${(cause as Error).message}`, { path }, cause);
    }
    try {
      return await use(handle);
    } finally {
      await handle.close();
    }
  }
}

async function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isDirectory(),
    () => false,
  );
}
