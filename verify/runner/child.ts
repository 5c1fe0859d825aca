// Processes that the programs start and end. Signals are sent by pid, and only to processes that were started here and to their descendants.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import { Readable } from 'node:stream';
import { sleep, systemClock } from '@floe-rl/core';
import { childrenOf, killPid } from '../services/processes.ts';

/** Maximum number of characters of a child's standard error that are kept for error messages. */
const KEPT_ERROR_CHARS = 4_000;
/** Maximum number of lines from the end of a log that an error message quotes. */
const QUOTED_LINES = 15;
/** Maximum time in ms that a child may take to end after SIGTERM. After this time it gets SIGKILL. */
const STOP_GRACE_MS = 15_000;
/** Time in ms between two checks of a process that must end or answer. */
const POLL_INTERVAL_MS = 100;

type Exit = { readonly code: number | null; readonly signal: NodeJS.Signals | null };

export type ChildOptions = {
  readonly cwd?: string;
  /** Variables in addition to the variables of this process. A variable that is `undefined` is removed. */
  readonly env?: NodeJS.ProcessEnv | undefined;
  /** User and group of the child, by their ids. */
  readonly uid?: number;
  readonly gid?: number;
  /** File that gets the output of the child. The default is to keep it for {@link Child.lines} and {@link Child.errors}. */
  readonly log?: string;
  /** Whether the child writes its errors to the standard error of this program. They are then not kept. */
  readonly isShown?: boolean;
  /** Whether the child leads a process group, which is signalled and ended as a whole. */
  readonly isGroup?: boolean;
};

const running = new Set<Child>();

// When this program ends for any reason, it also kills its children.
process.on('exit', () => {
  for (const child of running) child.send('SIGKILL');
});
for (const [name, number] of Object.entries({ SIGHUP: 1, SIGINT: 2, SIGTERM: 15 })) {
  process.once(name, () => process.exit(128 + number));
}

export class Child {
  /** Resolves to the exit status when the child process has ended. */
  readonly exited: Promise<Exit>;
  /** Standard output of the child process, as lines of text. It has none when the child has a log. */
  readonly lines: Interface;
  /** Whether the child has printed its first line. This line reports that the child accepts requests. */
  isReady = false;
  /** The first line that the child has printed; an empty string until then. */
  readyLine = '';
  /** Whether the child process is being restarted. */
  isRestarting = false;
  private readonly process: ChildProcess;
  private readonly command: readonly string[];
  private readonly options: ChildOptions;
  private stderr = '';

  constructor(command: readonly string[], options: ChildOptions = {}) {
    const { env = {}, log, isShown = false, isGroup = false, ...others } = options;
    const [program = '', ...args] = command;
    this.command = command;
    this.options = options;
    const output = log === undefined ? 'pipe' : openSync(log, 'a');
    this.process = spawn(program, args, {
      ...others,
      stdio: ['ignore', output, isShown ? 'inherit' : output],
      env: { ...process.env, ...env },
      detached: isGroup,
    });
    if (output !== 'pipe') closeSync(output);
    this.process.stderr?.on('data', (chunk: Buffer) => {
      this.stderr = `${this.stderr}${chunk}`.slice(-KEPT_ERROR_CHARS);
    });
    this.lines = createInterface({ input: this.process.stdout ?? Readable.from([]) });
    this.exited = once(this.process, 'exit').then(
      ([code, signal]) => {
        running.delete(this);
        return { code, signal };
      },
      (error: Error) => {
        running.delete(this);
        this.stderr = error.message;
        return { code: 127, signal: null };
      },
    );
    running.add(this);
  }

  get pid(): number {
    if (this.process.pid === undefined) throw new Error(`${this.command[0]} could not be started`);
    return this.process.pid;
  }

  get isRunning(): boolean {
    return this.process.pid !== undefined && this.process.exitCode === null && this.process.signalCode === null;
  }

  get wasKilled(): boolean {
    return this.process.signalCode === 'SIGKILL';
  }

  /** The end of the child's log or, without one, of its standard error. */
  get errors(): string {
    const { log } = this.options;
    if (log === undefined) return this.stderr;
    return `${this.stderr}the end of ${log}:\n${readFileSync(log, 'utf8').trimEnd().split('\n').slice(-QUOTED_LINES).join('\n')}`;
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

  /** Resolves to the first line that begins with `text`. Rejects with the child's errors when it ends before. */
  async printed(text: string): Promise<string> {
    const line = new Promise<string>((resolve) => {
      this.lines.on('line', (one) => {
        if (one.startsWith(text)) resolve(one);
      });
    });
    const ended = this.exited.then(() => {
      throw new Error(`${this.name} ended before it printed "${text}": ${this.errors}`);
    });
    return Promise.race([line, ended]);
  }

  /** Resolves when the child answers `url` with a status of success. Rejects when it ends before, or does not answer within `limitMs`. */
  async answers(url: string, limitMs: number): Promise<void> {
    const deadlineMs = systemClock.monotonicMs() + limitMs;
    while (this.isRunning && systemClock.monotonicMs() < deadlineMs) {
      if (await isAnswered(url)) return;
      await sleep(systemClock, POLL_INTERVAL_MS);
    }
    const how = this.isRunning ? 'did not answer in time' : 'ended';
    await this.kill();
    throw new Error(`${this.name} ${how}; ${this.errors}`);
  }

  /**
   * Resolves to the exit status, or to "a time limit" when the child ran for more than `limitMs`. Ends the processes of its group that are
   * left.
   */
  async end(limitMs: number): Promise<number | string> {
    const stopped = new AbortController();
    const limit = sleep(systemClock, limitMs, stopped.signal).then(
      () => true,
      () => false,
    );
    const ended = this.exited.then(({ code, signal }) => code ?? String(signal));
    const status = await Promise.race([ended, limit.then((isOver) => (isOver ? 'a time limit' : ended))]);
    stopped.abort();
    await this.stop();
    return status;
  }

  signal(name: NodeJS.Signals): void {
    if (this.isRunning) this.process.kill(name);
  }

  /** The pid of the program under test. When the child is strace, this is the pid of the process that strace started. */
  get target(): number {
    return this.command[0] === 'strace' ? (childrenOf(this.pid)[0] ?? this.pid) : this.pid;
  }

  async kill(): Promise<void> {
    this.send('SIGKILL');
    await this.exited;
  }

  /** Ends the child by SIGTERM or, after a time, by SIGKILL. Resolves when it has ended and, when it leads a group, all of the group. */
  async stop(): Promise<void> {
    this.send('SIGCONT');
    this.send('SIGTERM');
    const killMs = systemClock.monotonicMs() + STOP_GRACE_MS;
    const cancelKill = systemClock.schedule(STOP_GRACE_MS, () => void this.send('SIGKILL'));
    await this.exited;
    cancelKill();
    if (this.options.isGroup !== true) return;
    while (this.send(systemClock.monotonicMs() > killMs ? 'SIGKILL' : 0)) await sleep(systemClock, POLL_INTERVAL_MS);
  }

  /** Sends a signal to the program under test or to the whole group. Returns false when there is no process to which it can be sent. */
  send(name: NodeJS.Signals | 0): boolean {
    if (this.options.isGroup === true && this.process.pid !== undefined) return killPid(-this.process.pid, name);
    return this.isRunning && killPid(this.target, name);
  }

  private get name(): string {
    return this.command.slice(0, 3).join(' ');
  }
}

async function isAnswered(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}
