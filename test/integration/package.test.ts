import { type SpawnSyncReturns, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { makeTarballs } from '../../tools/packages.ts';
import { repositoryRoot } from '../../tools/repository.ts';

const ROOT = repositoryRoot();

let dir: string;
/** Paths of the files in the package's tarball. */
let packed: string[];

function run(cwd: string, program: string, ...args: string[]): SpawnSyncReturns<string> {
  return spawnSync(program, args, {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, npm_config_ignore_scripts: 'true' },
  });
}

/** Runs the text `text` as a Node module in the folder that has only the package installed. Returns what the module prints. */
function runModule(name: string, text: string): string {
  writeFileSync(join(dir, name), text);
  const { status, stdout, stderr } = run(dir, process.execPath, name);
  expect(stderr).toBe('');
  expect(status).toBe(0);
  return stdout.trim();
}

describe('the packed package, installed into an empty folder', { timeout: 240_000 }, () => {
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-package-'));
    const tarball = makeTarballs(dir, ['floe']).get('floe') ?? '';
    packed = run(dir, 'tar', '-tzf', tarball).stdout.trim().split('\n');
    writeFileSync(join(dir, 'package.json'), '{"name": "user", "private": true, "type": "module"}\n');
    const install = run(dir, 'npm', 'install', '--no-audit', '--no-fund', '--prefer-offline', tarball);
    expect(install.status, install.stderr).toBe(0);
  }, 240_000);

  afterAll(() => rmSync(dir, { recursive: true, force: true }));

  it('contains no verification, bench, tool or test code', () => {
    expect(packed).toContain('package/dist/commands/main.js');
    expect(packed).toContain('package/node_modules/@floe-rl/core/dist/index.js');
    const others = /^package\/(node_modules\/@floe-rl\/[^/]+\/)?(verify|bench|tools|test|src|\.build)\//;
    expect(packed.filter((path) => others.test(path) || /\.map$|\.stamp$|\.tsbuildinfo$/.test(path))).toEqual([]);
  });

  it('states neither development packages nor sources, and contains all packages of floe that it needs', () => {
    const modules = join(dir, 'node_modules');
    const manifest = JSON.parse(readFileSync(join(modules, 'floe', 'package.json'), 'utf8'));
    expect(manifest).not.toHaveProperty('devDependencies');
    expect(JSON.stringify(manifest.exports)).not.toContain('floe-source');
    const own = Object.keys(manifest.dependencies).filter((name) => name.startsWith('@floe-rl/'));
    expect(manifest.bundleDependencies).toEqual(own);
    expect(existsSync(join(modules, '@floe-rl'))).toBe(false);
  });

  it('runs the command', () => {
    const { status, stdout } = run(dir, join(dir, 'node_modules', '.bin', 'floe'), '--version');
    expect(status).toBe(0);
    expect(stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });

  it('submits a task with floe/client to the service of floe/testing and reads an exact trace', () => {
    const output = runModule(
      'trainer.js',
      `import { FloeClient } from 'floe/client';
import { sessionResultSchema } from 'floe/schema';
import { checkAgainstLedger, startTestService } from 'floe/testing';

const service = await startTestService();
const client = new FloeClient({ url: service.url });
const call = "curl -sf \\"$OPENAI_BASE_URL/chat/completions\\" -H \\"authorization: Bearer $OPENAI_API_KEY\\" -H 'content-type: application/json' -d '{\\"model\\":\\"policy\\",\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"hi\\"}]}' > /dev/null";
await client.submit({ instruction: 'hi', agent: { harness: 'shell', custom_shell: call }, evaluator: { strategy: 'session_completed' } });
for await (const result of client.results()) {
  sessionResultSchema.parse(result);
  const { mismatches, trainable_tokens } = checkAgainstLedger([result], service.sim.ledger.entries(), 'processed');
  console.log(result.outcome, result.reward, mismatches.length, trainable_tokens > 0);
  break;
}
await client.close();
await service.close();
`,
    );
    expect(output).toBe('completed 1 0 true');
  });

  it('defines a harness with floe/plugins', () => {
    const output = runModule(
      'harness.js',
      `import { defineHarness } from 'floe/plugins';
import { z } from 'zod';

const harness = defineHarness({
  name: 'echo',
  dialects: ['openai_chat'],
  features: [],
  install: null,
  settings: z.strictObject({}),
  launch: () => ({ files: [], env: {}, command: ['echo', 'hello'] }),
  judge: () => ({ ok: true }),
});
console.log(harness.name, typeof harness.checkAgent);
`,
    );
    expect(output).toBe('echo function');
  });

  it('type-checks a plug-in and a trainer against its declarations', () => {
    const types = join(dir, 'types');
    mkdirSync(types);
    writeFileSync(
      join(types, 'plugin.ts'),
      `import type { ConnectionOptions, FloeClient } from 'floe/client';
import type { Builder, BuilderKit, Evaluator, HarnessAdapter, Runtime, RuntimeProvider } from 'floe/plugins';
import type { SessionResult, TaskRequestInput } from 'floe/schema';
import type { SimServer, TestService } from 'floe/testing';

export type All = [ConnectionOptions, FloeClient, Builder, Evaluator, HarnessAdapter, Runtime, RuntimeProvider, SessionResult, SimServer];
export const createBuilder = ({ excludedCompletions }: BuilderKit): Pick<Builder, 'checkConfig' | 'build'> => ({
  checkConfig: () => {},
  build: (graph) => ({ traces: [], excluded: excludedCompletions(graph, []), credit: 'broadcast' }),
});
export const task: TaskRequestInput = { instruction: 'hi', agent: { harness: 'shell' } };
export const url = (service: TestService): string => service.url;
// @ts-expect-error the client has no such call
export const wrong = (client: FloeClient): unknown => client.nothing();
`,
    );
    writeFileSync(
      join(types, 'tsconfig.json'),
      JSON.stringify({
        compilerOptions: {
          target: 'ES2023',
          module: 'nodenext',
          strict: true,
          noEmit: true,
          skipLibCheck: true,
          types: ['node'],
          typeRoots: [join(ROOT, 'node_modules', '@types')],
        },
        include: ['plugin.ts'],
      }),
    );
    const compiler = join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc');
    const { status, stdout } = run(types, process.execPath, compiler, '-p', 'tsconfig.json');
    expect(stdout).toBe('');
    expect(status).toBe(0);
  });
});
