// Watches from outside what the processes of a session use, through Linux's /proc. Nothing in the sandbox is touched.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

/** Short beside any harness's life, and a small part of one core for a machine's few hundred processes. */
const SAMPLE_MS = 25;
const PAGE_BYTES = 4096;
/** Ended children are counted once somebody waited for them; the sandbox's own end takes a moment. */
const SETTLE_MS = 10_000;

/** `{ pid, parent, cpuTicks, endedCpuTicks, startTicks, residentBytes }` of a /proc/<pid>/stat; null: no such process. Pure but for `text`. */
export function parseStat(pid, text) {
  // The second field is the program's name in brackets and may itself hold brackets and blanks.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const at = (field) => Number(fields[field - 3]);
  return {
    pid,
    parent: at(4),
    cpuTicks: at(14) + at(15),
    endedCpuTicks: at(16) + at(17),
    startTicks: at(22),
    residentBytes: at(24) * PAGE_BYTES,
  };
}

/** Rows of everything below `root`, `root` left out. */
export function descendants(table, root) {
  const children = groupByParent(table);
  const found = [];
  const queue = [...(children.get(root) ?? [])];
  for (let row = queue.pop(); row !== undefined; row = queue.pop()) {
    found.push(row);
    queue.push(...(children.get(row.pid) ?? []));
  }
  return found;
}

function groupByParent(table) {
  const children = new Map();
  for (const row of table) children.set(row.parent, [...(children.get(row.parent) ?? []), row]);
  return children;
}

function readTable() {
  return readdirSync('/proc').flatMap((name) => {
    const pid = Number(name);
    const text = Number.isInteger(pid) ? readQuietly(`/proc/${name}/stat`) : null;
    return text === null ? [] : [parseStat(pid, text)];
  });
}

/** null: the process has ended meanwhile, or is not ours. */
function readQuietly(path) {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}

function ticksPerSecond() {
  return Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));
}

/** Variables that only the harness and what it starts have; those of the relay in front of it bear a prefix. */
function isHarness(pid) {
  return `\0${readQuietly(`/proc/${pid}/environ`) ?? ''}`.includes('\0FLOE_SESSION_ID=');
}

/**
 * The processes of one session at a time, all of which descend from the node's spawn helper. `start` begins a session,
 * `end` resolves with `{ cpuSeconds, peakRssBytes, startedAtMs }` when all of them are gone: CPU of everything that the
 * helper started; memory and start (Unix ms) of the harness's own processes.
 */
export class ProcessWatch {
  #ticks = ticksPerSecond();
  #helper;
  #timer = null;
  #session = null;

  constructor() {
    this.#helper = descendants(readTable(), process.pid).find(({ pid }) =>
      readQuietly(`/proc/${pid}/cmdline`)?.includes('spawn-helper'),
    )?.pid;
    if (this.#helper === undefined) throw new Error('the node has no spawn helper');
  }

  start() {
    this.#session = { endedTicks: this.#endedTicks(), peakRssBytes: 0, startedAtMs: null, known: new Map() };
    this.#timer = setInterval(() => this.#sample(), SAMPLE_MS);
  }

  async end() {
    const giveUp = performance.now() + SETTLE_MS;
    while (descendants(readTable(), this.#helper).length > 0 && performance.now() < giveUp) {
      await new Promise((resolve) => setTimeout(resolve, SAMPLE_MS));
    }
    this.close();
    const { endedTicks, peakRssBytes, startedAtMs } = this.#session;
    return { cpuSeconds: (this.#endedTicks() - endedTicks) / this.#ticks, peakRssBytes, startedAtMs };
  }

  close() {
    clearInterval(this.#timer);
  }

  #endedTicks() {
    return parseStat(this.#helper, readFileSync(`/proc/${this.#helper}/stat`, 'utf8')).endedCpuTicks;
  }

  #sample() {
    const session = this.#session;
    const table = readTable();
    let resident = 0;
    for (const row of descendants(table, this.#helper)) {
      const key = `${row.pid}/${row.startTicks}`;
      // A process may have begun as a copy of the relay, so a no is asked again.
      if (session.known.get(key) !== true) session.known.set(key, isHarness(row.pid));
      if (session.known.get(key) !== true) continue;
      resident += row.residentBytes;
      session.startedAtMs ??= this.#startOf(row);
    }
    session.peakRssBytes = Math.max(session.peakRssBytes, resident);
  }

  #startOf({ startTicks }) {
    const upSeconds = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]);
    return Date.now() - 1000 * (upSeconds - startTicks / this.#ticks);
  }
}
