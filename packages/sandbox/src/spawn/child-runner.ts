import { type ChildProcess, spawn } from 'node:child_process';
import { lastOutput, sleep, systemClock } from '@floe-rl/core';
import {
  isAlive,
  type ProcessRow,
  processesOfGroup,
  processesWithEnvironment,
  readProcess,
  readProcessTable,
} from '../processes/process-table.ts';
import { CappedOutput } from './capped-output.ts';
import { type LimitHit, ProcessWatch } from './process-watch.ts';
import type { HelperReply, HelperSpawnRequest } from './spawner.ts';

/**
 * Maximum number of bytes of the first line of a process's output, which is reported. A longer line is not reported.
 */
const MAX_LINE_BYTES = 64 * 1024;
/**
 * First interval in milliseconds of the checks whether killed processes have ended; it doubles with each check. Most processes have ended
 * after one or two checks.
 */
const EXIT_POLL_MS = 2;
/**
 * Maximum interval in milliseconds of the checks whether killed processes have ended. It is long because a process can hang in the kernel
 * indefinitely, and each check reads the table of all processes.
 */
const MAX_EXIT_POLL_MS = 1_000;
/**
 * Time in milliseconds to wait for a command's last output after the command has ended. If the output pipe is still open then, a process
 * that does not belong to the command holds it open.
 */
const OUTPUT_GRACE_MS = 250;
/** Minimum interval in milliseconds between two messages that report new output of a command. */
const OUTPUT_REPORT_MS = 1_000;

/**
 * Identifies the processes of a command: by their process group (`pid`), by an entry in their environment (`marker`), and by their control
 * groups.
 */
type RunningCommand = {
  readonly pid: number;
  readonly marker: string | undefined;
  readonly cgroups: readonly string[];
};

export type ChildRunnerOptions = {
  /**
   * Returns whether every process of this pid namespace belongs to a command, except for its first process and this process. All processes of
   * the namespace are then killed when no command runs any more.
   */
  readonly ownsNamespace: () => boolean;
};

/**
 * Starts child processes, enforces their limits, collects their output in bounded memory, and kills every process that a command leaves. It
 * is the main part of the spawn helper, and of the box server inside a sandbox.
 */
export class ChildRunner {
  private readonly reply: (message: HelperReply) => void;
  private readonly options: ChildRunnerOptions;
  private readonly running = new Map<number, RunningCommand>();
  private readonly watch = new ProcessWatch(systemClock, (table) => this.orphans(table));

  /** `reply` receives the messages about the child processes. */
  constructor(reply: (message: HelperReply) => void, options: ChildRunnerOptions = { ownsNamespace: () => false }) {
    this.reply = reply;
    this.options = options;
  }

  /** Starts the child process number `id`. The replies `started` and `done`, or `failed`, follow. */
  start(id: number, request: HelperSpawnRequest): void {
    const [program, ...args] = request.argv;
    if (program === undefined) {
      this.reply({ type: 'failed', id, message: 'nothing to run' });
      return;
    }
    let child: ChildProcess;
    try {
      child = spawn(program, args, {
        detached: true,
        cwd: request.cwd,
        env: { ...request.env },
        ...(request.owner == null ? {} : { uid: request.owner.uid, gid: request.owner.gid }),
        stdio: [request.stdin === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
      });
    } catch (cause) {
      this.reply({ type: 'failed', id, message: `cannot start ${program}: ${(cause as Error).message}` });
      return;
    }
    const { pid } = child;
    if (pid === undefined) {
      child.once('error', (cause) =>
        this.reply({ type: 'failed', id, message: `cannot start ${program}: ${cause.message}` }),
      );
      return;
    }
    child.on('error', () => {});
    const entry = { pid, marker: request.marker, cgroups: request.limits?.cgroups ?? [] };
    this.running.set(id, entry);
    this.reply({ type: 'started', id, pid });
    feed(child, request.stdin);
    this.follow(id, entry, child, request);
  }

  /** Kills every process of the child number `id`. Does nothing when the child has ended. */
  kill(id: number): void {
    const entry = this.running.get(id);
    if (entry !== undefined) killAll(entry);
  }

  /** Kills every process of all children. */
  killAll(): void {
    for (const entry of this.running.values()) killAll(entry);
  }

  /**
   * Kills the processes that ended commands have left. Does nothing while a command runs, and when the pid namespace also has processes
   * that belong to no command. Resolves when all have ended, or after a second, because a process that hangs in the kernel does not end.
   */
  async endRest(): Promise<void> {
    for (let pollMs = EXIT_POLL_MS; pollMs < MAX_EXIT_POLL_MS; pollMs *= 2) {
      if (this.running.size > 0 || this.strangers().length === 0) return;
      await sleep(systemClock, pollMs);
    }
  }

  private follow(id: number, entry: RunningCommand, child: ChildProcess, request: HelperSpawnRequest): void {
    const { pid } = entry;
    const stdout = new CappedOutput(request.maxOutputBytes);
    const stderr = new CappedOutput(request.maxOutputBytes);
    const onFirstLine = firstLineOf((line) => this.reply({ type: 'line', id, line }));
    const onOutput = request.reportsOutput ? this.outputReporter(id) : () => {};
    child.stdout?.on('data', (chunk: Buffer) => {
      onFirstLine(chunk);
      onOutput();
      stdout.push(chunk);
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      onOutput();
      stderr.push(chunk);
    });
    let killedBy: LimitHit | null = null;
    const closed = new Promise((resolve) => child.once('close', resolve));
    const outputs = { streams: [child.stdout, child.stderr], closed };
    if (request.limits !== undefined) {
      this.watch.add(pid, request.limits, (hit) => {
        killedBy = hit;
        killAll(entry);
      });
    }
    const exited = new Promise<void>((resolve) => {
      child.once('exit', (exitCode) => {
        // A command that exited with an error after it had hit a limit of its control group counts as killed by that limit.
        if (exitCode !== 0) killedBy ??= this.watch.cgroupHit(pid);
        this.watch.remove(pid);
        this.endCommand(entry, () => {
          resolve();
          void lastOutput(outputs, OUTPUT_GRACE_MS, systemClock).then(() => {
            child.stdout?.destroy();
            child.stderr?.destroy();
          });
        });
      });
    });
    child.once('close', (exitCode, signal) => {
      exited.then(() => {
        this.running.delete(id);
        const droppedBytes = stdout.droppedBytes + stderr.droppedBytes;
        const result = { exitCode, signal, stdout: stdout.bytes(), stderr: stderr.bytes(), droppedBytes, killedBy };
        this.reply({ type: 'done', id, result });
      });
    });
  }

  /**
   * Kills the remaining processes of a command whose first process has ended, and calls `done` when none of them is alive. The kill is
   * repeated, since a process may fork while the processes are being listed.
   */
  private endCommand(entry: RunningCommand, done: () => void, pollMs = EXIT_POLL_MS): void {
    kill(-entry.pid);
    const members = [...membersOf(entry), ...this.strangers()];
    for (const member of members) kill(member);
    if (members.length === 0 && hasGroupEnded(entry.pid)) done();
    else systemClock.schedule(pollMs, () => this.endCommand(entry, done, Math.min(2 * pollMs, MAX_EXIT_POLL_MS)));
  }

  /** Kills every process of a pid namespace in which no other command runs. Returns the processes that are still alive. */
  private strangers(): number[] {
    if (!this.options.ownsNamespace() || this.running.size > 1) return [];
    // The kernel kills all processes at once, so that none can fork meanwhile. It spares this process and the first process of the namespace.
    kill(-1);
    return [...readProcessTable().values()]
      .filter((row) => row.pid !== 1 && row.pid !== process.pid && row.parentPid !== 0 && isAlive(row))
      .map((row) => row.pid);
  }

  /**
   * Returns the processes of commands that outlived their parents, in a pid namespace that contains only processes of commands. They count
   * towards the limits. Otherwise a command whose processes all lose their parents would have no limits.
   */
  private orphans(table: ReadonlyMap<number, ProcessRow>): ProcessRow[] {
    if (!this.options.ownsNamespace()) return [];
    const others = new Set([...this.running.values()].map(({ pid }) => pid));
    for (let row = table.get(process.pid); row !== undefined; row = table.get(row.parentPid)) others.add(row.pid);
    // The kernel makes an orphan a child of the first process of its namespace.
    return [...table.values()].filter(({ pid, parentPid }) => parentPid === 1 && !others.has(pid));
  }

  /** Returns a function that reports, at most once per {@link OUTPUT_REPORT_MS}, that the command has written output. */
  private outputReporter(id: number): () => void {
    let reportedMs = Number.NEGATIVE_INFINITY;
    return () => {
      const nowMs = systemClock.monotonicMs();
      if (nowMs - reportedMs < OUTPUT_REPORT_MS) return;
      reportedMs = nowMs;
      this.reply({ type: 'output', id });
    };
  }
}

function feed(child: ChildProcess, stdin: Buffer | 'hold' | undefined): void {
  // Ignores write errors, because a process may end without reading its input.
  child.stdin?.on('error', () => {});
  if (stdin !== undefined && stdin !== 'hold') child.stdin?.end(stdin);
}

/** Returns a function that takes the chunks of a stream and calls `onLine` once, with the first line of the stream. */
function firstLineOf(onLine: (line: string) => void): (chunk: Buffer) => void {
  let seen: Buffer | null = Buffer.alloc(0);
  return (chunk) => {
    if (seen === null) return;
    seen = Buffer.concat([seen, chunk]);
    const end = seen.indexOf('\n');
    if (end >= 0) onLine(seen.toString('utf8', 0, end));
    if (end >= 0 || seen.length > MAX_LINE_BYTES) seen = null;
  };
}

/** Returns the ids of the live processes of a command, including processes that have left its process group. */
function membersOf({ marker, cgroups }: RunningCommand): number[] {
  const marked = marker === undefined ? [] : processesWithEnvironment(marker);
  return [...marked, ...cgroups.flatMap(processesOfGroup)].filter((pid) => isAlive(readProcess(pid)));
}

function killAll(entry: RunningCommand): void {
  kill(-entry.pid);
  for (const member of membersOf(entry)) kill(member);
}

function kill(target: number): void {
  try {
    process.kill(target, 'SIGKILL');
  } catch {
    // The signal could not be sent because the process has already ended.
  }
}

function hasGroupEnded(pid: number): boolean {
  try {
    process.kill(-pid, 0);
  } catch {
    return true;
  }
  return ![...readProcessTable().values()].some((row) => row.groupId === pid && isAlive(row));
}
