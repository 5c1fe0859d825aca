import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { repositoryRoot } from '../../tools/repository.ts';
import { freePort } from '../services/ports.ts';
import { differenceOf } from '../trainer-pages/page.ts';

/** Maximum time in milliseconds that a block of commands takes. */
const TIMEOUT_MS = 600_000;
/** Maximum time in milliseconds until a server responds. */
const START_TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 200;
/** Maximum number of characters from the end of a failed command's output that are quoted. */
const QUOTED_CHARACTERS = 1_500;

/** A block of commands of a page. `printed` is the line that it prints last; `notRun` is why it is not run. Both are null where there is none. */
export type Block = { readonly commands: string; readonly printed: string | null; readonly notRun: string | null };

/**
 * Returns the blocks of shell commands of a page. A `text` block after one is what its commands print last. A comment `<!-- not run: REASON -->`
 * before one means that it cannot run here.
 */
export function blocksOf(markdown: string): Block[] {
  const pattern = /^(?:<!-- not run: (.*?) -->\n)?```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?/gms;
  return [...markdown.matchAll(pattern)].map(([, notRun = null, commands = '', printed = null]) => ({
    commands,
    notRun,
    printed: printed?.trim().split('\n').at(-1) ?? null,
  }));
}

/**
 * Runs the blocks of a page in the folder `place`, with a program `floe` of this checkout, and with a program `node` that runs compiled files
 * instead of those in TypeScript, which Node 20 cannot run. `files` is an empty folder for all else.
 */
export class PageRun {
  private readonly place: string;
  private readonly port: number;
  private readonly env: NodeJS.ProcessEnv;
  private readonly servers: ChildProcess[] = [];

  private constructor(place: string, files: string, port: number) {
    this.place = place;
    this.port = port;
    const bin = join(files, 'bin');
    mkdirSync(bin);
    const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
    const compiled = join(repositoryRoot(), '.build');
    const programs = {
      floe: `[ "$1" = up ] && set -- "$@" --port ${port} --log-level warn\nexec '${process.execPath}' '${main}' "$@"`,
      node: `case "$1" in *.ts) file="${compiled}/\${1%.ts}.js"; shift; set -- "$file" "$@";; esac\nexec '${process.execPath}' "$@"`,
    };
    for (const [name, text] of Object.entries(programs)) {
      writeFileSync(join(bin, name), `#!/bin/sh\n${text}\n`);
      chmodSync(join(bin, name), 0o755);
    }
    const { FLOE_TOKEN: _, PYTHONPATH: __, npm_config_ignore_scripts: ___, ...others } = process.env;
    this.env = {
      ...others,
      PATH: `${bin}:${process.env.PATH}`,
      FLOE: repositoryRoot(),
      FLOE_HOME: join(files, 'home'),
      FLOE_URL: `http://127.0.0.1:${port}`,
      NO_COLOR: '1',
    };
  }

  static async in(place: string, files: string): Promise<PageRun> {
    return new PageRun(place, files, await freePort());
  }

  /** Runs the blocks in their order. Rejects with an Error when one fails or prints another last line than the page quotes. */
  async run(blocks: readonly Block[]): Promise<void> {
    for (const { commands, printed } of blocks) {
      if (commands.startsWith('floe up')) await this.startServer(commands);
      else this.runCommands(commands, printed);
    }
  }

  /** Ends the servers that the blocks have started. */
  async close(): Promise<void> {
    for (const server of this.servers) {
      if (server.exitCode !== null) continue;
      const ended = once(server, 'exit');
      server.kill('SIGTERM');
      await ended;
    }
  }

  private runCommands(commands: string, printed: string | null): void {
    const { place: cwd, env } = this;
    const args = ['-euo', 'pipefail', '-c', commands];
    const { status, stdout, stderr, error } = spawnSync('bash', args, {
      cwd,
      env,
      encoding: 'utf8',
      timeout: TIMEOUT_MS,
    });
    if (status !== 0) {
      const output = `${stdout ?? ''}${stderr ?? ''}`.trim().slice(-QUOTED_CHARACTERS);
      throw new Error(`${commands.trim()}: ${error?.message ?? `exit ${status}`}: ${output}`);
    }
    if (printed === null) return;
    const difference = differenceOf(stdout.trim().split('\n').at(-1) ?? '', printed);
    if (difference !== null) throw new Error(`${commands.trim()}: ${difference}`);
  }

  private async startServer(command: string): Promise<void> {
    const stdio = ['ignore', 'ignore', 'inherit'] as const;
    const server = spawn('bash', ['-c', `exec ${command}`], { cwd: this.place, env: this.env, stdio: [...stdio] });
    this.servers.push(server);
    const giveUpMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
    while (!(await isHealthy(`http://127.0.0.1:${this.port}`))) {
      if (server.exitCode !== null) throw new Error(`${command.trim()}: exit ${server.exitCode}`);
      if (systemClock.monotonicMs() > giveUpMs) throw new Error(`${command.trim()}: it does not respond`);
      await sleep(systemClock, POLL_INTERVAL_MS);
    }
  }
}

/** Whether a server responds and has a node. */
async function isHealthy(url: string): Promise<boolean> {
  try {
    return (await fetch(`${url}/health`)).ok;
  } catch {
    return false;
  }
}
