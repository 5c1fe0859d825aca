import { randomBytes } from 'node:crypto';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { repositoryRoot } from '../../tools/repository.ts';
import { Child } from './child.ts';

/** The compiled program `floe` of this checkout, which Node runs. */
export const FLOE = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
/** The sources of floe's Python package. */
export const PYTHON_PACKAGE = join(repositoryRoot(), 'python', 'src');

/** A floe that was started as a user starts it: server and node in a process of their own. */
export type RunningFloe = {
  readonly url: string;
  readonly token: string;
  /** URLs of its engines. */
  readonly engines: readonly string[];
  readonly client: FloeClient;
  /** Environment variables that programs need to reach this floe. */
  readonly env: Readonly<Record<string, string>>;
  stop(): Promise<void>;
};

/** Starts `floe up` with further options, such as its engine. Its home is `dir`. Rejects with its errors when it does not start. */
export async function startFloe(dir: string, options: readonly string[]): Promise<RunningFloe> {
  mkdirSync(dir, { recursive: true });
  const token = randomBytes(16).toString('hex');
  const own = ['--json', '--port', '0', '--dir', join(dir, 'data'), '--log-level', 'warn'];
  const child = new Child([process.execPath, FLOE, 'up', ...own, ...options], {
    env: { FLOE_HOME: dir, FLOE_TOKEN: token },
  });
  if (!(await child.becameReady())) throw new Error(`floe up ended: ${child.errors}`);
  const { server: url, engines } = JSON.parse(child.readyLine) as { server: string; engines: string[] };
  const client = new FloeClient({ url, token });
  return {
    ...{ url, token, engines, client },
    env: { FLOE_URL: url, FLOE_TOKEN: token, FLOE_HOME: dir },
    async stop() {
      await client.close();
      await child.stop();
    },
  };
}

/** Runs a command of floe to its end. Resolves to its exit status and its standard output. */
export async function runFloe(
  words: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<{ readonly code: number | null; readonly text: string; readonly errors: string }> {
  const child = new Child([process.execPath, FLOE, ...words], { env });
  const lines: string[] = [];
  for await (const line of child.lines) lines.push(line);
  const { code } = await child.exited;
  return { code, text: lines.join('\n'), errors: child.errors };
}

/** Makes a folder of shell scripts with the given names, for a `PATH`. Scripts for `sh` need no first line. */
export function writePrograms(dir: string, programs: Readonly<Record<string, string>>): void {
  mkdirSync(dir, { recursive: true });
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(join(dir, name), text.startsWith('#!') ? text : `#!/bin/sh\n${text}\n`);
    chmodSync(join(dir, name), 0o755);
  }
}
