// Measures the resources that the processes of a session use. It reads Linux's /proc from outside the sandbox, so the sandbox is not
// modified.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { sleep, systemClock } from '@floe-rl/core';

/**
 * Time in ms between two samples of the processes. It is much shorter than any run of a harness. Taking a sample uses a small part of one
 * core when the machine has a few hundred processes.
 */
const SAMPLE_MS = 25;
const PAGE_BYTES = 4096;
/**
 * Maximum time in ms to wait for the session's processes to end. The kernel adds the CPU time of a process to its parent's total only when
 * the parent reaps the process, which happens after the sandbox has ended.
 */
const SETTLE_MS = 10_000;

/**
 * The fields of /proc/<pid>/stat that are used. CPU times are in clock ticks. `startTicks` is the start time in clock ticks since the
 * machine booted.
 */
export type ProcessRow = {
  readonly pid: number;
  readonly parent: number;
  readonly cpuTicks: number;
  /** CPU time, in clock ticks, of the child processes that have ended and were reaped. */
  readonly endedCpuTicks: number;
  readonly startTicks: number;
  readonly residentBytes: number;
};

/** Parses the text of /proc/<pid>/stat. */
export function parseStat(pid: number, text: string): ProcessRow {
  // Splits only the text after the last parenthesis. The field before it is the program's name in parentheses, which may itself contain
  // parentheses and spaces.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const at = (field: number): number => Number(fields[field - 3]);
  return {
    pid,
    parent: at(4),
    cpuTicks: at(14) + at(15),
    endedCpuTicks: at(16) + at(17),
    startTicks: at(22),
    residentBytes: at(24) * PAGE_BYTES,
  };
}

/** Returns all processes in `table` that descend from the process `root`, without `root` itself. */
export function descendants<Row extends { readonly pid: number; readonly parent: number }>(
  table: readonly Row[],
  root: number,
): Row[] {
  const children = new Map<number, Row[]>();
  for (const row of table) children.set(row.parent, [...(children.get(row.parent) ?? []), row]);
  const found: Row[] = [];
  const queue = [...(children.get(root) ?? [])];
  for (let row = queue.pop(); row !== undefined; row = queue.pop()) {
    found.push(row);
    queue.push(...(children.get(row.pid) ?? []));
  }
  return found;
}

function readTable(): ProcessRow[] {
  return readdirSync('/proc').flatMap((name) => {
    const pid = Number(name);
    const text = Number.isInteger(pid) ? readQuietly(`/proc/${name}/stat`) : null;
    return text === null ? [] : [parseStat(pid, text)];
  });
}

/** Returns the text of a file of /proc; `null` when the process has ended or belongs to another user. */
function readQuietly(path: string): string | null {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}

function ticksPerSecond(): number {
  return Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));
}

/**
 * Whether a process belongs to the harness. The harness and its descendants have the environment variable FLOE_SESSION_ID. The relay, which
 * starts the harness and connects it to the proxy, has this variable only under a prefixed name.
 */
function isHarness(pid: number): boolean {
  return `\0${readQuietly(`/proc/${pid}/environ`) ?? ''}`.includes('\0FLOE_SESSION_ID=');
}

/** Returns the pid of the spawn helper, the child process of the node from which all processes of sessions descend. */
function findSpawnHelper(): number {
  const helper = descendants(readTable(), process.pid).find(({ pid }) =>
    readQuietly(`/proc/${pid}/cmdline`)?.includes('spawn-helper'),
  );
  if (helper === undefined) throw new Error('the node has no spawn helper');
  return helper.pid;
}

/** The resources that the processes of one session used. */
export type ProcessUsage = {
  /** CPU time in seconds of all processes of the session, including the sandbox's processes. */
  readonly cpuSeconds: number;
  /** Largest sum of the resident set sizes of all processes of the harness, over all samples. */
  readonly peakRssBytes: number;
  /** Unix time in ms at which the first process of the harness started; `null` when no sample contained a process of the harness. */
  readonly startedAtMs: number | null;
};

/** Measures the processes of sessions, one session at a time. */
export class ProcessWatch {
  private readonly ticks = ticksPerSecond();
  private readonly helper = findSpawnHelper();
  private cancelSample: () => void = () => {};
  private endedTicks = 0;
  private peakRssBytes = 0;
  private startedAtMs: number | null = null;
  /** The harness's processes that were seen in any sample so far, each as `pid/start time`. */
  private readonly harness = new Set<string>();

  /** Starts the measurement of a session. */
  start(): void {
    this.endedTicks = this.readEndedTicks();
    this.peakRssBytes = 0;
    this.startedAtMs = null;
    this.harness.clear();
    this.scheduleSample();
  }

  /** Ends the measurement. Resolves to the session's usage when all of its processes have ended, or after `SETTLE_MS`. */
  async end(): Promise<ProcessUsage> {
    const giveUpMs = systemClock.monotonicMs() + SETTLE_MS;
    while (descendants(readTable(), this.helper).length > 0 && systemClock.monotonicMs() < giveUpMs) {
      await sleep(systemClock, SAMPLE_MS);
    }
    this.close();
    const cpuSeconds = (this.readEndedTicks() - this.endedTicks) / this.ticks;
    return { cpuSeconds, peakRssBytes: this.peakRssBytes, startedAtMs: this.startedAtMs };
  }

  close(): void {
    this.cancelSample();
  }

  private readEndedTicks(): number {
    return parseStat(this.helper, readFileSync(`/proc/${this.helper}/stat`, 'utf8')).endedCpuTicks;
  }

  private scheduleSample(): void {
    this.cancelSample = systemClock.schedule(SAMPLE_MS, () => {
      this.scheduleSample();
      this.sample();
    });
  }

  private sample(): void {
    let resident = 0;
    for (const row of descendants(readTable(), this.helper)) {
      const key = `${row.pid}/${row.startTicks}`;
      // Processes that are not known as harness processes are checked at every sample. A process may start as a copy of the relay (the process
      // that starts the harness) and execute the harness only later.
      if (!this.harness.has(key) && !isHarness(row.pid)) continue;
      this.harness.add(key);
      resident += row.residentBytes;
      this.startedAtMs ??= this.startMsOf(row);
    }
    this.peakRssBytes = Math.max(this.peakRssBytes, resident);
  }

  private startMsOf({ startTicks }: ProcessRow): number {
    const upSeconds = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]);
    return systemClock.nowMs() - 1000 * (upSeconds - startTicks / this.ticks);
  }
}
