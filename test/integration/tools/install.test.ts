import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { freshClone } from '../../../packages/floe/test/commands/machine.ts';

/**
 * A script that takes the place of npm in PATH. It starts a process of its own as npm does for scripts, and writes the ids of both processes
 * into the file `npm.pids`. Then it "installs" a compiler that makes a program which prints "started", and a bundler that makes nothing. While
 * the file `hold` exists, it waits before it ends. Like npm, it fails when another npm is writing to node_modules.
 */
const NPM = `#!/bin/sh
[ -e node_modules/.writing ] && { echo "npm error ENOTEMPTY"; exit 1; }
rm -rf node_modules
mkdir -p node_modules/typescript/bin
touch node_modules/.writing
sleep 600 & slept=$!
echo "$$ $slept" >>npm.pids
echo "npm runs"
while [ -e hold ]; do sleep 0.05; done
kill $slept
rm node_modules/.writing
cat >node_modules/typescript/bin/tsc <<'TSC'
const { mkdirSync, writeFileSync } = require('node:fs');
mkdirSync('packages/floe/dist/commands', { recursive: true });
writeFileSync('packages/floe/dist/commands/main.js', 'console.log("started")');
TSC
mkdir -p node_modules/rolldown
echo '{"type":"module","exports":"./index.js"}' >node_modules/rolldown/package.json
echo 'export const build = async () => {};' >node_modules/rolldown/index.js
mkdir -p node_modules/vite/bin
: >node_modules/vite/bin/vite.js
`;

let dir: string;
let clone: string;
const children: ChildProcess[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-clone-'));
  clone = freshClone(join(dir, 'clone'));
  mkdirSync(join(dir, 'bin'));
  writeFileSync(join(dir, 'bin', 'npm'), NPM, { mode: 0o755 });
});
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  for (const pid of npmProcesses()) process.kill(pid, 'SIGKILL');
  rmSync(dir, { recursive: true, force: true });
});

type Start = {
  readonly child: ChildProcess;
  /** Resolves when the process has ended and its output was read whole, which takes as long as a child of it holds its output open. */
  readonly ended: Promise<readonly [code: number | null, output: string]>;
  /** Resolves when the output contains the text. */
  until(part: string): Promise<void>;
};

function start(): Start {
  const env = { PATH: `${join(dir, 'bin')}:${process.env.PATH}`, HOME: dir };
  const child = spawn(process.execPath, [join(clone, 'tools', 'run.js'), 'start'], {
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  children.push(child);
  let output = '';
  let wake = (): void => {};
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
      wake();
    });
  }
  return {
    child,
    ended: once(child, 'close').then(([code]) => [code, output] as const),
    async until(part) {
      while (!output.includes(part)) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
  };
}

/** Returns the ids of the live processes that the npm of a test has started, and of npm itself. */
function npmProcesses(): number[] {
  const path = join(clone, 'npm.pids');
  if (!existsSync(path)) return [];
  return readFileSync(path, 'utf8').trim().split(/\s+/).map(Number).filter(isAlive);
}

function isAlive(pid: number): boolean {
  try {
    // A zombie has ended. Its parent was killed, and the first process of a container may never collect it.
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

const hold = (): void => writeFileSync(join(clone, 'hold'), '');
const finish = (): void => rmSync(join(clone, 'hold'));

describe('npm start in a fresh clone', () => {
  it('installs the packages, compiles and runs the demo', async () => {
    const [code, output] = await start().ended;
    expect(output).toContain('started');
    expect(code).toBe(0);
    expect(readdirSync(join(clone, '.floe'))).toEqual([]);
  });

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('ends npm before it ends itself at %s, and the next start works', async (signal, code) => {
    hold();
    const interrupted = start();
    await interrupted.until('npm runs');
    interrupted.child.kill(signal);
    const [exitCode, output] = await interrupted.ended;
    expect(npmProcesses()).toEqual([]);
    expect(output).toContain('Run the command again to continue.');
    expect(exitCode).toBe(code);
    expect(readdirSync(join(clone, '.floe'))).toEqual([]);

    finish();
    rmSync(join(clone, 'node_modules', '.writing'), { force: true });
    expect((await start().ended)[1]).toContain('started');
  });

  it('ends the npm of a start that was killed before it installs again', async () => {
    hold();
    const killed = start();
    await killed.until('npm runs');
    const exited = once(killed.child, 'exit');
    killed.child.kill('SIGKILL');
    await exited;
    const left = npmProcesses();
    expect(left).not.toEqual([]);

    rmSync(join(clone, 'node_modules', '.writing'));
    const next = start();
    await next.until('npm runs');
    expect(left.filter(isAlive)).toEqual([]);
    finish();
    expect((await next.ended)[1]).toContain('started');
  });

  it('waits for another start that installs, and does not install twice', async () => {
    hold();
    const first = start();
    await first.until('npm runs');
    const second = start();
    await second.until(`waiting for process ${first.child.pid}`);
    finish();
    for (const { ended } of [first, second]) expect((await ended)[1]).toContain('started');
    expect(readFileSync(join(clone, 'npm.pids'), 'utf8').trim().split('\n')).toHaveLength(1);
  });

  it('reports that npm failed, and the free space of the disk', async () => {
    writeFileSync(join(dir, 'bin', 'npm'), '#!/bin/sh\nexit 1\n', { mode: 0o755 });
    const [code, output] = await start().ended;
    expect(output).toMatch(/^error setup_failed: npm could not install the packages.*the disk of .* has \d+ MB free$/m);
    expect(code).toBe(1);
  });
});
