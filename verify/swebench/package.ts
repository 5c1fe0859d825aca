import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { GIB } from '@floe-rl/core';
import { z } from 'zod';
import { repositoryRoot } from '../../tools/repository.ts';
import { run, venvAt } from '../services/venv.ts';

const SOURCES = join(repositoryRoot(), 'verify', 'swebench');
const REQUIREMENTS = join(SOURCES, 'requirements.txt');
const PROGRAM = join(SOURCES, 'official.py');
const VERSION = '5.0.2';
/** Folder of the installed package and its source archive. */
const HOME = join(homedir(), '.cache', 'floe', 'swebench', VERSION);

/** A log to be graded. `seed` decides which of its tests are expected. */
export type Case = {
  readonly parser: string;
  readonly instance_id: string;
  readonly version: string;
  readonly eval_type: 'pass_and_fail' | 'fail_only';
  readonly seed: number;
  readonly log: string;
};

const tests = z.object({ success: z.array(z.string()), failure: z.array(z.string()) });
const resultSchema = z.union([
  z.object({ error: z.string() }),
  z.object({
    fail_to_pass: z.array(z.string()),
    pass_to_pass: z.array(z.string()),
    found: z.boolean(),
    statuses: z.record(z.string(), z.string()),
    resolved: z.boolean(),
    tests: z.object({ FAIL_TO_PASS: tests, PASS_TO_PASS: tests }).nullable(),
  }),
]);

/** What the package reports for a case: the expected tests and its verdict, or the exception that it raised. */
export type OfficialResult = z.output<typeof resultSchema>;

/** The official package. */
export type Official = {
  readonly parsers: readonly string[];
  /** The text literals in the tests of the package. Among them are the logs that the package tests its parsers with. */
  readonly texts: readonly string[];
  grade(cases: readonly Case[]): OfficialResult[];
};

/** Installs the package and its source archive from PyPI, unless they are installed. Returns `null` when PyPI cannot be reached. */
export function installOfficial(): Official | null {
  const requirements = readFileSync(REQUIREMENTS);
  const stamp = join(HOME, 'made-from');
  const digest = createHash('sha256').update(requirements).digest('hex');
  const { python, pip } = venvAt(join(HOME, 'venv'));
  if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== digest) {
    if (spawnSync(python, ['-m', 'pip', 'index', 'versions', 'swebench']).status !== 0) return null;
    console.error(`▸ installing swebench ${VERSION}`);
    const sources = join(HOME, 'sources');
    rmSync(sources, { recursive: true, force: true });
    mkdirSync(sources, { recursive: true });
    pip('install', '-q', '--no-deps', '--require-hashes', '-r', REQUIREMENTS);
    const onlySources = ['--no-deps', '--no-binary', 'swebench', '--require-hashes'];
    pip('download', '-q', ...onlySources, '-d', sources, '-r', REQUIREMENTS);
    run('tar', ['xzf', join(sources, `swebench-${VERSION}.tar.gz`), '-C', sources]);
    writeFileSync(stamp, digest);
  }
  const folder = join(HOME, 'sources', `swebench-${VERSION}`, 'tests');
  const files = readdirSync(folder).filter((name) => name.endsWith('.py'));
  const ask = (args: readonly string[], input = ''): string => runProgram(python, args, input);
  const list = z.array(z.string());
  return {
    parsers: list.parse(JSON.parse(ask(['parsers']))),
    texts: list.parse(JSON.parse(ask(['literals', ...files.map((name) => join(folder, name))]))),
    grade(cases) {
      const lines = ask(['grade'], cases.map((entry) => `${JSON.stringify(entry)}\n`).join(''))
        .trimEnd()
        .split('\n');
      return lines.map((line) => resultSchema.parse(JSON.parse(line)));
    },
  };
}

function runProgram(python: string, args: readonly string[], input: string): string {
  const env = { ...process.env, PYTHONUTF8: '1' };
  const ended = spawnSync(python, [PROGRAM, ...args], { input, env, encoding: 'utf8', maxBuffer: GIB / 4 });
  if (ended.status === 0) return ended.stdout;
  throw new Error(`${PROGRAM} ${args[0]}: ${ended.error?.message ?? ended.stderr.slice(-2000)}`);
}
