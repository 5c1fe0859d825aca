import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { outcomeSchema } from '@floe-rl/core/schema';
import { FORMAT_NAMES } from '@floe-rl/data/trainers';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { startTestService, type TestService } from '#floe/testing/index';
import { repositoryRoot } from '../../../tools/repository.ts';
import { findTool } from '../../../verify/services/tools.ts';
import { adapterRecords } from '../../python/records.ts';
import { describeIf, itIf, type MissingPart, toolMissing } from '../../skip.ts';

const FOLDER = join(repositoryRoot(), 'python');

function pythonMissing(): MissingPart {
  const probe = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 10))']);
  return probe.status === 0 ? null : 'python3 is not installed in version 3.10 or newer: apt-get install -y python3';
}

type Ended = { readonly status: number | null; readonly output: string };

/** Runs a program without blocking this process, which may serve it. Nothing is written to the folder of the package. */
async function run(
  program: string,
  args: readonly string[],
  options: { readonly cwd?: string; readonly env?: Readonly<Record<string, string>> } = {},
): Promise<Ended> {
  const child = spawn(program, args, {
    cwd: options.cwd ?? FOLDER,
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const chunks: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => chunks.push(chunk));
  const [status] = await once(child, 'close');
  return { status: status as number | null, output: Buffer.concat(chunks).toString('utf8') };
}

describeIf(pythonMissing(), 'the Python package', () => {
  let service: TestService;
  let dir: string;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'floe-python-'));
    service = await startTestService();
  });
  afterAll(async () => {
    await service.close();
    rmSync(dir, { recursive: true, force: true });
  });

  it('passes its own tests, with a running floe', { timeout: 900_000 }, async () => {
    const env = { PYTHONPATH: 'src', FLOE_TEST_URL: service.url, FLOE_TEST_ENGINE: service.sim.url };
    const tests = ['-W', 'error::ResourceWarning', '-m', 'unittest', 'discover', '-s', 'tests', '-t', '.'];
    const { status, output } = await run('python3', tests, { env });
    expect(status, output).toBe(0);
    expect(output).not.toContain('FLOE_TEST_URL is not set');
    expect(Number(/Ran (\d+) tests/.exec(output)?.[1])).toBeGreaterThan(30);
  });

  it('knows the trainer formats and outcomes of the server', async () => {
    const program =
      'import json, typing, floe; print(json.dumps([typing.get_args(t) for t in (floe.FormatName, floe.Outcome)]))';
    const { output } = await run('python3', ['-c', program], { env: { PYTHONPATH: 'src' } });
    const [formats, outcomes] = JSON.parse(output) as string[][];
    expect(formats?.toSorted()).toEqual(FORMAT_NAMES.toSorted());
    expect(outcomes?.toSorted()).toEqual([...outcomeSchema.options].sort());
  });

  it('tests its adapters with the records of the trainer formats', async () => {
    await expect(adapterRecords()).toMatchFileSnapshot(join(FOLDER, 'tests', 'records.jsonl'));
  });

  it.each([
    ['files', '', 300],
    ['adapters', join('src', 'floe', 'trainers'), 199],
  ])('has %s that are not too long', (_, folder, most) => {
    const files = readdirSync(join(FOLDER, folder), { recursive: true, encoding: 'utf8' });
    const modules = files.filter((path) => path.endsWith('.py') && !path.endsWith('api_types.py'));
    const long = modules.filter(
      (path) => readFileSync(join(FOLDER, folder, path), 'utf8').split('\n').length > most + 1,
    );
    expect(modules.length).toBeGreaterThan(10);
    expect(long).toEqual([]);
  });

  const missing = toolMissing('mypy');
  const tool = (): string => join(dirname(findTool('mypy') ?? ''), 'python');

  itIf(missing, 'has types that mypy accepts in strict mode', async () => {
    const env = { MYPYPATH: 'src' };
    const cache = join(dir, 'mypy');
    const product = await run(tool(), ['-m', 'mypy', '--config-file', 'pyproject.toml', '--cache-dir', cache]);
    expect(product.output).toMatch(/^Success: no issues found in \d+ source files/);
    const strict = ['-m', 'mypy', '--strict', '--cache-dir', cache, '--explicit-package-bases', '-p', 'tests'];
    const tests = await run(tool(), strict, { env });
    expect(tests.output).toMatch(/^Success: no issues found in \d+ source files/);
  });

  itIf(missing, 'installs as a wheel into an empty environment', async () => {
    const source = join(dir, 'source');
    cpSync(FOLDER, source, { recursive: true });
    const build = ['-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-build-isolation', '-w', dir, source];
    const built = await run(tool(), build, { cwd: dir });
    expect(built.status, built.output).toBe(0);
    const wheel = readdirSync(dir).find((name) => name.endsWith('.whl'));
    expect(wheel).toMatch(/^floe_rl-/);
    expect((await run('python3', ['-m', 'venv', join(dir, 'venv')], { cwd: dir })).status).toBe(0);
    const python = join(dir, 'venv', 'bin', 'python');
    const pip = [
      '-m',
      'pip',
      'install',
      '--quiet',
      '--disable-pip-version-check',
      '--no-index',
      join(dir, wheel ?? ''),
    ];
    const installed = await run(python, pip, { cwd: dir });
    expect(installed.status, installed.output).toBe(0);
    const imports =
      'import floe, pathlib; p = pathlib.Path(floe.__file__); print(p.with_name("py.typed").exists(), floe.Client("http://x").close())';
    expect(await run(python, ['-I', '-c', imports], { cwd: dir })).toEqual({ status: 0, output: 'True None\n' });
  });
});
