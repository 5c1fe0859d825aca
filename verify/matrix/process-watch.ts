// Watches from outside what the processes of a session use, through Linux's /proc. Nothing in the sandbox is touched.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { sleep, systemClock } from '../../src/core/clock.ts';

/** Much shorter than any harness runs; a sample takes a small part of one core on a machine with a few hundred processes. */
const SAMPLE_MS = 25;
const PAGE_BYTES = 4096;
/** The kernel counts the CPU time of a process once its parent has collected it, which the sandbox's end delays. */
const SETTLE_MS = 10_000;

/** A row of /proc/<pid>/stat. Times are in clock ticks; `startTicks` counts from the start of the machine. */
export type ProcessRow = {
  readonly pid: number;
  readonly parent: number;
  readonly cpuTicks: number;
  /** CPU time of children that have ended. */
  readonly endedCpuTicks: number;
  readonly startTicks: number;
  readonly residentBytes: number;
};

/** Reads the text of /proc/<pid>/stat. Pure. */
export function parseStat(pid: number, text: string): ProcessRow {
  // The second field is the program's name in brackets and may itself hold brackets and blanks.
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

/** All processes below `root`, which itself is left out. */
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

/** `null` when the process has ended, or belongs to another user. */
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

/** Only the harness and what it starts have the variable without a prefix; the relay in front of it has it with one. */
function isHarness(pid: number): boolean {
  return `\0${readQuietly(`/proc/${pid}/environ`) ?? ''}`.includes('\0FLOE_SESSION_ID=');
}

/** The node's spawn helper, from which all processes of sessions descend. */
function findSpawnHelper(): number {
  const helper = descendants(readTable(), process.pid).find(({ pid }) =>
    readQuietly(`/proc/${pid}/cmdline`)?.includes('spawn-helper'),
  );
  if (helper === undefined) throw new Error('the node has no spawn helper');
  return helper.pid;
}

/** What the processes of one session used. */
export type ProcessUsage = {
  /** CPU time of all processes that the spawn helper started. */
  readonly cpuSeconds: number;
  /** The largest sum of the resident sizes of the harness's own processes. */
  readonly peakRssBytes: number;
  /** Start of the first process of the harness, in Unix milliseconds; `null` when none was seen. */
  readonly startedAtMs: number | null;
};

/** Measures the processes of one session at a time. */
export class ProcessWatch {
  private readonly ticks = ticksPerSecond();
  private readonly helper = findSpawnHelper();
  private cancelSample: () => void = () => {};
  private endedTicks = 0;
  private peakRssBytes = 0;
  private startedAtMs: number | null = null;
  /** Processes of the harness, by pid and start. */
  private readonly harness = new Set<string>();

  /** Begins to measure a session. */
  start(): void {
    this.endedTicks = this.readEndedTicks();
    this.peakRssBytes = 0;
    this.startedAtMs = null;
    this.harness.clear();
    this.scheduleSample();
  }

  /** Resolves with the session's usage once all of its processes have ended. */
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
      // A process may begin as a copy of the relay and become the harness, so a negative answer is not kept.
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
