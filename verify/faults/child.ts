// Child processes that the fault programs kill on purpose. Signals are sent by pid, and only to processes that were started here and to
// their descendants.
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import type { Readable } from 'node:stream';
import { systemClock } from '@floe-rl/core';
import { childrenOf } from '../services/processes.ts';

/** Maximum number of characters of a child's standard error that are kept for error messages. */
const KEPT_ERROR_CHARS = 4_000;
/** Maximum time in ms that a child may take to end after SIGTERM. After this time it gets SIGKILL. */
const STOP_GRACE_MS = 15_000;

type Exit = { readonly code: number | null; readonly signal: NodeJS.Signals | null };

const running = new Set<Child>();

// When this program ends for any reason, it also kills its children.
process.on('exit', () => {
  for (const child of running) killPid(child.target);
});
for (const [name, number] of Object.entries({ SIGHUP: 1, SIGINT: 2, SIGTERM: 15 })) {
  process.once(name, () => process.exit(128 + number));
}

export class Child {
  /** Resolves to the exit status when the child process has ended. */
  readonly exited: Promise<Exit>;
  /** Standard output of the child process, as lines of text. */
  readonly lines: Interface;
  /** Whether the child has printed its first line, by which it reports that it accepts requests. */
  isReady = false;
  /** The first line that the child has printed; an empty string until then. */
  readyLine = '';
  /** Whether the child process is being restarted. */
  isRestarting = false;
  private readonly process: ChildProcessByStdio<null, Readable, Readable>;
  private readonly command: readonly string[];
  private stderr = '';

  constructor(
    command: readonly string[],
    { env = {} }: { readonly env?: Readonly<Record<string, string>> | undefined } = {},
  ) {
    const [program = '', ...args] = command;
    this.command = command;
    this.process = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
    this.process.stderr.on('data', (chunk: Buffer) => {
      this.stderr = `${this.stderr}${chunk}`.slice(-KEPT_ERROR_CHARS);
    });
    this.lines = createInterface({ input: this.process.stdout });
    this.exited = once(this.process, 'exit').then(([code, signal]) => {
      running.delete(this);
      return { code, signal };
    });
    running.add(this);
  }

  get pid(): number {
    if (this.process.pid === undefined) throw new Error(`${this.command[0]} could not be started`);
    return this.process.pid;
  }

  get isRunning(): boolean {
    return this.process.exitCode === null && this.process.signalCode === null;
  }

  get wasKilled(): boolean {
    return this.process.signalCode === 'SIGKILL';
  }

  /** The end of the child's standard error, at most `KEPT_ERROR_CHARS` characters. */
  get errors(): string {
    return this.stderr;
  }

  /** Resolves to true when the child prints its first line, and to false when the child ends before that. */
  async becameReady(): Promise<boolean> {
    const line = once(this.lines, 'line').then(([text]) => {
      this.isReady = true;
      this.readyLine = String(text);
      return true;
    });
    return Promise.race([line, this.exited.then(() => false)]);
  }

  signal(name: NodeJS.Signals): void {
    if (this.isRunning) this.process.kill(name);
  }

  /** The pid of the program under test. When the child is strace, this is the pid of the process that strace started. */
  get target(): number {
    return this.command[0] === 'strace' ? (childrenOf(this.pid)[0] ?? this.pid) : this.pid;
  }

  async kill(): Promise<void> {
    if (this.isRunning) killPid(this.target);
    await this.exited;
  }

  async stop(): Promise<void> {
    if (this.isRunning) {
      killPid(this.target, 'SIGCONT');
      killPid(this.target, 'SIGTERM');
    }
    const cancelKill = systemClock.schedule(STOP_GRACE_MS, () => {
      if (this.isRunning) killPid(this.target);
    });
    await this.exited;
    cancelKill();
  }
}

/** Kills every child that is still running and waits until all children have ended. */
export async function killAll(): Promise<void> {
  await Promise.all([...running].map((child) => child.kill()));
}

/** Returns the pids of all processes, except this program's own, whose environment or command line contains `marker`. */
export function processesWith(marker: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && pid !== process.pid)
    .filter((pid) =>
      ['environ', 'cmdline'].some((file) => {
        try {
          return readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(marker);
        } catch {
          // The files of a process cannot be read when the process has ended or belongs to another user.
          return false;
        }
      }),
    );
}

/** Returns the resident memory of a process in KiB: now, or the largest so far. Throws an Error when the process has ended. */
export function residentKb(pid: number, when: 'now' | 'peak' = 'now'): number {
  const field = when === 'now' ? /VmRSS:\s+(\d+)/ : /VmHWM:\s+(\d+)/;
  const [, text] = field.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  if (text === undefined) throw new Error(`process ${pid} has no resident memory: it has ended`);
  return Number(text);
}

/** Sends a signal to a process, which must be a descendant of this program. Returns false when the process has already ended. */
export function killPid(pid: number, name: NodeJS.Signals = 'SIGKILL'): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}
