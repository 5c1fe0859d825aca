// Child processes that are meant to die. Only processes that were started here are ever signalled, by pid.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const all = new Set();

// However this program ends, what it started ends with it.
process.on('exit', () => {
  for (const child of all) killPid(child.target);
});
for (const [name, number] of Object.entries({ SIGHUP: 1, SIGINT: 2, SIGTERM: 15 })) {
  process.once(name, () => process.exit(128 + number));
}

export class Child {
  /** `command` is the whole command line. With `ready`, waits for its first line of JSON. */
  static start(command, { env = {}, cwd } = {}) {
    const [program, ...args] = command;
    const process_ = spawn(program, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
      cwd,
    });
    return new Child(process_, command);
  }

  constructor(process_, command) {
    this.process = process_;
    this.command = command;
    this.errors = '';
    this.started = false;
    process_.stderr.on('data', (chunk) => {
      this.errors = `${this.errors}${chunk}`.slice(-4_000);
    });
    this.lines = createInterface({ input: process_.stdout });
    this.exited = once(process_, 'exit').then(([code, signal]) => {
      all.delete(this);
      return { code, signal };
    });
    all.add(this);
  }

  get pid() {
    return this.process.pid;
  }

  get running() {
    return this.process.exitCode === null && this.process.signalCode === null;
  }

  /** The first line that is JSON; null when the process ends before. */
  async ready() {
    const line = once(this.lines, 'line').then(([text]) => {
      this.started = true;
      return JSON.parse(text);
    });
    return Promise.race([line, this.exited.then(() => null)]);
  }

  /** As `ready`, but a process that ends instead is an error with what it said. */
  async mustBeReady() {
    const said = await this.ready();
    if (said === null) throw new Error(`${this.command.join(' ').slice(0, 300)} ended: ${this.errors}`);
    return said;
  }

  signal(name) {
    if (this.running) this.process.kill(name);
  }

  /** The process that is meant: below a tracer, the one that it traces. */
  get target() {
    return this.traced ? (childrenOf(this.pid)[0] ?? this.pid) : this.pid;
  }

  get traced() {
    return this.command[0] === 'strace';
  }

  async kill() {
    if (this.running) killPid(this.target);
    await this.exited;
  }

  async stop() {
    if (this.running) {
      killPid(this.target, 'SIGCONT');
      killPid(this.target, 'SIGTERM');
    }
    const timer = setTimeout(() => this.running && killPid(this.target), 15_000);
    await this.exited;
    clearTimeout(timer);
  }
}

/** Ends whatever is still running; for the end of a program, however it ends. */
export async function killAll() {
  await Promise.all([...all].map((child) => child.kill()));
}

/** Pids whose environment or command line holds `marker`, this process left out. */
export function processesWith(marker) {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && pid !== process.pid)
    .filter((pid) =>
      ['environ', 'cmdline'].some((file) => {
        try {
          return readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(marker);
        } catch {
          // Gone, or not ours to read.
          return false;
        }
      }),
    );
}

/** The direct children of a process. */
export function childrenOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** Ends one process below one that was started here; one that has just gone is no error. */
export function killPid(pid, name = 'SIGKILL') {
  try {
    process.kill(pid, name);
    return true;
  } catch {
    return false;
  }
}
