import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { finished } from 'node:stream/promises';
import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { repositoryRoot } from '../../tools/repository.ts';
import { type EnvironmentName, uvProgram } from './install.ts';

/** Folder of the Python programs. */
const PROGRAMS = join(repositoryRoot(), 'verify', 'trainers');
/** Folder of the programs that need no packages: each is written from the named source of a trainer that no package registry has. */
const VALIDATORS = join(PROGRAMS, 'validators');

/** A program that reads exported files as a trainer does: `python PROGRAM FOLDER`. Its last line of output is a {@link Report}. */
export type Trainer = {
  /** The name that the option `--only` selects. */
  readonly name: string;
  readonly program: string;
  /** The environment with the trainer's packages; `null` for a program that needs none. */
  readonly environment: EnvironmentName | null;
  /** Folder with a copy of the trainer's repository. Its own classes then read the files; otherwise the validator reads them. */
  readonly source?: string;
};

const WITH_PACKAGES: readonly Omit<Trainer, 'program'>[] = [
  { name: 'floe_grpo', environment: 'trl' },
  { name: 'trl_grpo', environment: 'trl' },
  { name: 'trl_async', environment: 'trl' },
  { name: 'verl_fsdp', environment: 'verl' },
  { name: 'areal_fsdp', environment: 'areal' },
  { name: 'skyrl_tinker', environment: 'skyrl' },
  { name: 'skyrl_generator', environment: 'skyrl' },
  { name: 'openrlhf_experience', environment: 'openrlhf' },
  { name: 'art_tokens', environment: 'art' },
];

export function allTrainers(): Trainer[] {
  const validators = (existsSync(VALIDATORS) ? readdirSync(VALIDATORS) : []).filter(
    (file) => file.endsWith('.py') && !file.startsWith('_'),
  );
  return [
    ...WITH_PACKAGES.map((trainer) => ({ ...trainer, program: join(PROGRAMS, 'programs', `${trainer.name}.py`) })),
    ...validators
      .sort()
      .map((file) => ({ name: basename(file, '.py'), program: join(VALIDATORS, file), environment: null })),
  ];
}

/**
 * Returns the trainers with the source folders that the texts `NAME=PATH` give some of them. Throws an Error for a text in another form, for a
 * trainer that is installed from packages, and for a path that is not a folder.
 */
export function withSources(trainers: readonly Trainer[], texts: readonly string[]): Trainer[] {
  const sources = new Map(
    texts.map((given) => {
      const at = given.indexOf('=');
      if (at < 1 || at === given.length - 1)
        throw new FloeError('bad_request', `--source must be NAME=PATH, and not ${given}`);
      return [given.slice(0, at), resolve(given.slice(at + 1))];
    }),
  );
  const readers = trainers.filter(({ program }) => dirname(program) === VALIDATORS).map(({ name }) => name);
  for (const [name, path] of sources) {
    if (!readers.includes(name)) {
      throw new FloeError(
        'bad_request',
        `--source ${name}: the selected trainers with a source are ${readers.join(', ')}`,
      );
    }
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true)
      throw new FloeError('bad_request', `${path} is no folder`);
  }
  return trainers.map((trainer) => {
    const source = sources.get(trainer.name);
    return source === undefined ? trainer : { ...trainer, source, environment: 'sources' };
  });
}

const count = z.int().min(0);
const reportSchema = z.object({
  trainer: z.string(),
  /** Version of the trainer's package, or the commit of its source. */
  version: z.string(),
  how: z.enum([
    'a real training step',
    "the package's own classes and validators",
    'a validator written from named source',
    "the source's own classes",
  ]),
  /** Names of modules that the source imports and that were replaced by empty objects. */
  stand_ins: z.array(z.string()).default([]),
  /** Number of rows that the trainer read, in all formats. */
  rows: count,
  /** Whether the trainer changed the weights of a model with these rows. */
  real_step: z.boolean(),
  passed: count,
  failed: count,
  /** The first failures. */
  failures: z.array(z.string()),
  /** Largest difference between a recorded logprob and the trainer's logprob; `null` when the trainer computed none. */
  largest_difference: z.number().nullable().default(null),
});
export type Report = z.output<typeof reportSchema>;

/**
 * Runs the program of a trainer in the folder of the exports and returns its report. Its error output is written to the file `log`. Throws an
 * Error with the last line of this file when the program ends with another status than 0 or without a report.
 */
export async function runTrainer(
  { name, program, source }: Trainer,
  python: string,
  folder: string,
  log: string,
): Promise<Report> {
  // Threads that wait for each other slow a tiny model down, most of all beside other programs.
  const env = {
    ...process.env,
    FLOE_UV: uvProgram(),
    PYTHONUTF8: '1',
    HF_HUB_OFFLINE: '1',
    OMP_NUM_THREADS: '1',
    TOKENIZERS_PARALLELISM: 'false',
  };
  const args = [program, folder, ...(source === undefined ? [] : ['--source', source])];
  const child = spawn(python, args, { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const errors = child.stderr.pipe(createWriteStream(log));
  const [output, [status]] = await Promise.all([text(child.stdout), once(child, 'exit'), finished(errors)]);
  const parsed = reportOf(output);
  if (status === 0 && parsed !== null) return parsed;
  const last = readFileSync(log, 'utf8').trimEnd().split('\n').at(-1);
  const ended = `ended with status ${status} and ${parsed === null ? 'no report' : 'a report'}`;
  throw new Error(`${name}: ${ended}: ${last}; see ${log}`);
}

/** Reads the report in the last line of a program's output; `null` when that line is not one. */
function reportOf(output: string): Report | null {
  try {
    return reportSchema.parse(JSON.parse(output.trimEnd().split('\n').at(-1) ?? ''));
  } catch {
    return null;
  }
}
