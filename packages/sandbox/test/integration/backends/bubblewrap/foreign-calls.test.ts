import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { itIf, type MissingPart } from '../../../../../../test/skip.ts';
import { FOREIGN_EXIT_CODE, FOREIGN_PROGRAM } from '../../../../../../verify/fixtures/foreign-program.ts';
import { bubblewrapMissing, never, Workbench } from '../../../backends/workbench.ts';

function runOnHost(program: Buffer): number | null {
  const dir = mkdtempSync(join(tmpdir(), 'floe-foreign-'));
  try {
    writeFileSync(join(dir, 'program'), program, { mode: 0o755 });
    return spawnSync(join(dir, 'program')).status;
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function cannotRun(program: Buffer): MissingPart {
  if (process.arch !== 'x64') return 'this is not an x86-64 machine: run the tests on one';
  return runOnHost(program) === FOREIGN_EXIT_CODE
    ? null
    : 'the kernel does not run i386 calls: boot one with CONFIG_IA32_EMULATION';
}

const program = FOREIGN_PROGRAM;
const missing = (await bubblewrapMissing()) ?? cannotRun(program);

itIf(missing, 'the filter kills a program that makes a system call of another architecture', async () => {
  const bench = await Workbench.open();
  const runtime = await bench.start('bubblewrap');
  await runtime.writeFiles([{ path: 'program', content: program, mode: 0o755 }], never);
  const ended = await runtime.exec({ command: ['./program'] }, never);
  expect(ended).toMatchObject({ exitCode: null, signal: 'SIGSYS', killedBy: null });
  await runtime.stop();
  await bench.close();
});
