// Time of searches: in an index of 50,000 generated documents, beside rank_bm25, and in the code of Python's standard library.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom, systemClock } from '@floe-rl/core';
import type { ShellResult, ToolProcess } from '@floe-rl/sandbox';
import { buildIndex, CodeIndexes, openSearch } from '@floe-rl/search';
import { percentile } from '../report.ts';

const DOCUMENTS = 50_000;
const QUERIES = 300;
/** Number of queries for rank_bm25. It is small, because rank_bm25 takes many times as long. */
const RANK_QUERIES = 20;
const VOCABULARY = 60_000;
const CODE_BYTES = 3_000_000;
const { signal } = new AbortController();

/** Times in milliseconds. `rankP50Ms` is `null` where rank_bm25 cannot be installed. */
export type SearchTimes = {
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Processor time of a search, which other processes of the machine do not lengthen. */
  readonly cpuMs: number;
  readonly buildMs: number;
  readonly rankP50Ms: number | null;
};

/** Measures searches by words. */
export async function measureSearch(): Promise<SearchTimes> {
  const folder = mkdtempSync(join(tmpdir(), 'floe-bench-search-'));
  try {
    const rows = join(folder, 'rows.jsonl');
    const queries = writeCorpus(rows);
    const output = join(folder, 'index.db');
    const startMs = systemClock.monotonicMs();
    const quiet = { onBadRow: () => {}, mayFinish: () => {}, onProgress: () => {} };
    await buildIndex({ source: rows, output, replaces: false, embeddings: null, ...quiet }, signal);
    const buildMs = systemClock.monotonicMs() - startMs;
    const search = openSearch({ kind: 'index', path: output, embeddings: null });
    for (const query of queries) await search.search(query, 10, signal);
    const cpu = process.cpuUsage();
    const times = await timesOf(queries, (query) => search.search(query, 10, signal));
    const { user, system } = process.cpuUsage(cpu);
    return {
      ...times,
      cpuMs: (user + system) / 1000 / queries.length,
      buildMs,
      rankP50Ms: rankBm25(folder, rows, queries),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Writes documents of 60 to 140 words, with word frequencies as in a natural language. Returns queries of 3 to 8 words. */
function writeCorpus(path: string): string[] {
  const next = seededRandom(1);
  // The word of rank r occurs with a probability in proportion to 1 / (r + 10).
  const word = (): string => `w${Math.floor(10 * ((VOCABULARY + 10) / 10) ** next() - 10)}`;
  const text = (least: number, most: number): string =>
    Array.from({ length: least + Math.floor(next() * (most - least + 1)) }, word).join(' ');
  const lines = Array.from({ length: DOCUMENTS }, (_, id) =>
    JSON.stringify({ id, title: text(3, 6), text: text(60, 140) }),
  );
  writeFileSync(path, lines.join('\n'));
  return Array.from({ length: QUERIES }, () => text(3, 8));
}

async function timesOf(
  queries: readonly string[],
  run: (query: string) => Promise<unknown>,
): Promise<{ p50Ms: number; p99Ms: number }> {
  const times: number[] = [];
  for (const query of queries) {
    const startMs = systemClock.monotonicMs();
    await run(query);
    times.push(systemClock.monotonicMs() - startMs);
  }
  return { p50Ms: percentile(times, 0.5) ?? 0, p99Ms: percentile(times, 0.99) ?? 0 };
}

const RANK_PROGRAM = `
import json, sys, time
from rank_bm25 import BM25Okapi
rows = [json.loads(line) for line in open(sys.argv[1])]
index = BM25Okapi([(row["title"] + " " + row["text"]).split() for row in rows])
times = []
for query in json.loads(sys.argv[2]):
    start = time.perf_counter()
    index.get_top_n(query.split(), rows, n=10)
    times.append((time.perf_counter() - start) * 1000)
print(sorted(times)[len(times) // 2])
`;

/** Returns the median time of a search of rank_bm25 over the same documents; `null` where it cannot be installed. */
function rankBm25(folder: string, rows: string, queries: readonly string[]): number | null {
  const venv = join(folder, 'venv');
  const python = join(venv, 'bin', 'python');
  const steps = [
    ['python3', '-m', 'venv', venv],
    [python, '-m', 'pip', 'install', '-q', 'rank_bm25==0.2.2'],
  ] as const;
  for (const [program, ...args] of steps) {
    const { status, stderr } = spawnSync(program, args, { encoding: 'utf8' });
    if (status === 0) continue;
    console.error(`rank_bm25 cannot be installed: ${stderr}`);
    return null;
  }
  const asked = JSON.stringify(queries.slice(0, RANK_QUERIES));
  const { stdout, status, stderr } = spawnSync(python, ['-c', RANK_PROGRAM, rows, asked], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`rank_bm25 failed: ${stderr}`);
  return Number(stdout);
}

/** Times in milliseconds: of the first search of code, which builds the index, and of searches with an index from the cache. */
export type CodeSearchTimes = {
  readonly files: number;
  readonly bytes: number;
  readonly firstMs: number;
  /** Processor time of the first search, in all threads. */
  readonly firstCpuMs: number;
  /** The first search of another process: lists the files, opens the file of the index. */
  readonly cachedMs: number;
  /** Further searches of the same session, p50. */
  readonly nextMs: number;
};

/** Measures searches in about 3 MB of Python, without a sandbox; `null` where the standard library of Python is not installed. */
export async function measureCodeSearch(): Promise<CodeSearchTimes | null> {
  const library = readdirSync('/usr/lib').find((name) => /^python3\.\d+$/.test(name));
  if (library === undefined) return null;
  const folder = mkdtempSync(join(tmpdir(), 'floe-bench-code-'));
  const indexes = [new CodeIndexes(join(folder, 'cache')), new CodeIndexes(join(folder, 'cache'))] as const;
  try {
    const { files, bytes } = copyCode(join('/usr/lib', library), join(folder, 'code'));
    const search = async (index: CodeIndexes, text: string): Promise<number> => {
      const startMs = systemClock.monotonicMs();
      const code = await index.update(hostShell, join(folder, 'code'), signal);
      await code.search.find({ text, path: '', count: 10 }, signal);
      return systemClock.monotonicMs() - startMs;
    };
    const [first, second] = indexes;
    const cpu = process.cpuUsage();
    const firstMs = await search(first, 'OrderedDict');
    const { user, system } = process.cpuUsage(cpu);
    const cachedMs = await search(second, 'OrderedDict');
    const texts = ['Thread.join', 'parse_arg', 'raise ValueError', 'where are sockets closed'];
    const times: number[] = [];
    for (let i = 0; i < 40; i++) times.push(await search(second, texts[i % texts.length] ?? ''));
    return { files, bytes, firstMs, firstCpuMs: (user + system) / 1000, cachedMs, nextMs: percentile(times, 0.5) ?? 0 };
  } finally {
    await Promise.all(indexes.map((index) => index.close()));
    rmSync(folder, { recursive: true, force: true });
  }
}

function copyCode(from: string, to: string): { readonly files: number; readonly bytes: number } {
  mkdirSync(to);
  let bytes = 0;
  let files = 0;
  for (const name of readdirSync(from, { recursive: true, encoding: 'utf8' }).sort()) {
    const path = join(from, name);
    if (!name.endsWith('.py') || !existsSync(path) || !statSync(path).isFile()) continue;
    if (bytes >= CODE_BYTES) break;
    bytes += statSync(path).size;
    files++;
    cpSync(path, join(to, name));
  }
  return { files, bytes };
}

/** A shell without a sandbox. The time of sandboxes is measured by the bench `tools`. */
const hostShell = {
  async run(command: string): Promise<ShellResult> {
    const { stdout, stderr, status } = spawnSync('sh', ['-c', command], { encoding: 'utf8', maxBuffer: 1 << 28 });
    return {
      ...{ stdout, stderr, exitCode: status, signal: null, timedOut: false, isFirst: false },
      ...{ droppedBytes: 0, processEnd: null, wallMs: 0 },
    };
  },
  interrupt: () => {},
  type: () => {},
  restart: async () => {},
  close: async () => {},
} satisfies ToolProcess<ShellResult>;
