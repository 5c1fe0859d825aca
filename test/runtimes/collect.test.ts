import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { collect } from '../../src/runtimes/collect.ts';
import type { Runtime } from '../../src/runtimes/runtime.ts';
import { bubblewrapProblem, never, Workbench } from './workbench.ts';

const problem = await bubblewrapProblem();
const MIB = 1024 * 1024;

describe.each([
  ['local', false],
  ['bubblewrap', problem !== null],
] as const)('what an agent leaves in a %s sandbox', (backend, skipped) => {
  suite(backend, skipped);
});

function suite(backend: 'local' | 'bubblewrap', skipped: boolean): void {
  const it = test.skipIf(skipped);
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  /** A sandbox in which the command has run, with `$A` and `$L` for its artifacts and logs. */
  async function after(command: string, spec: Parameters<Workbench['start']>[1] = {}): Promise<Runtime> {
    const runtime = await bench.start(backend, spec);
    const env = { A: runtime.paths.artifacts, L: runtime.paths.logs };
    const ended = await runtime.exec({ command: `set -e; ${command}`, env }, never);
    expect(ended).toMatchObject({ exitCode: 0, killedBy: null });
    return runtime;
  }

  /** `tar -tv` of an archive: the kind, and the name with what it links to. */
  function listing(archive: Buffer | null | undefined): string[] {
    if (!archive) throw new Error('there is no archive');
    const file = join(bench.dir, 'archive.tar.gz');
    writeFileSync(file, archive);
    const lines = execFileSync('tar', ['-tvzf', file], { encoding: 'utf8', env: { ...process.env, LC_ALL: 'C' } });
    return lines
      .trim()
      .split('\n')
      .map((line) => line.replace(/^(.)\S* +\S+ +\S+ +\S+ +\S+ /, '$1 '))
      .sort();
  }

  it('is packed under the names of its folders, further paths under their own', async () => {
    const runtime = await after(
      'mkdir -p "$A/sub" "$L/pi" out/deep; echo a >"$A/sub/a b"; echo l >"$L/pi/log"; echo o >out/deep/o; echo f >f; echo no >g',
    );
    const collected = await collect(runtime, { maxBytes: MIB, paths: ['out', 'f'] }, never);
    expect(collected?.omitted).toBeNull();
    expect(listing(collected?.archive)).toEqual([
      '- artifacts/sub/a b',
      '- logs/pi/log',
      '- paths/work/f',
      '- paths/work/out/deep/o',
      'd artifacts/sub/',
      'd logs/pi/',
      'd paths/work/out/',
      'd paths/work/out/deep/',
    ]);
    await runtime.stop();
  });
}
