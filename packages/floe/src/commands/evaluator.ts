import { FloeError } from '@floe-rl/core';
import { mathChecker } from '@floe-rl/evaluators';
import { installedBytes, installLocked, lockedStatus, MATH_VERIFY, mathVerifyPython } from '@floe-rl/node';
import type { Command } from 'commander';
import { harnessDir } from './home.ts';
import { interruptible } from './lifetime.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';
import { registerInit } from './scaffold/scaffold.ts';

const BYTES_PER_MB = 1_000_000;

/** Programs that evaluators run on the node itself, outside of sandboxes. */
const PROGRAMS = [MATH_VERIFY];

export function registerEvaluator(program: Command): void {
  const evaluator = program
    .command('evaluator')
    .description('make a new evaluator, and install the programs that evaluators run on a node');
  registerInit(evaluator, 'evaluator');
  evaluator
    .command('list')
    .description('list the programs with their pinned versions, and whether they are installed')
    .option('--json', 'print JSON')
    .action(list);
  evaluator
    .command('install <name>')
    .description('install a program in its pinned version: math_verify, for the evaluator `answer`')
    .action(install);
}

async function list(options: { json?: boolean }): Promise<void> {
  const rows = await Promise.all(
    PROGRAMS.map(async (locked) => {
      const { installed, path } = await lockedStatus(locked, harnessDir());
      const bytes = path === null ? null : await installedBytes(path);
      return { name: locked.name, version: locked.install.version, installed, path, bytes };
    }),
  );
  if (options.json) return printJson(rows);
  printLine(
    formatTable(
      ['name', 'version', 'MB', 'installed'],
      rows.map(({ name, version, path, bytes }) => [
        name,
        version,
        bytes === null ? null : Math.round(bytes / BYTES_PER_MB),
        path ?? 'no',
      ]),
    ),
  );
}

async function install(name: string): Promise<void> {
  const locked = PROGRAMS.find((program) => program.name === name);
  if (locked === undefined) {
    const known = PROGRAMS.map((program) => program.name);
    throw new FloeError('not_found', `no program ${name}; there are: ${known.join(', ')}`, { known });
  }
  const done = await interruptible(async (signal) => {
    const path = await installLocked(locked, { cacheDir: harnessDir(), log: printNote, signal });
    await checkMath(signal);
    printLine(path);
    return true;
  });
  if (done === null) printNote('Interrupted. Run the command again.');
}

/** Compares two expressions. Throws `setup_failed` when math-verify does not find that they are equal. */
async function checkMath(signal: AbortSignal): Promise<void> {
  const checker = mathChecker(() => mathVerifyPython(harnessDir()));
  try {
    const verdict = await checker.check({ expected: ['\\frac{1}{2}'], answer: '0.5', extract: false }, signal);
    if (verdict === 'equal') return;
    throw new FloeError('setup_failed', `math-verify was installed but calls 1/2 and 0.5 ${verdict}`);
  } finally {
    await checker.close();
  }
}
