// `npm run walk -- NAME [--all]`: makes one call through floe's own programs in this process, and lists the stops of its way through the code, in
// the order in which they are reached. `--all` adds the other functions that were entered, without numbers.
//
// A STOP is a distinct function or method at which a reader who follows the call must stop, because it passes the call on:
// - it was entered after the first function of the walk and before the last one, which are stops as well;
// - it called a function of another file. A function whose calls stay in its file is a detail that its name explains;
// - it is in the rooms that carry the call. Elsewhere, as in parsers and adapters, only functions that those rooms call are stops;
// - it is no accessor, since an accessor reads like a field. A function inside another one, such as a callback, belongs to the outer one;
// - functions of `core`, which are primitives, and of `sim`, the other side of the wire, are neither stops nor other files.
// A file or room (folder) counts when it has a stop. An entry of a class is a call of its members or callbacks by code outside of it.
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { register } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import type { Lease } from '@floe-rl/core/schema';
import { parseSync } from 'oxc-parser';
import { repositoryRoot } from './repository.ts';

type Walk = {
  /** The first function, as `FILE NAME` or `FILE CLASS.METHOD`. The walk begins when this function is first entered after the call was sent. */
  readonly from: string;
  /** The last function, in the same form. */
  readonly to: string;
  /** Matches the files of the rooms that carry the call. */
  readonly carriers: RegExp;
  /** Names of the classes whose entries are counted. */
  readonly classes: readonly string[];
  /** Prepares everything, calls `begin`, and then makes the call that is recorded. Modules of floe must be imported dynamically. */
  readonly run: (begin: () => void) => Promise<void>;
};

const MODEL_CALL = {
  from: 'packages/capture/src/proxy/http/proxy.ts HttpProxy.handle',
  to: 'packages/capture/src/proxy/journal/journal.ts CaptureJournal.append',
  carriers: /^packages\/capture\/src\/(proxy|engines\/pool)\//,
  classes: ['ProxySession', 'Call'],
};

const WALKS: Readonly<Record<string, Walk>> = {
  'model-call': { ...MODEL_CALL, run: (begin) => modelCall(true, begin) },
  'model-call-unstreamed': { ...MODEL_CALL, run: (begin) => modelCall(false, begin) },
  'batch-request': {
    from: 'packages/server/src/rollout/http/app.ts addRoute',
    to: 'packages/server/src/rollout/sessions/result-json.ts sessionResultBytes',
    carriers: /^packages\/server\/src\/rollout\//,
    classes: ['SqlBatches', 'SqlTasks', 'SqlFacts', 'SqlResults'],
    run: batchRequest,
  },
};

/** The second call of a conversation, in the API of OpenAI and with token ids: its prompt continues the first reply. */
async function modelCall(stream: boolean, begin: () => void): Promise<void> {
  const { startSim } = await import('@floe-rl/sim');
  const { startCapture } = await import('@floe-rl/capture');
  const directory = await mkdtemp(join(tmpdir(), 'floe-walk-'));
  const sim = await startSim({ port: 0, scaleOut: true });
  const capture = await startCapture({ engines: [{ base_url: sim.url }], journalDir: directory });
  try {
    const session = await capture.openSession();
    const ask = async (messages: readonly object[], options: object): Promise<string> => {
      const body = JSON.stringify({ model: 'policy', messages, max_tokens: 32, ...options });
      const headers = { 'content-type': 'application/json' };
      const reply = await fetch(`${session.baseUrl}/chat/completions`, { method: 'POST', headers, body });
      if (!reply.ok) throw new Error(`the proxy answered ${reply.status}: ${await reply.text()}`);
      return reply.text();
    };
    const first = { role: 'user', content: 'What is 2 + 2?' };
    const { choices } = JSON.parse(await ask([first], {})) as { choices: [{ message: object }] };
    begin();
    await ask([first, choices[0].message, { role: 'user', content: 'And 3 + 3?' }], { stream });
  } finally {
    await capture.close();
    await sim.close();
    await rm(directory, { recursive: true });
  }
}

/** A request for the second batch of a stream, which confirms the first one. Its groups are ready, and the reply has their results. */
async function batchRequest(begin: () => void): Promise<void> {
  const { systemClock } = await import('@floe-rl/core');
  const { ENVELOPE_TYPE, encodeEnvelope, sessionSummary } = await import('@floe-rl/core/protocol');
  const { createRolloutServer, openStore } = await import('@floe-rl/server');
  const directory = await mkdtemp(join(tmpdir(), 'floe-walk-'));
  const clock = systemClock;
  const { store, blobs } = await openStore({ dir: directory, database: null, blobs: null, clock });
  const server = await createRolloutServer({ port: 0 }, { store, blobs, clock, validateTask: () => {} });
  const ask = async <T>(method: 'GET' | 'POST', url: string, body?: object | Buffer, type?: string): Promise<T> => {
    const headers = { 'content-type': type ?? 'application/json' };
    const payload = body === undefined || Buffer.isBuffer(body) ? body : JSON.stringify(body);
    const reply = await server.app.inject({ method, url, ...(payload === undefined ? {} : { payload, headers }) });
    if (reply.statusCode !== 200) throw new Error(`${url} was answered ${reply.statusCode}: ${reply.payload}`);
    return reply.payload === '' ? (undefined as T) : reply.json();
  };
  try {
    await ask('POST', '/nodes/register', {
      node_id: 'n',
      max_init_workers: 8,
      ready_size: 8,
      max_run_workers: 8,
      max_postrun_workers: 8,
    });
    await ask('POST', '/rollout/batches', {
      batch_id: 'b',
      source: { kind: 'rows', rows: Array.from({ length: 8 }, (_, index) => ({ question: `q${index}` })) },
      task: {
        instruction: '{{row.question}}',
        num_samples: 2,
        agent: { harness: 'shell', custom_shell: 'true' },
        evaluator: { strategy: 'session_completed' },
      },
      batch_size: 2,
      max_staleness: 2,
    });
    await server.sweep();
    for (let groups = 0; groups < 4; ) {
      const { leases } = await ask<{ leases: Lease[] }>('POST', '/nodes/n/lease', { slots: 2 });
      for (const lease of leases) {
        const header = sessionSummary(lease, 'completed', {
          reward: lease.sample_index,
          trace_count: 1,
          trainable_tokens: 1,
          completion_count: 1,
        });
        const parts = new Map([['trajectory', Buffer.from('{"images":{},"traces":[]}')]]);
        await ask('POST', '/nodes/n/results', encodeEnvelope({ header, parts }), ENVELOPE_TYPE);
      }
      groups += leases.length / 2;
      await server.sweep();
    }
    await ask('GET', '/rollout/batches/b/next?policy_version=1');
    begin();
    await ask('GET', '/rollout/batches/b/next?policy_version=2&after=1');
  } finally {
    await server.close();
    await store.close();
    await rm(directory, { recursive: true });
  }
}

/** Matches packages whose functions are never stops. */
const NO_STOPS = /^packages\/(core|sim)\//;
/** Matches the compiled modules of packages. */
const COMPILED = /^file:.*\/packages\/[^/]+\/dist\/.*\.js$/;

type Node = { readonly type: string; readonly start: number; readonly end: number; readonly [key: string]: unknown };
/** A function of a module, and the outermost function or class member that it is in. `body` is the place of its body. */
type FunctionPlace = { readonly unit: Unit; readonly body: Node; readonly isBlock: boolean };
/** An outermost function or a class member. `owner` is the name of its class; `null` when it has none. */
type Unit = {
  readonly name: string;
  readonly owner: string | null;
  readonly isAccessor: boolean;
  readonly start: number;
  readonly end: number;
};

const FUNCTION_TYPES: readonly string[] = ['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression'];
const CLASS_TYPES: readonly string[] = ['ClassDeclaration', 'ClassExpression'];

/** Returns all functions of a module's text. */
function functionsOf(text: string): readonly FunctionPlace[] {
  const found: FunctionPlace[] = [];
  const visit = (
    node: Node,
    outer: { name: string; owner: string | null; isAccessor: boolean; unit: Unit | null },
  ): void => {
    const name = nameOf(node) ?? outer.name;
    const isAccessor = node.type === 'MethodDefinition' ? node.kind === 'get' || node.kind === 'set' : outer.isAccessor;
    let { owner, unit } = outer;
    const { start, end } = node;
    if (unit === null && owner !== null && node.type === 'PropertyDefinition') {
      // The constructor computes the initial values of fields.
      unit = { name: `${owner}.constructor`, owner, isAccessor: false, start, end };
    } else if (FUNCTION_TYPES.includes(node.type)) {
      unit ??= { name: owner === null ? name : `${owner}.${name}`, owner, isAccessor, start, end };
      const body = node.body as Node;
      found.push({ unit, body, isBlock: body.type === 'BlockStatement' || body.type === 'FunctionBody' });
    } else if (CLASS_TYPES.includes(node.type) && unit === null) owner = name;
    for (const child of childrenOf(node)) visit(child, { name, owner, isAccessor, unit });
  };
  const { program } = parseSync('module.js', text);
  visit(program as unknown as Node, { name: 'anonymous', owner: null, isAccessor: false, unit: null });
  return found;
}

function nameOf(node: Node): string | null {
  const named = (node.id ??
    (node.type === 'MethodDefinition' || node.type === 'Property' ? node.key : null)) as Node | null;
  return typeof named?.name === 'string' ? named.name : null;
}

function childrenOf(node: Node): readonly Node[] {
  return Object.values(node).flatMap((value) => (Array.isArray(value) ? value : [value]).filter(isNode));
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && typeof (value as { type?: unknown }).type === 'string';
}

/** Returns a module's text with a call of the global `floeWalk` at the start of each function. The lines keep their numbers. */
function instrumented(text: string): string {
  const inserted = functionsOf(text).flatMap(({ body, isBlock }) =>
    isBlock
      ? [{ at: body.start + 1, text: 'floeWalk();' }]
      : [
          { at: body.start, text: '(floeWalk(),' },
          { at: body.end, text: ')' },
        ],
  );
  let result = text;
  // When one insertion ends at the place where another begins, the outer one is first in the list.
  for (const { at, text: insertion } of inserted.reverse().sort((a, b) => b.at - a.at)) {
    result = result.slice(0, at) + insertion + result.slice(at);
  }
  return result;
}

/** Hook of Node's module loader, for which this module is loaded once more in a thread of the loader. */
export async function load(
  url: string,
  context: object,
  next: (url: string, context: object) => Promise<{ source?: string | Buffer }>,
): Promise<object> {
  const loaded = await next(url, context);
  return COMPILED.test(url) ? { ...loaded, source: instrumented(String(loaded.source)) } : loaded;
}

/** A position in an instrumented module. */
type Place = { readonly url: string; readonly line: number; readonly column: number };
type Entered = { readonly callee: Place; readonly callers: readonly Place[] };

const ROOT = repositoryRoot();

/** Finds the functions at positions of instrumented modules. */
class Modules {
  private readonly read = new Map<string, { lineStarts: readonly number[]; units: readonly Unit[] }>();

  /** Returns the file and the outermost function or class member at a position; `null` outside functions. */
  at({ url, line, column }: Place): { readonly file: string; readonly unit: Unit } | null {
    const { lineStarts, units } = this.of(url);
    const offset = (lineStarts[line - 1] ?? 0) + column - 1;
    const unit = units.find(({ start, end }) => start <= offset && offset < end);
    const file = relative(ROOT, fileURLToPath(url)).replace('/dist/', '/src/').replace(/js$/, 'ts');
    return unit === undefined ? null : { file, unit };
  }

  private of(url: string): { lineStarts: readonly number[]; units: readonly Unit[] } {
    const known = this.read.get(url);
    if (known !== undefined) return known;
    const text = instrumented(readFileSync(fileURLToPath(url), 'utf8'));
    const lineStarts = [0, ...[...text.matchAll(/\n/g)].map(({ index }) => index + 1)];
    const made = { lineStarts, units: functionsOf(text).map(({ unit }) => unit) };
    this.read.set(url, made);
    return made;
  }
}

/** Records every entry of a function from `begin` until `end`. */
class Recorder {
  readonly entered: Entered[] = [];

  begin(): void {
    (globalThis as { floeWalk?: () => void }).floeWalk = () => this.record();
  }

  end(): void {
    (globalThis as { floeWalk?: () => void }).floeWalk = () => {};
  }

  private record(): void {
    const { prepareStackTrace, stackTraceLimit } = Error;
    Error.stackTraceLimit = 12;
    Error.prepareStackTrace = (_, sites) => sites;
    const { stack } = new Error();
    const sites = stack as unknown as NodeJS.CallSite[];
    Object.assign(Error, { prepareStackTrace, stackTraceLimit });
    const places: Place[] = [];
    // The first two sites are this method and the arrow function that called it. Sites without a file are builtins such as Array.map.
    for (const site of sites.slice(2)) {
      const url = site.getFileName();
      if (url == null) continue;
      if (!COMPILED.test(url)) break;
      places.push({ url, line: site.getLineNumber() ?? 0, column: site.getColumnNumber() ?? 0 });
    }
    const [callee, ...callers] = places;
    if (callee !== undefined) this.entered.push({ callee, callers });
  }
}

/** A call of a function: the names of the function and of its caller; `null` when no function of floe called it directly. */
type Call = { readonly to: string; readonly from: string | null };

/** Returns the file of a function's name, which is `FILE FUNCTION`. */
const fileOf = (name: string): string => name.slice(0, name.indexOf(' '));

/** Returns the calls from the first function of the walk to the last one, and all functions in them by name. */
function callsOf(walk: Walk, entered: readonly Entered[]): { way: readonly Call[]; units: ReadonlyMap<string, Unit> } {
  const modules = new Modules();
  const units = new Map<string, Unit>();
  const nameAt = (place: Place): string | null => {
    const found = modules.at(place);
    if (found === null || NO_STOPS.test(found.file)) return null;
    const name = `${found.file} ${found.unit.name}`;
    units.set(name, found.unit);
    return name;
  };
  const calls: Call[] = [];
  for (const { callee, callers } of entered) {
    const to = nameAt(callee);
    if (to === null) continue;
    // If the caller is in `core`, such as a semaphore, the code that called it passed the function to it.
    let from: string | null = null;
    for (const caller of callers) from ??= nameAt(caller);
    calls.push({ to, from });
  }
  const first = calls.findIndex(({ to }) => to === walk.from);
  const last = calls.findIndex(({ to }, index) => index > first && to === walk.to);
  if (first < 0 || last < 0) throw new Error(`the call did not pass ${first < 0 ? walk.from : walk.to}`);
  return { way: calls.slice(first, last + 1), units };
}

/** Prints the walk. `showsAll` adds the functions that are no stops. */
function print(walk: Walk, entered: readonly Entered[], showsAll: boolean): void {
  const { way, units } = callsOf(walk, entered);
  const carries = (name: string): boolean => walk.carriers.test(fileOf(name));
  const isStop = (name: string): boolean => {
    if (name === walk.from || name === walk.to) return true;
    if (units.get(name)?.isAccessor === true) return false;
    const passesOn = way.some(({ to, from }) => from === name && fileOf(to) !== fileOf(name));
    return passesOn && (carries(name) || way.some(({ to, from }) => to === name && from !== null && carries(from)));
  };
  const names = [...new Set(way.map(({ to }) => to))];
  const stops = names.filter(isStop);
  for (const name of showsAll ? names : stops) {
    const number = stops.includes(name) ? String(stops.indexOf(name) + 1) : '';
    console.log(`${number.padStart(4)}  ${name.replace(/^packages\//, '')}`);
  }
  const files = new Set(stops.map(fileOf));
  const rooms = new Set([...files].map((file) => dirname(file)));
  console.log(
    `\n${stops.length} stops, ${files.size} files, ${rooms.size} rooms; ${names.length} functions were entered`,
  );
  for (const name of walk.classes) {
    const ownerOf = (function_: string | null): string | null => units.get(function_ ?? '')?.owner ?? null;
    const members = names.filter((entered) => ownerOf(entered) === name).map((entered) => entered.split('.').at(-1));
    const entries = way.filter(({ to, from }) => ownerOf(to) === name && from !== null && ownerOf(from) !== name);
    console.log(`${name}: ${entries.length} entries; ${members.length} members entered: ${members.join(', ')}`);
  }
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ allowPositionals: true, options: { all: { type: 'boolean' } } });
  const walk = WALKS[positionals[0] ?? ''];
  if (walk === undefined) {
    console.error(`usage: npm run walk -- NAME [--all]; there are these walks: ${Object.keys(WALKS).join(', ')}`);
    process.exitCode = 2;
    return;
  }
  const recorder = new Recorder();
  recorder.end();
  register(pathToFileURL(fileURLToPath(import.meta.url)));
  await walk.run(() => recorder.begin());
  recorder.end();
  print(walk, recorder.entered, values.all === true);
}

if (isMainThread && process.argv[1] === fileURLToPath(import.meta.url)) await main();
