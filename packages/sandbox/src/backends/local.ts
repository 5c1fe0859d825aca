import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readFile, realpath, rm, stat } from 'node:fs/promises';
import { dirname, join, resolve, sep } from 'node:path';
import { asFloeError, type Clock, FloeError, MIB, removeTree } from '@floe-rl/core';
import type { SandboxFile } from '../api/files.ts';
import {
  type ExecRequest,
  type ExecResult,
  NO_SNAPSHOTS,
  type Runtime,
  type RuntimeDescription,
  type RuntimePaths,
  type RuntimeProblem,
  type RuntimeProvider,
  type StartRequest,
} from '../api/runtime.ts';
import type { RuntimeTools } from '../api/tools.ts';
import { BOX_BYTES, BOX_NODE_FLAGS, BOX_TASKS } from '../box/tool-server.ts';
import type { Cgroups } from '../processes/cgroup.ts';
import { endOwned } from '../processes/orphans.ts';
import type { Owner } from '../processes/owner.ts';
import { programPath } from '../programs.ts';
import { labelled, type Spawner, type SpawnLimits, type SpawnRequest, type SpawnResult } from '../spawn/spawner.ts';
import {
  baseEnvironment,
  COMMAND_MARK,
  checkEnvironment,
  missingProgram,
  refuseNul,
} from '../workspace/environment.ts';
import { DEFAULT_FILE_MODE, EXTRACT_SCRIPT, PACK_SCRIPT } from '../workspace/transfer.ts';
import { fileBlocks } from './host-limits.ts';
import { localBoxArgs } from './local-box.ts';
import {
  argvOf,
  execResult,
  type HostParts,
  noSnapshots,
  SandboxRuntime,
  TOOL_OUTPUT_BYTES,
  tooLarge,
} from './sandbox-runtime.ts';
import { refuseUser } from './users.ts';

/** Names of the directories that are created in each sandbox's directory. */
const SESSION_DIRS = ['work', 'home', 'tmp', 'artifacts', 'logs'];

/**
 * Shell script that starts a command of the local back end. It joins a control group if that is allowed; the command's processes cannot
 * leave the group by forking. It then sets the limits that every system supports, and replaces itself by the command. Where `setpriv` of
 * util-linux is installed, the kernel kills the command when its parent dies. Arguments: the control group's directory or an empty string,
 * the maximum file size of {@link fileBlocks} or an empty string, the command.
 */
const EXEC_SCRIPT = `[ -z "$1" ] || { echo 0 >"$1/cgroup.procs"; } 2>/dev/null || :
ulimit -c 0
[ -z "$2" ] || ulimit -f "$2"
shift 2
if command -v setpriv >/dev/null 2>&1; then exec setpriv --pdeathsig KILL -- /bin/sh -c 'exec "$@"' sh "$@"; fi
exec "$@"`;

/**
 * A command to start. `fileBlocks` is the maximum size of a file that the command may write, as {@link fileBlocks} returns it; an empty string
 * when there is no limit.
 */
type LocalCommand = Omit<SpawnRequest, 'marker' | 'onOutput'> &
  Pick<ExecRequest, 'isService'> & { readonly fileBlocks: string };

/** Limits of the tools that floe itself runs in a session, such as `tar`: their memory and number of tasks are unlimited. */
const NO_LIMITS: SpawnLimits = { memoryBytes: Number.POSITIVE_INFINITY, taskCount: Number.POSITIVE_INFINITY };

export type LocalOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly stateDir: string;
  readonly owner: Owner;
  /** Resolves with an object that creates control groups; `null` when this process may not create any. */
  readonly cgroups: () => Promise<Cgroups | null>;
};

/**
 * Sandbox back end without isolation: runs sessions as plain processes of the gateway's user, each in a directory of its own. An agent can
 * read and change everything that this user can, so agents and tasks must be trusted.
 */
export class LocalProvider implements RuntimeProvider {
  readonly backend = 'local';
  private readonly options: LocalOptions;
  private readonly dir: string;

  constructor(options: LocalOptions) {
    this.options = options;
    this.dir = join(options.stateDir, `local-${process.pid}`);
  }

  async probe(): Promise<RuntimeProblem | null> {
    const missing = await missingProgram(['sh', 'tar', 'find']);
    return missing === null ? null : { problem: `${missing} is not installed`, remedy: `install ${missing}` };
  }

  async describe(): Promise<RuntimeDescription> {
    return {
      isolation: 'without isolation',
      weaknesses: [],
      capabilities: {
        isolation: 'none',
        limits: {
          memory_mb: 'checks',
          max_processes: 'checks',
          cpus: 'none',
          storage_mb: 'none',
          max_output_mb: 'floe',
        },
        networks: ['host'],
        snapshots: NO_SNAPSHOTS,
        privileges: 'any',
      },
    };
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec } = request;
    refuseUser(this.backend, spec);
    if (spec.image !== null) {
      throw new FloeError('unsupported', 'runtime.image: the local back end has no images; use bubblewrap');
    }
    if (request.snapshot != null) throw noSnapshots(this.backend);
    checkEnvironment(spec.env);
    const dir = join(this.dir, request.name);
    try {
      for (const name of SESSION_DIRS) await mkdir(join(dir, name), { recursive: true, mode: 0o700 });
      signal.throwIfAborted();
      const { clock, owner } = this.options;
      const cgroups = await this.options.cgroups();
      signal.throwIfAborted();
      const spawner = labelled(this.options.spawner, owner, request.name);
      const token = randomBytes(9).toString('base64url');
      return new LocalRuntime({ spawner, clock, owner, cgroups, dir, request, token });
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }
}

export type LocalParts = HostParts & {
  /**
   * Random part of the environment variable that marks the commands of the sandbox. Because of it, another session cannot guess the
   * variable's value.
   */
  readonly token: string;
};

export class LocalRuntime extends SandboxRuntime<LocalParts> {
  readonly backend = 'local';
  readonly isolation = 'none';
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  readonly mcpCommand = [process.execPath, ...BOX_NODE_FLAGS, programPath('mcp-server')];
  /** Whether a spawn helper has died while it ran a command of this sandbox. Processes of that command may then still be alive. */
  private helperDied = false;
  private nextCommand = 0;

  constructor(parts: LocalParts) {
    super(parts);
    const { dir, request } = parts;
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
    this.refuseEnded(signal);
    const cwd = resolve(this.paths.workdir, request.cwd ?? '.');
    if (!(await isDirectory(cwd))) {
      throw new FloeError('workdir_missing', `there is no directory ${cwd}`, { path: cwd });
    }
    const env = { ...this.environment(), ...spec.env, ...request.env };
    const argv = argvOf(request.command);
    checkEnvironment(env);
    refuseNul('the command', argv);
    const ended = await this.run(
      {
        argv,
        fileBlocks: fileBlocks(spec),
        env,
        cwd,
        stdin: request.stdin,
        isService: request.isService,
        maxOutputBytes: this.maxOutputBytes,
        limits: { memoryBytes: spec.memory_mb * MIB, taskCount: spec.max_processes },
      },
      signal,
    );
    return execResult(ended, clock.monotonicMs() - startedMs);
  }

  async writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    for (const file of files) {
      this.refuseEnded(signal);
      const path = resolve(this.paths.workdir, file.path);
      await this.refuseOutside(path);
      try {
        await mkdir(dirname(path), { recursive: true });
        // Removes an existing symbolic link at the path first, so that the file is not written through the link.
        await rm(path, { force: true });
      } catch (cause) {
        throw this.fileFailure(path, cause);
      }
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
      await this.withFile(path, flags, async (handle) => {
        await handle.writeFile(file.content);
        await handle.chmod(file.mode ?? DEFAULT_FILE_MODE);
      });
    }
  }

  async uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    const to = resolve(this.paths.workdir, target);
    await this.refuseOutside(to);
    const report = join(this.parts.dir, `packing-${this.nextCommand}`);
    const extract = ['/bin/sh', '-c', EXTRACT_SCRIPT, 'sh', to];
    const argv = ['/bin/sh', '-c', PACK_SCRIPT, 'floe-upload', hostDir, report, ...extract];
    const tool = { argv, fileBlocks: '', env: this.environment(), maxOutputBytes: TOOL_OUTPUT_BYTES };
    const ended = await this.run(tool, signal);
    const packingFailed = (await readFile(report).catch(() => null)) !== null;
    await rm(report, { force: true });
    if (ended.exitCode === 0 && !packingFailed) return;
    throw new FloeError(
      'runtime_failed',
      `sandbox ${this.name} could not upload ${hostDir}: ${ended.stderr.toString()}`,
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
        throw tooLarge(from, maxBytes);
      }
      return buffer.subarray(0, bytesRead);
    });
  }

  openTools(signal: AbortSignal): Promise<RuntimeTools> {
    const run = (socketPath: string, killed: AbortSignal) => this.run(this.toolServer(socketPath), killed);
    return this.openToolServer(run, this.environment(), signal);
  }

  protected async remove(): Promise<void> {
    const { owner, clock, dir } = this.parts;
    if (this.helperDied) await endOwned(owner.id, ({ name }) => name === this.name, clock).catch(() => {});
    await removeTree(dir).catch(() => {});
  }

  private toolServer(socketPath: string): LocalCommand {
    const { dir, request } = this.parts;
    return {
      argv: [process.execPath, ...localBoxArgs(socketPath, dir)],
      fileBlocks: fileBlocks(request.spec),
      env: this.environment(),
      cwd: this.paths.workdir,
      maxOutputBytes: TOOL_OUTPUT_BYTES,
      limits: {
        memoryBytes: request.spec.memory_mb * MIB + BOX_BYTES,
        taskCount: request.spec.max_processes + BOX_TASKS,
      },
    };
  }

  private environment(): Record<string, string> {
    const path = process.env.PATH;
    return {
      ...baseEnvironment(this.paths.home),
      TMPDIR: join(this.parts.dir, 'tmp'),
      ...(path === undefined ? {} : { PATH: path }),
    };
  }

  private async run(command: LocalCommand, signal: AbortSignal): Promise<SpawnResult> {
    this.refuseEnded(signal);
    const { argv, fileBlocks, limits = NO_LIMITS, isService = false, ...rest } = command;
    const mark = `${this.name}:${this.nextCommand++}:${this.parts.token}`;
    const { onActivity } = this.parts.request;
    return this.runCommand(null, signal, async (cgroup) => {
      const cgroups = cgroup?.directories ?? [];
      const child = await this.parts.spawner.spawn({
        ...rest,
        argv: ['/bin/sh', '-c', EXEC_SCRIPT, 'floe-exec', cgroups[0] ?? '', fileBlocks, ...argv],
        env: { ...command.env, [COMMAND_MARK]: mark },
        marker: `${COMMAND_MARK}=${mark}`,
        limits: { ...limits, cgroups },
        onOutput: isService ? undefined : onActivity,
      });
      try {
        return await this.awaitEnd(child, child.done, signal);
      } catch (error) {
        if (FloeError.is(error) && error.details.helper === 'died') this.helperDied = true;
        throw error;
      }
    });
  }

  /**
   * Throws `runtime_failed` when `path`, with all symbolic links resolved, is not below the session's directory. When `path` does not
   * exist, its nearest parent directory that exists is checked instead.
   */
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
    throw new FloeError('runtime_failed', `${path} is outside the directory of sandbox ${this.name}`, { path });
  }

  private fileFailure(path: string, cause: unknown): FloeError {
    return new FloeError('runtime_failed', `sandbox ${this.name}: ${(cause as Error).message}`, { path }, cause);
  }

  private async withFile<T>(path: string, flags: number, use: (handle: FileHandle) => Promise<T>): Promise<T> {
    let handle: FileHandle;
    try {
      handle = await open(path, flags, 0o600);
    } catch (cause) {
      throw this.fileFailure(path, cause);
    }
    try {
      return await use(handle);
    } catch (cause) {
      throw FloeError.is(cause) ? cause : this.fileFailure(path, cause);
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
