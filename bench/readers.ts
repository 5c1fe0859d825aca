// Measures the time per character of the functions that read what an agent printed, with hostile outputs that are made to be slow to read.
//
//   npm run bench -- readers [--quick] [--json]
//
// Each output is read in two sizes; the second is four times the first. A reader whose time is linear takes the same time per character for
// both. The floor is one pass over the characters that counts the lines. The bench also reports the longest time that a reader blocked the
// event loop.
import { KIB, MIB, systemClock } from '@floe-rl/core';
import { harnessRegistry } from '@floe-rl/node';
import { readReport } from '#evaluators/test-report';
import { printReport, type ReportRow, round } from './report.ts';

const SMALL_CHARS = process.argv.includes('--quick') ? 256 * KIB : 4 * MIB;
const GROWTH = 4;
const RUNS = 3;
const notAborted = new AbortController().signal;
const EXPECTED = new Set(Array.from({ length: 500 }, (_, i) => `tests/test_sums.py::test_sum[${i} - ${i + 1}]`));

/** Returns `unit`, repeated and cut to `chars` characters. */
function fill(chars: number, unit: string): string {
  return unit.repeat(Math.ceil(chars / unit.length)).slice(0, chars);
}

/** Hostile outputs of a test command, each as a function of its length. */
const REPORTS: Readonly<Record<string, (chars: number) => string>> = {
  'short lines': (chars) => fill(chars, 'PASSED a\n'),
  'lines full of separators': (chars) => fill(chars, `PASSED x${' - '.repeat(5430)}\n`),
  'one line of separators': (chars) => `PASSED x${fill(chars, ' - ')}`,
  'different test ids': (chars) =>
    Array.from({ length: Math.ceil(chars / 16) }, (_, i) => `PASSED ${String(i).padStart(8, '0')}`).join('\n'),
  'colour sequences without an end': (chars) => fill(chars, '\u001b[1;1;1'),
  'status words and blanks': (chars) => fill(chars, `FAILED${' '.repeat(1000)}`),
};

/** Hostile outputs of a harness. They contain the texts (markers) that identify output lines for floe's harness adapters. */
const MARKERS =
  '{"type":"result" "message_end" {"type":"step_finish" {"type":"error" {"type":"turn. "kind": " "subtype":"init"';
const OUTPUTS: Readonly<Record<string, (chars: number) => string>> = {
  'lines with markers': (chars) => fill(chars, `${MARKERS}\n`),
  'one line of markers': (chars) => fill(chars, MARKERS),
  'nested arrays': (chars) => `${MARKERS}${fill(chars, '[')}`,
  'warnings of servers': (chars) => fill(chars, 'message="server unavailable" key=a type=b status=failed\n'),
  'warnings without an end': (chars) => fill(chars, 'Warning: MCP server(s) failed to start: a, b, c\n'),
};

type Reading = { readonly cpuMs: number; readonly blockedMs: number };

/** Runs `read` and measures its CPU time and the longest time between two turns of the event loop. */
async function measure(read: () => unknown): Promise<Reading> {
  let lastTurnMs = systemClock.monotonicMs();
  let blockedMs = 0;
  let reading = true;
  const turn = (): void => {
    const nowMs = systemClock.monotonicMs();
    blockedMs = Math.max(blockedMs, nowMs - lastTurnMs);
    lastTurnMs = nowMs;
    if (reading) setImmediate(turn);
  };
  setImmediate(turn);
  const before = process.cpuUsage();
  await read();
  const { user, system } = process.cpuUsage(before);
  turn();
  reading = false;
  return { cpuMs: (user + system) / 1000, blockedMs };
}

/**
 * Calls `read` {@link RUNS} times. Returns the least CPU time of these runs, and the longest time for which one of them blocked the event
 * loop.
 */
async function best(read: () => unknown): Promise<Reading> {
  const readings: Reading[] = [];
  for (let run = 0; run < RUNS; run += 1) readings.push(await measure(read));
  return {
    cpuMs: Math.min(...readings.map(({ cpuMs }) => cpuMs)),
    blockedMs: Math.max(...readings.map(({ blockedMs }) => blockedMs)),
  };
}

const cases = [
  ...Object.entries(REPORTS).map(([name, output]) => ({
    name: `test report, ${name}`,
    output,
    read: (text: string): unknown => readReport([text], EXPECTED, notAborted),
  })),
  ...[...harnessRegistry().values()].flatMap((harness) =>
    Object.entries(OUTPUTS).map(([name, output]) => ({
      name: `${harness.name}, ${name}`,
      output,
      read: (text: string): unknown => harness.judge({ exitCode: 0, stdout: text, stderr: text, turns: 1 }),
    })),
  ),
];

/** Reads each character once. */
function countLines(text: string): number {
  let lines = 0;
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) === 10) lines++;
  return lines;
}

const floorText = fill(GROWTH * SMALL_CHARS, 'PASSED a\n');
await measure(() => countLines(floorText));
const floorNs = ((await best(() => countLines(floorText))).cpuMs * 1e6) / floorText.length;

const rows: ReportRow[] = [['floor: one pass, ns per character', round(floorNs)]];
let [worstNs, worstGrowth, worstBlockedMs] = [0, 0, 0];
for (const { name, output, read } of cases) {
  const small = output(SMALL_CHARS);
  const large = output(GROWTH * SMALL_CHARS);
  // The first run compiles the code of the reader.
  await measure(() => read(small));
  const [short, long] = [await best(() => read(small)), await best(() => read(large))];
  const nsPerChar = (long.cpuMs * 1e6) / large.length;
  // For readers that take less than a few milliseconds, the measured times are too inexact to be divided by each other.
  const growth = short.cpuMs < 5 ? 1 : long.cpuMs / large.length / (short.cpuMs / small.length);
  worstNs = Math.max(worstNs, nsPerChar);
  worstGrowth = Math.max(worstGrowth, growth);
  worstBlockedMs = Math.max(worstBlockedMs, long.blockedMs);
  const times = `${round(nsPerChar, 1)} ns per character, growth ${round(growth, 2)}, blocked ${round(long.blockedMs, 0)} ms`;
  rows.push([`${name}, over the floor`, round(nsPerChar / floorNs, 1), times]);
}
printReport(`readers: CPU time of ${round((GROWTH * SMALL_CHARS) / MIB, 1)} Mi characters`, rows, {
  worst_over_floor: round(worstNs / floorNs, 1),
  worst_ns_per_char: round(worstNs, 1),
  worst_growth: round(worstGrowth, 2),
  worst_blocked_ms: round(worstBlockedMs, 0),
});
