// `npm run verify -- fuzz`: sends ten thousand inputs per dialect, most of them invalid, through the real proxy on loopback, and then tests
// hostile clients and bodies. Fails when the proxy replies with a status other than 2xx or 4xx, changes a reply's text, blocks its event
// loop or leaks memory.
//
//   npm run verify -- fuzz [--quick] [--json] [--seed N]
//
// It uses three processes: a stub engine, the proxy, which measures its own event loop and heap, and this process as the client.
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { MIB } from '@floe-rl/core';
import type { DialectName } from '@floe-rl/core/schema';
import fc from 'fast-check';
import type { Dialect } from '#capture/dialects/dialect';
import { DIALECTS } from '#capture/dialects/registry';
import { MAX_BODY_BYTES } from '#capture/proxy/http/body';
import { HISTORIES } from '../../bench/dialects/histories.ts';
import { printReport, type ReportRow, round } from '../../bench/report.ts';
import { readOptions } from '../runner/options.ts';
import { strangeBody } from './bodies.ts';
import { damaged, generationPath, HEAVY_BODIES, headersOf, NASTY_TEXTS, orderReply, streamText } from './inputs.ts';
import { type Reply, Rig } from './rig.ts';

const { options } = readOptions({
  quick: { type: 'boolean', default: false },
  seed: { type: 'string', default: '1' },
});

const INPUTS = options.quick ? 500 : 10_000;
const BAD_READERS = options.quick ? 10 : 60;
/** Number of inputs sent in one session before the next session is opened. */
const INPUTS_PER_SESSION = 250;
/**
 * Maximum time in milliseconds for which the proxy's event loop may be blocked. While the inputs of one dialect are sent, it limits the
 * 99th percentile. It also limits the time for every body of {@link ORDINARY_MIB}. Other sessions of the node wait while the event loop is
 * blocked.
 */
const MAX_LAG_MS = 250;
/** Size in MiB of the largest ordinary request body: twice the size of a conversation of a million tokens. */
const ORDINARY_MIB = 8;
/**
 * Maximum time in milliseconds for which one body of the largest accepted size may block the event loop. Only a hostile client, or one with
 * very many images, sends such a body. On an idle machine it blocks the event loop for about 500 ms.
 */
const MAX_LAG_LARGEST_MS = 1_000;
/**
 * Maximum growth of the proxy's heap during the run, in MiB. Compiled code and buffer pools make the heap grow by less than this. A larger
 * growth means that data of finished requests is not released.
 */
const MAX_HEAP_GROWTH_MB = 16;
/** One of this many inputs is a valid request. The text of its reply is checked. */
const VALID_EVERY = 20;
/**
 * Number of times that each heavy body is sent. Only the shortest time for which it blocked the event loop counts, because other programs
 * on the machine can lengthen a time.
 */
const HEAVY_REPEATS = 3;
const MAX_EXAMPLE_CHARS = 300;

type Problem = { readonly what: string; count: number; readonly example: string };
type DialectReport = {
  readonly statuses: Readonly<Record<string, number>>;
  readonly lag_p99_ms: number;
  readonly lag_max_ms: number;
};
type HeavyReport = { readonly mb: number; readonly status: number; readonly lag_ms: number };

const problems: Problem[] = [];

/** Records a problem. When the same problem was recorded before, only its count is increased. */
function addProblem(what: string, example: string | Buffer = ''): void {
  const known = problems.find((problem) => problem.what === what);
  if (known !== undefined) known.count++;
  else problems.push({ what, count: 1, example: String(example).slice(0, MAX_EXAMPLE_CHARS) });
}

/** Sends all inputs of a dialect. Returns how often each reply status occurred. */
async function fuzzDialect(rig: Rig, dialect: Dialect, seed: number): Promise<Record<string, number>> {
  const { name } = dialect;
  const path = generationPath(dialect);
  const statuses = new Map<number, number>();
  const bodies = fc.sample(strangeBody(name), { numRuns: INPUTS, seed });
  const inputs = bodies.entries();
  for (let sent = 0; sent < INPUTS; sent += INPUTS_PER_SESSION) {
    const key = await rig.openSession();
    const batch = [...take(inputs, INPUTS_PER_SESSION)].values();
    const work = async (): Promise<void> => {
      for (const [n, body] of batch) {
        if (n % 97 === 0) {
          await sendHalf(rig, key, path, damaged(body, n));
          continue;
        }
        const status = await sendInput(rig, key, path, name, n, body);
        statuses.set(status, (statuses.get(status) ?? 0) + 1);
      }
    };
    await Promise.all(Array.from({ length: rig.connections }, work));
    await rig.closeSession(key);
  }
  return Object.fromEntries([...statuses].sort(([a], [b]) => a - b));
}

function* take<T>(values: Iterator<T>, count: number): Generator<T> {
  for (let i = 0; i < count; i++) {
    const { done, value } = values.next();
    if (done === true) return;
    yield value;
  }
}

/** Sends one input. Returns the status of the reply. */
async function sendInput(
  rig: Rig,
  key: string,
  path: string,
  name: DialectName,
  n: number,
  body: unknown,
): Promise<number> {
  if (n % VALID_EVERY === 1) return sendValid(rig, key, path, name, n);
  const sent = damaged(body, n);
  const reply = await rig.post(key, path, sent, headersOf(n));
  checkStatus(name, reply, sent);
  return reply.status;
}

/**
 * Sends a valid request and checks that its status is 200. Half of the valid requests are realistic conversations. The others make the stub
 * engine reply with a given text, and the received text must equal it.
 */
async function sendValid(rig: Rig, key: string, path: string, name: DialectName, n: number): Promise<number> {
  const isHistory = n % (2 * VALID_EVERY) === 1;
  const order = { index: n % NASTY_TEXTS.length, times: 1 + (n % 40) };
  const sent = JSON.stringify(isHistory ? HISTORIES[name](2 + (n % 3)) : orderReply(name, order, n));
  const reply = await rig.post(key, path, sent);
  checkStatus(name, reply, sent);
  if (reply.status !== 200) addProblem(`${name}: a valid request was answered ${reply.status}`, reply.text);
  const nasty = NASTY_TEXTS[order.index] ?? '';
  if (!isHistory && streamText(name, reply.text) !== nasty.repeat(order.times)) {
    addProblem(`${name}: reply text ${JSON.stringify(nasty)} did not survive`, reply.text);
  }
  return reply.status;
}

/** Records a problem for any status other than 2xx and 4xx, and throws when the body of an error is not JSON. */
function checkStatus(name: DialectName, { status, text }: Reply, sent: string | Buffer): void {
  if (status >= 500 || status < 200 || (status >= 300 && status < 400)) addProblem(`${name}: status ${status}`, sent);
  if (status >= 400) JSON.parse(text);
}

/** Sends the headers and the first part of a body, and never completes it. */
async function sendHalf(rig: Rig, key: string, path: string, body: string | Buffer): Promise<void> {
  const bytes = Buffer.from(body);
  const socket = await rig.beginRequest(key, path, bytes.length + 10);
  await new Promise((resolve) => socket.write(bytes, resolve));
  socket.destroy();
}

/**
 * Requests streams that the client never reads, and streams that the client disconnects from before they end. Checks that the proxy still
 * serves other clients.
 */
async function badReaders(rig: Rig, dialect: Dialect, count: number): Promise<void> {
  const path = generationPath(dialect);
  const key = await rig.openSession();
  const idle: Socket[] = [];
  for (let i = 0; i < count; i++) {
    const body = JSON.stringify(orderReply(dialect.name, { index: 0, times: 100_000 }, i));
    const socket = await rig.beginRequest(key, path, Buffer.byteLength(body));
    socket.write(body);
    if (i % 2 === 0) {
      idle.push(socket.pause());
    } else {
      await Promise.race([once(socket, 'data'), once(socket, 'close')]);
      socket.destroy();
    }
  }
  const { status } = await rig.post(
    key,
    path,
    JSON.stringify(orderReply(dialect.name, { index: 0, times: 1 }, 'after')),
  );
  if (status !== 200) addProblem(`${dialect.name}: ${status} beside clients that do not read`);
  for (const socket of idle) socket.destroy();
  await rig.closeSession(key);
}

/** Sends each heavy body while no other request runs, and measures how long it blocks the event loop. */
async function heavyBodies(rig: Rig, bytes: number, maxLagMs: number): Promise<Record<string, HeavyReport>> {
  const reports: Record<string, HeavyReport> = {};
  for (const [name, make] of Object.entries(HEAVY_BODIES)) {
    const body = Buffer.from(make(bytes));
    const lags: number[] = [];
    let status = 0;
    for (let i = 0; i < HEAVY_REPEATS; i++) {
      const key = await rig.openSession();
      await rig.lag();
      ({ status } = await rig.post(key, '/v1/chat/completions', body));
      const { max, computed } = await rig.lag();
      lags.push(Math.min(max, computed));
      await rig.closeSession(key);
    }
    const report = { mb: round(body.length / MIB, 1), status, lag_ms: round(Math.min(...lags), 0) };
    reports[name] = report;
    if (report.lag_ms > maxLagMs) {
      addProblem(`${name}, ${report.mb} MB: the event loop was blocked for ${report.lag_ms} ms`);
    }
    if (status !== 200 && status !== 413) addProblem(`${name}: status ${status}`);
  }
  return reports;
}

async function fuzz(rig: Rig, seed: number): Promise<{ rows: ReportRow[]; keys: Record<string, unknown> }> {
  const rows: ReportRow[] = [];
  const dialects: Record<string, DialectReport> = {};
  // Runs a small first round, because code that is loaded and compiled once would otherwise count as a memory leak.
  for (const dialect of DIALECTS) await badReaders(rig, dialect, 2);
  const before = await rig.heapMb();
  for (const dialect of DIALECTS) {
    await rig.lag();
    const statuses = await fuzzDialect(rig, dialect, seed);
    await badReaders(rig, dialect, BAD_READERS);
    const { p99, max } = await rig.lag();
    if (p99 > MAX_LAG_MS) addProblem(`${dialect.name}: event-loop lag p99 ${round(p99, 0)} ms`);
    dialects[dialect.name] = { statuses, lag_p99_ms: round(p99, 1), lag_max_ms: round(max, 1) };
    const counts = Object.entries(statuses).map(([status, count]) => `${count} x ${status}`);
    rows.push([dialect.name, `${round(p99, 1)} ms`, `lag p99 (max ${round(max, 1)}); ${counts.join(', ')}`]);
  }
  const heavy = {
    ordinary: await heavyBodies(rig, ORDINARY_MIB * MIB, MAX_LAG_MS),
    largest: await heavyBodies(rig, MAX_BODY_BYTES, MAX_LAG_LARGEST_MS),
  };
  for (const [name, { mb, status, lag_ms }] of Object.values(heavy).flatMap((reports) => Object.entries(reports))) {
    rows.push([name, `${lag_ms} ms`, `longest lag; ${mb} MB, answered ${status}`]);
  }
  const after = await rig.heapMb();
  const heap_mb = { before: round(before, 1), after: round(after, 1) };
  rows.push(['heap', `${heap_mb.after} MB`, `after garbage collection; ${heap_mb.before} before`]);
  if (after - before > MAX_HEAP_GROWTH_MB) addProblem(`the heap grew by ${round(after - before, 1)} MB`);
  return { rows, keys: { dialects, heavy, heap_mb } };
}

const seed = Number(options.seed);
const rig = await Rig.start();
try {
  const { rows, keys } = await fuzz(rig, seed);
  for (const { what, count, example } of problems) console.error(`${count} x ${what}\n  ${example}`);
  printReport(`${INPUTS} inputs per dialect through the proxy, seed ${seed}`, rows, { ...keys, seed, problems });
  if (problems.length > 0) process.exitCode = 1;
} finally {
  await rig.close();
}
