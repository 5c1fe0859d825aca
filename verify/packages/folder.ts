import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { Child } from '../runner/child.ts';

/** Environment variables that npm and Python set for this checkout. They are removed, because users do not have them. */
const OWN_VARIABLES = [
  'npm_config_ignore_scripts',
  'npm_config_local_prefix',
  'NODE_PATH',
  'PYTHONPATH',
  'VIRTUAL_ENV',
];
/** Maximum number of characters from the end of a failed command's output that the error message quotes. */
const QUOTED_CHARACTERS = 2_000;
/** Maximum time in milliseconds that a command takes. */
const TIMEOUT_MS = 300_000;

/** An empty folder as a user has it, with an empty home of floe and an empty npm cache. */
export class UserFolder {
  readonly path: string;
  readonly env: NodeJS.ProcessEnv;

  constructor() {
    const root = mkdtempSync(join(tmpdir(), 'floe-user-'));
    this.path = join(root, 'work');
    mkdirSync(this.path);
    this.env = {
      ...process.env,
      PATH: (process.env.PATH ?? '')
        .split(delimiter)
        .filter((entry) => !entry.includes('node_modules'))
        .join(delimiter),
      FLOE_HOME: join(root, 'floe'),
      npm_config_cache: join(root, 'npm'),
      NO_COLOR: '1',
    };
    for (const name of OWN_VARIABLES) this.env[name] = undefined;
  }

  /** Writes a file and returns its path. */
  write(name: string, text: string): string {
    const path = join(this.path, name);
    writeFileSync(path, text);
    return path;
  }

  /** Runs a command in the folder and returns its standard output. Throws an Error with the end of its output when it fails. */
  run(program: string, ...args: readonly string[]): string {
    const { status, stdout, stderr, error } = spawnSync(program, args, {
      cwd: this.path,
      env: this.env,
      encoding: 'utf8',
      timeout: TIMEOUT_MS,
    });
    if (status === 0) return stdout;
    const output = `${stdout ?? ''}${stderr ?? ''}`.trim().slice(-QUOTED_CHARACTERS);
    throw new Error(`${[program, ...args].join(' ').slice(0, 120)}: ${error?.message ?? `exit ${status}`}: ${output}`);
  }

  /** Starts a server in the folder. Resolves when it has printed a line that begins with `text`; rejects when it ends before. */
  async start(text: string, program: string, ...args: readonly string[]): Promise<Child> {
    const child = new Child([program, ...args], { cwd: this.path, env: this.env });
    await child.printed(text);
    return child;
  }

  remove(): void {
    rmSync(join(this.path, '..'), { recursive: true, force: true });
  }
}
