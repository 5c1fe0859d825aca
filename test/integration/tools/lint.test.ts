import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkAssertions } from '../../../tools/lint/assertions.ts';
import { checkCalls } from '../../../tools/lint/calls.ts';
import { checkChannels } from '../../../tools/lint/channels.ts';
import { checkCopies } from '../../../tools/lint/copies.ts';
import {
  checkCircles,
  checkImports,
  checkRooms,
  type PackageFacts,
  type Packages,
  readPackages,
} from '../../../tools/lint/packages.ts';
import { checkSizes } from '../../../tools/lint/sizes.ts';
import { parseSource } from '../../../tools/lint/source.ts';
import { checkWords, WORDS } from '../../../tools/lint/words.ts';
import { repositoryRoot } from '../../../tools/repository.ts';

const ROOT = repositoryRoot();

const messages = (problems: readonly { readonly message: string }[]): string[] =>
  problems.map(({ message }) => message);

describe('forbidden calls', () => {
  const PLANTED: readonly (readonly [code: string, names: string])[] = [
    ['setTimeout(() => {}, 5);', 'setTimeout()'],
    ['globalThis.setTimeout(() => {}, 5);', 'setTimeout()'],
    ['setInterval(() => {}, 5);', 'setInterval()'],
    ['export const t = Date.now();', 'Date.now()'],
    ['export const t = new Date();', 'new Date()'],
    ['export const t = performance.now();', 'performance.now()'],
    ['export const s = AbortSignal.timeout(5);', 'AbortSignal.timeout()'],
    ['export const r = Math.random();', 'Math.random()'],
    ['export const c = structuredClone({});', 'structuredClone()'],
    ["new AbortController().signal.addEventListener('abort', () => {});", "addEventListener('abort')"],
    ["import { setTimeout as sleep } from 'node:timers/promises';", 'node:timers/promises'],
    ['export default 1;', 'default export'],
    ["export * from './x.ts';", 'name what is exported'],
  ];

  for (const folder of ['packages/capture/src/engines', 'verify/faults', 'bench']) {
    it.each(PLANTED)(`are reported in ${folder}: %s`, (code, names) => {
      const problems = checkCalls(parseSource(`${folder}/planted.ts`, `export {};\n${code}\n`));
      expect(problems).toEqual([{ path: `${folder}/planted.ts`, line: 2, message: expect.stringContaining(names) }]);
    });
  }

  it('are not reported in comments, strings or under other names', () => {
    const text = [
      '// setTimeout(f, 1); Date.now();',
      "export const s = 'Math.random()';",
      'export const d = new Date(0);',
      "new EventTarget().addEventListener('close', () => {});",
      'export const own = { now: () => 1 };',
      'own.now();',
      "export * from '@floe-rl/client/schema';",
    ].join('\n');
    expect(checkCalls(parseSource('src/core/planted.ts', text))).toEqual([]);
  });

  it('are allowed in the files that provide the clock, the abort helpers and randomness', () => {
    expect(checkCalls(parseSource('packages/core/src/clock.ts', 'setTimeout(() => {}, 5); Date.now();'))).toEqual([]);
    expect(checkCalls(parseSource('packages/core/src/random.ts', 'export const r = Math.random();'))).toEqual([]);
    const abort = "new AbortController().signal.addEventListener('abort', () => {});";
    expect(checkCalls(parseSource('packages/core/src/abort.ts', abort))).toEqual([]);
  });
});

describe('calls of undici', () => {
  const reported = (path: string, code: string): unknown[] => checkCalls(parseSource(path, `export {};\n${code}\n`));
  const CALLS: readonly (readonly [code: string, names: string])[] = [
    ["import { request } from 'undici';", 'request of undici'],
    ["import { getSetCookies, fetch as load } from 'undici';", 'fetch of undici'],
    ["import { Agent, type Pool } from 'undici';", 'Agent of undici'],
    ["import undici from 'undici';", 'default of undici'],
    ["import * as undici from 'undici';", 'all of undici'],
    ["export const undici = await import('undici');", 'all of undici'],
    ["export const reply = fetch('http://x');", 'fetch()'],
  ];

  it.each(CALLS)('are reported in the sources of a package: %s', (code, names) => {
    const path = 'packages/search/src/search/planted.ts';
    expect(reported(path, code)).toEqual([{ path, line: 2, message: expect.stringContaining(names) }]);
  });

  it.each(CALLS)('are not reported in programs and in the primitive for bounded calls: %s', (code) => {
    for (const path of ['bench/planted.ts', 'packages/search/test/planted.ts', 'packages/core/src/http/call.ts']) {
      expect(reported(path, code)).toEqual([]);
    }
  });

  it('are not confused with types and with exports that make no call', () => {
    const code = "import type { Pool } from 'undici';\nimport { buildConnector, type Agent } from 'undici';";
    expect(reported('packages/client/src/planted.ts', code)).toEqual([]);
  });
});

describe('copies of functions that are defined once', () => {
  const reported = (path: string, code: string): unknown[] =>
    checkCopies(parseSource(path, `export {};\n${code}\n`)).map(({ line, message }) => [line, message]);

  const PLANTED: readonly (readonly [code: string, remedy: string])[] = [
    ['export const t = (e: unknown) => (e instanceof Error ? e.message : String(e));', 'import messageOf from'],
    [
      "export const t = (v: unknown) => typeof v === 'object' && v !== null && !Array.isArray(v);",
      'import isRecord from',
    ],
    [
      "export const t = (v: unknown) => typeof v !== 'object' || v === null || Array.isArray(v);",
      'import isRecord from',
    ],
    [
      "export const t = (c: Part[]) => c.map((p) => (p.type === 'text' ? p.text : '[image]')).join('');",
      'import contentText from',
    ],
    ["export const t = (s: string) => s.replaceAll(\"'\", `'\\\\''`);", 'import shellWord from'],
    ['export const t = (s: string) => s.replaceAll("\'", "\'\\\\\'\'");', 'import shellWord from'],
    [
      'export const t = (s: string) => s.toLowerCase().match(/[\\p{L}\\p{N}]+/gu);',
      'import lowerCaseWords from @floe-rl/core',
    ],
    ['export const t = (s: string) => s.split(/[^\\p{L}\\p{N}\\p{M}]+/u);', 'import lowerCaseWords from @floe-rl/core'],
    [
      "throw new FloeError('unsupported', 'runtime.network: this node does not allow sandboxes on the host network');",
      'make the back end a HostBackend',
    ],
    ['export const t = new BoxRuntime({ connection });', 'by startBoxed'],
    ['export const t = Math.ceil((spec.max_file_mb * MIB) / 512);', 'import fileBlocks from'],
    ["export const t = [loader, '--library-path', dir];", 'import programCommand from'],
    ['export const t = { ...baseEnvironment(AGENT_HOME), ...env };', 'import sandboxEnvironment from'],
    ["throw new FloeError('schema_violation', message, { issues: [{ path, message }] });", 'import fieldError from'],
    ["throw new FloeError('unsupported', message, { path, issues }, cause);", 'import fieldError from'],
  ];

  for (const folder of ['packages/capture/src/engines', 'verify/faults', 'bench']) {
    it.each(PLANTED)(`are reported in ${folder}: %s`, (code, remedy) => {
      expect(reported(`${folder}/planted.ts`, code)).toEqual([[2, expect.stringContaining(remedy)]]);
    });
  }

  it.each([
    ['function textOf(): void {}', 'contentText from @floe-rl/core/schema'],
    ['const messageOf = (): void => {};', 'messageOf from @floe-rl/core'],
    ['export function quoted(): void {}', 'shellWord from @floe-rl/core'],
    ['const isObject = function (): void {};', 'isRecord from @floe-rl/core'],
    ['function isRecord(): void {}', 'isRecord from @floe-rl/core'],
  ])('are reported by their names, in the product alone: %s', (code, remedy) => {
    expect(reported('packages/data/src/planted.ts', code)).toEqual([[2, expect.stringContaining(remedy)]]);
    expect(reported('verify/planted.ts', code)).toEqual([]);
  });

  it('are not seen in what only resembles them, nor in the file with the definition', () => {
    const text = [
      "export const quoted = 'text'.slice(0, 2);",
      "export const shown = (p: Part) => (p.type === 'text' ? p.text : imageOf(p));",
      "export const isPair = (v: unknown) => typeof v === 'object' && v !== null;",
      "throw new FloeError('schema_violation', 'has no name', { path });",
      'export const isName = (s: string) => /^[\\p{L}\\p{N}_.-]+$/u.test(s);',
    ].join('\n');
    expect(reported('packages/core/src/planted.ts', text)).toEqual([]);
    for (const name of ['thrown', 'record', 'schema/chat', 'shell-word', 'fields', 'words']) {
      const path = `packages/core/src/${name}.ts`;
      expect(checkCopies(parseSource(path, readFileSync(join(ROOT, path), 'utf8')))).toEqual([]);
    }
  });
});

describe('requests to other processes and threads', () => {
  const reported = (path: string, code: string): unknown[] =>
    checkChannels(parseSource(path, `export {};\n${code}\n`)).map(({ line, message }) => [line, message]);

  const PLANTED = [
    'const t = (id: number) => new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));',
    'waiting.set(id, { episode, resolve: (value) => settle(value), reject });',
    'const waiting = new Map<number, { resolve(value: string): void; reject(error: Error): void }>();',
    'type Waiter<T> = { readonly resolve: (t: T) => void; readonly reject: () => void }; const all = new Map<number, Waiter<string>>();',
    'const all = new Map<string, Waiter>(); type Waiter = { resolve(): void; reject(): void };',
  ];

  for (const folder of ['packages/node/src/gateway', 'verify/faults', 'bench']) {
    it.each(PLANTED)(`are reported in ${folder} when a map of them is made by hand: %s`, (code) => {
      expect(reported(`${folder}/planted.ts`, code)).toEqual([[2, expect.stringContaining('use PendingRequests')]]);
    });
  }

  it.each([
    "import { parentPort } from 'node:worker_threads';",
    "import { type Worker, Worker as Thread } from 'node:worker_threads';",
    'process.send?.({ type: 1 });',
  ])('are reported in the product when messages are sent without a channel: %s', (code) => {
    expect(reported('packages/node/src/planted.ts', code)).toEqual([[2, expect.stringContaining('Channel or Thread')]]);
    expect(reported('verify/planted.ts', code)).toEqual([]);
    expect(reported('packages/core/src/channel/planted.ts', code)).toEqual([]);
  });

  it.each([
    "import { isMainThread } from 'node:worker_threads';",
    "import type { Worker } from 'node:worker_threads';",
    'const waiters = new Map<string, (() => void)[]>(); waiters.set(key, [resolve]);',
    'const running = new Map<string, Promise<void>>();',
    'type Waiter = { resolve(): void; reject(): void }; let waiter: Waiter | null = null;',
    'cache.set(key, { value, resolve });',
    'this.child.send(message);',
  ])('are not seen in what only resembles them: %s', (code) => {
    expect(reported('packages/node/src/planted.ts', code)).toEqual([]);
  });
});

describe('regular expressions in toMatchObject', () => {
  const reported = (code: string): unknown[] => checkAssertions(parseSource('test/planted.ts', code));

  it.each([
    'expect(a).toMatchObject({ code: 1, message: /x/ });',
    'expect(a).rejects.toMatchObject({ error: { message: /x/i } });',
    'expect(a).toMatchObject([1, { message: /x/ }]);',
  ])('are reported: %s', (code) => {
    expect(reported(`export {};\n${code}`)).toEqual([
      { path: 'test/planted.ts', line: 2, message: expect.stringContaining('expect.stringMatching()') },
    ]);
  });

  it.each([
    'expect(a).toMatchObject({ ...b, message: expect.stringMatching(/x/), list: [, "/x/"] });',
    'expect(a).toEqual({ message: /x/ });',
    'expect(() => a()).toThrow(/x/);',
  ])('are not reported in other places: %s', (code) => {
    expect(reported(code)).toEqual([]);
  });
});

describe('import rules', () => {
  const PACKAGES: Packages = new Map([
    ['@floe-rl/core', facts('core', [], ['@floe-rl/core', '@floe-rl/core/schema', '@floe-rl/core/package.json'])],
    ['@floe-rl/capture', facts('capture', ['@floe-rl/core'])],
    ['@floe-rl/server', facts('server', ['@floe-rl/core'])],
  ]);

  function facts(folder: string, dependencies: string[], entries?: string[]): PackageFacts {
    return { folder, dependencies, entries: entries ?? [`@floe-rl/${folder}`, `@floe-rl/${folder}/package.json`] };
  }

  const reported = (path: string, code: string): string[] => messages(checkImports(parseSource(path, code), PACKAGES));

  it.each([
    ['packages/capture/src/tokens/planted.ts', '../proxy/http/proxy.ts', 'capture/tokens may not import capture/proxy'],
    [
      'packages/capture/src/proxy/planted.ts',
      '../../../server/src/store/store.ts',
      'packages/server/src/store/store.ts is outside the package capture; import another package by its name',
    ],
    [
      'packages/sandbox/src/box/planted.ts',
      '../backends/sandbox-runtime.ts',
      'sandbox/box may not import sandbox/backends',
    ],
    ['packages/capture/src/planted.ts', '../../../verify/main.ts', expect.stringContaining('outside the package')],
    ['packages/capture/src/a.ts', '@floe-rl/server', expect.stringContaining('not among the dependencies')],
    [
      'packages/capture/src/a.ts',
      '@floe-rl/core/errors',
      expect.stringContaining('is a deep path; import from @floe-rl/core or @floe-rl/core/schema'),
    ],
    ['verify/planted.ts', '@floe-rl/core/dist/errors.js', expect.stringContaining('is a deep path')],
    ['verify/planted.ts', '@floe-rl/nowhere', 'there is no package @floe-rl/nowhere'],
    ['packages/capture/src/a.ts', '#core/errors', expect.stringContaining('for programs of the repository')],
    ['verify/planted.ts', '../test/skip.ts', 'verify may not import test/skip.ts'],
  ])('report %s importing %s', (path, specifier, message) => {
    for (const code of [
      `import '${specifier}';`,
      `export { x } from '${specifier}';`,
      `await import('${specifier}');`,
    ]) {
      expect(reported(path, code)).toEqual([message]);
    }
  });

  it('report a room that is missing from the table, and vague names', () => {
    expect(reported('packages/capture/src/stuff/a.ts', "import '../tokens/graph.ts';")).toEqual([
      'the room stuff of capture is missing from tools/lint/packages.ts',
    ]);
    expect(reported('packages/core/src/utils.ts', 'export {};')).toHaveLength(1);
  });

  it.each([
    ['packages/capture/src/proxy/planted.ts', '../tokens/graph.ts'],
    ['packages/capture/src/proxy/planted.ts', '../reply.ts'],
    ['packages/capture/src/index.ts', './proxy/http/proxy.ts'],
    ['packages/capture/src/a.ts', '@floe-rl/core/schema'],
    ['packages/capture/test/a.test.ts', '../../sandbox/src/spawn/client.ts'],
    ['verify/planted.ts', '#core/errors'],
    ['packages/capture/src/a.ts', 'node:fs'],
  ])('allow %s to import %s', (path, specifier) => {
    expect(reported(path, `import '${specifier}';`)).toEqual([]);
  });

  it('report packages that depend on each other, in one line that names all of them', () => {
    const circle = new Map([...PACKAGES, ['@floe-rl/core', facts('core', ['@floe-rl/server'])]]);
    expect(messages(checkCircles(circle))).toEqual([
      '@floe-rl/core → @floe-rl/server → @floe-rl/core depend on each other; move what they share to a package below them',
    ]);
    expect(checkCircles(PACKAGES)).toEqual([]);
  });

  it('hold for the manifests of this repository', () => {
    const packages = readPackages(ROOT);
    expect(packages.get('@floe-rl/core')).toMatchObject({ folder: 'core', dependencies: [] });
    expect(checkCircles(packages)).toEqual([]);
  });

  it('report rooms that the table allows to import each other', () => {
    const table = { sandbox: { api: [], box: ['api', 'backends'], backends: ['*'] } };
    expect(messages(checkRooms(table))).toEqual([
      'rooms of sandbox may import each other: box → backends → box; move what they share to one of them',
    ]);
    expect(checkRooms({ sandbox: { api: [], box: ['api'], backends: ['*'] } })).toEqual([]);
    expect(checkRooms()).toEqual([]);
  });
});

describe('file sizes', () => {
  it('report a file of more than 600 lines', () => {
    const long = parseSource('verify/long.ts', '// line\n'.repeat(601));
    const short = parseSource('verify/short.ts', '// line\n'.repeat(600));
    expect(checkSizes([long, short])).toEqual([
      { path: 'verify/long.ts', line: 0, message: '601 lines, more than 600' },
    ]);
  });

  it('report a product whose median and 90th-percentile files are too long', () => {
    const files = Array.from({ length: 10 }, (_, i) =>
      parseSource(`packages/core/src/f${i}.ts`, '// line\n'.repeat(400)),
    );
    expect(checkSizes(files)).toHaveLength(2);
  });
});

describe('banned words', () => {
  it.each([
    ['// The gate opens when all have been told.', 'told'],
    ['/**\n * Nobody waits for it.\n */', 'Nobody'],
    ["export const text = 'the session goes on';", 'goes on'],
    ['export const text = (n: number) => `$' + '{n} lies behind it`;', 'behind'],
    ['/** Waits for\n * ever. */\n// It waits for ever.', 'for ever'],
  ])('are reported with the remedy: %s', (code, word) => {
    const warnings = checkWords(parseSource('src/core/planted.ts', code));
    expect(warnings.length).toBeGreaterThan(0);
    expect(warnings[0]?.message).toContain(`"${word}"`);
  });

  it('are not reported in names, nor where a word has its plain meaning', () => {
    const text = [
      'export const told = 1;',
      '// Works behind a reverse proxy; two ids that nothing tells apart.',
      'export const path = "lookups/ongoing";',
    ].join('\n');
    expect(checkWords(parseSource('src/core/planted.ts', text))).toEqual([]);
  });

  it('are not reported in a string that is marked as a quotation', () => {
    const text =
      "// words: quoted\nexport const prompt = 'Go on, whoever you are.';\nexport const own = 'it goes on';\n";
    expect(checkWords(parseSource('src/core/planted.ts', text)).map(({ line }) => line)).toEqual([3]);
  });

  it('are the words that CONTRIBUTING.md lists', () => {
    const contributing = readFileSync(join(ROOT, 'CONTRIBUTING.md'), 'utf8');
    for (const { word } of WORDS) expect(contributing).toContain(`| ${word} |`);
  });
});

describe('tools with a configuration', () => {
  let tree = '';

  beforeAll(() => {
    tree = mkdtempSync(join(tmpdir(), 'floe-lint-'));
    for (const name of ['biome.json', 'knip.json', 'tsconfig.base.json', 'tsconfig.test.json', 'package.json'])
      cpSync(join(ROOT, name), join(tree, name));
    symlinkSync(join(ROOT, 'node_modules'), join(tree, 'node_modules'));
    const files = {
      'packages/core/package.json': readFileSync(join(ROOT, 'packages', 'core', 'package.json'), 'utf8'),
      'packages/core/tsconfig.json': readFileSync(join(ROOT, 'packages', 'core', 'tsconfig.json'), 'utf8'),
      'packages/core/src/index.ts': "import { used } from './a.ts';\n\nused();\n",
      'packages/core/src/a.ts':
        "import type { B } from './b.ts';\n\nexport function used(): B | null {\n  return null;\n}\n\nexport function unused(): void {}\n",
      'packages/core/src/b.ts': "import { used } from './a.ts';\n\nexport type B = ReturnType<typeof used>;\n",
      'packages/core/src/orphan.ts': 'export const orphan = 1;\n',
    };
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(dirname(join(tree, path)), { recursive: true });
      writeFileSync(join(tree, path), text);
    }
  });

  afterAll(() => rmSync(tree, { recursive: true, force: true }));

  const run = (program: string, ...args: string[]): { status: number | null; output: string } => {
    const path = join(ROOT, 'node_modules', program);
    const { status, stdout, stderr } = spawnSync(process.execPath, [path, ...args], { cwd: tree, encoding: 'utf8' });
    return { status, output: stdout + stderr };
  };

  it('make biome fail on two modules that import each other, even for types alone', () => {
    const { status, output } = run('@biomejs/biome/bin/biome', 'check', 'packages');
    expect(output).toContain('noImportCycles');
    expect(status).toBe(1);
  });

  it('make knip fail on an export that no module imports and on a file that no entry point reaches', () => {
    const { status, output } = run('knip/bin/knip.js', '--include', 'exports,files');
    expect(output).toMatch(/unused {2,}.*packages\/core\/src\/a\.ts/);
    expect(output).toContain('packages/core/src/orphan.ts');
    expect(status).toBe(1);
  });
});
