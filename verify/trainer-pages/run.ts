import { spawn } from 'node:child_process';
import { chmodSync, closeSync, existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { freePort, freePorts } from '../services/ports.ts';
import { endOf } from '../services/shell.ts';
import { findPython } from '../services/venv.ts';
import { uvProgram } from '../trainers/install.ts';
import { type Block, differenceOf, type Page } from './page.ts';

/** Maximum time in milliseconds for all commands of a page. */
const PAGE_TIMEOUT_MS = 30 * 60_000;
/** Maximum number of lines from the end of a failed command's output that are quoted. */
const QUOTED_LINES = 6;
/** The version of torch that all pages get, so that the files of its installations are shared. PyPI's build runs without a GPU, too. */
const CONSTRAINTS = 'torch==2.13.0\n';

/** Ports that pages name in their commands and files. Free ones take their places. */
const PAGE_PORTS = ['8000', '29500'];

/** What came of a page. `failure` is null when each of its commands printed what the page quotes. */
export type Outcome = {
  readonly commands: number;
  readonly printed: readonly string[];
  readonly failure: string | null;
};

/** Runs the blocks of a page in `folder`/page, which must not exist. The commands' output is kept in files of `folder`. */
export async function runPage({ blocks: written }: Page, folder: string): Promise<Outcome> {
  const place = join(folder, 'page');
  mkdirSync(place, { recursive: true });
  const blocks = await withFreePorts(written);
  for (const block of blocks) if (block.kind === 'file') writeBlock(place, block.name, block.text);
  const commands = blocks.filter(({ kind }) => kind === 'commands');
  writeFileSync(join(folder, 'page.sh'), script(blocks, folder));
  const log = openSync(join(folder, 'shell.log'), 'w');
  const env = await environment(folder);
  const child = spawn('bash', [join(folder, 'page.sh')], {
    cwd: place,
    env,
    stdio: ['ignore', log, log],
    detached: true,
  });
  closeSync(log);
  const status = await endOf(child, PAGE_TIMEOUT_MS);
  const printed = lastLines(blocks, folder);
  const outcome = { commands: commands.length, printed: printed.flatMap(({ line }) => line ?? []) };
  if (status !== 0) return { ...outcome, failure: `ended with ${status}: ${endOfOutput(folder, commands.length)}` };
  const differences = printed.flatMap(({ line, quoted }) => differenceOf(line ?? '', quoted) ?? []);
  return { ...outcome, failure: differences[0] ?? null };
}

async function withFreePorts(blocks: readonly Block[]): Promise<Block[]> {
  const ports = await freePorts(PAGE_PORTS.length);
  const replaced = (text: string): string =>
    PAGE_PORTS.reduce(
      (each, port, index) => each.replaceAll(new RegExp(`\\b${port}\\b`, 'g'), String(ports[index])),
      text,
    );
  return blocks.map((block) => (block.kind === 'printed' ? block : { ...block, text: replaced(block.text) }));
}

/**
 * All commands of a page in one shell, so that a virtual environment stays active. Each block's output is written to a file of its own. Servers
 * that the page starts in the background are ended when the shell ends.
 */
function script(blocks: readonly Block[], folder: string): string {
  const texts = blocks.flatMap((block) => (block.kind === 'commands' ? [block.text] : []));
  const groups = texts.map(
    (text, index) => `{\n${text}} >'${outputFile(folder, index)}' 2>'${errorFile(folder, index)}'`,
  );
  const end = 'servers=$(jobs -p); [ -z "$servers" ] || kill $servers; wait';
  return ['set -euo pipefail', `trap 'status=$?; ${end}; exit $status' EXIT`, ...groups, ''].join('\n');
}

function outputFile(folder: string, index: number): string {
  return join(folder, `commands-${index}.out`);
}

function errorFile(folder: string, index: number): string {
  return join(folder, `commands-${index}.err`);
}

function writeBlock(place: string, name: string, text: string): void {
  const path = join(place, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

/**
 * Makes the programs that a page calls, and returns the variables of its shell. `floe` is this checkout with a home and a port of its own.
 * Packages are installed by uv, whose cache shares files between pages. Everything else is as on the page.
 */
async function environment(folder: string): Promise<NodeJS.ProcessEnv> {
  const [bin, constraints, port] = [join(folder, 'bin'), join(folder, 'constraints.txt'), await freePort()];
  const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
  const [python, uv] = [findPython(12, 12), uvProgram()];
  const programs = {
    floe: `[ "$1" = up ] && set -- "$@" --port ${port} --log-level warn\nexec '${process.execPath}' '${main}' "$@"`,
    pip: `exec '${uv}' pip "$@"`,
    'python3.12': `[ "$1 $2" = "-m venv" ] && exec '${uv}' venv -q -p '${python}' "$3"\nexec '${python}' "$@"`,
    uv: `exec '${uv}' "$@"`,
  };
  mkdirSync(bin);
  writeFileSync(constraints, CONSTRAINTS);
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(join(bin, name), `#!/bin/sh\n${text}\n`);
    chmodSync(join(bin, name), 0o755);
  }
  // A variable that this process has for its own floe or Python must not reach the page.
  const { FLOE_TOKEN: _, PYTHONPATH: __, VIRTUAL_ENV: ___, ...others } = process.env;
  return {
    ...others,
    PATH: `${bin}:${process.env.PATH}`,
    FLOE: repositoryRoot(),
    FLOE_URL: `http://127.0.0.1:${port}`,
    FLOE_HOME: join(folder, 'home'),
    UV_CONSTRAINT: constraints,
    HF_HUB_OFFLINE: '1',
    OMP_NUM_THREADS: '1',
  };
}

/** Returns the last line of each block of commands after which the page quotes one; null when the commands printed none. */
function lastLines(
  blocks: readonly Block[],
  folder: string,
): { readonly line: string | null; readonly quoted: string }[] {
  let commands = 0;
  return blocks.flatMap((block) => {
    if (block.kind === 'commands') commands++;
    if (block.kind !== 'printed') return [];
    return [{ line: linesOf(outputFile(folder, commands - 1)).at(-1) ?? null, quoted: block.line }];
  });
}

/** Returns the end of what the last block of commands that was started has printed. */
function endOfOutput(folder: string, commands: number): string {
  const started = Array.from({ length: commands }, (_, index) => errorFile(folder, index)).filter((file) =>
    existsSync(file),
  );
  return linesOf(started.at(-1) ?? join(folder, 'shell.log'))
    .slice(-QUOTED_LINES)
    .join('\n');
}

function linesOf(file: string): string[] {
  if (!existsSync(file)) return [];
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '');
}
