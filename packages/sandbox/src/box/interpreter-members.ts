import { systemClock } from '@floe-rl/core';
import {
  childrenByParent,
  isAlive,
  processesWithEnvironment,
  processTree,
  readProcessTable,
} from '../processes/process-table.ts';

/** First and maximum interval in milliseconds of the checks whether killed processes have ended. */
const POLL_MS = 2;
const MAX_POLL_MS = 100;
/** Maximum number of these checks, because a process can hang in the kernel. */
const MAX_POLLS = 100;

/** The processes of one interpreter: the members of its process group, its descendants, and processes with its mark in their environment. */
export class InterpreterMembers {
  readonly pid: number;
  private readonly marker: string;
  private readonly isTerminal: boolean;

  /** With `isTerminal`, the process `pid` runs the terminal, and its child is the interpreter. */
  constructor(pid: number, marker: string, isTerminal: boolean) {
    this.pid = pid;
    this.marker = marker;
    this.isTerminal = isTerminal;
  }

  /** Returns the ids of the live processes without the interpreter itself. */
  list(): number[] {
    const table = readProcessTable();
    const children = childrenByParent(table);
    const own = new Set([this.pid, process.pid]);
    if (this.isTerminal) for (const child of children.get(this.pid) ?? []) own.add(child.pid);
    const group = [...table.values()].filter((row) => row.groupId === this.pid);
    const found = new Set([...processTree(this.pid, table, children), ...group].map(({ pid }) => pid));
    for (const pid of processesWithEnvironment(this.marker)) found.add(pid);
    return [...found].filter((pid) => !own.has(pid) && isAlive(table.get(pid)));
  }

  /** Kills all processes but the interpreter and those in `spared`. Resolves when they have ended. */
  async kill(spared: readonly number[]): Promise<void> {
    let pollMs = POLL_MS;
    for (let polls = 0; polls < MAX_POLLS; polls += 1) {
      const rest = this.list().filter((pid) => !spared.includes(pid));
      if (rest.length === 0) return;
      for (const pid of rest) signal(pid, 'SIGKILL');
      await new Promise<void>((resolve) => void systemClock.schedule(pollMs, resolve));
      pollMs = Math.min(2 * pollMs, MAX_POLL_MS);
    }
  }

  /** Kills all processes. Resolves when they have ended. */
  async killAll(): Promise<void> {
    this.signalGroup('SIGKILL');
    await this.kill([]);
  }

  /** Sends a signal to the process group of the interpreter. */
  signalGroup(name: 'SIGINT' | 'SIGKILL'): void {
    signal(-this.pid, name);
  }
}

function signal(target: number, name: NodeJS.Signals): void {
  try {
    process.kill(target, name);
  } catch {
    // The process has already ended.
  }
}
