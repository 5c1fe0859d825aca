import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { INSTALLATION_MARK, runTool } from '@floe-rl/core';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { removeAbandoned, TEMP_PREFIX } from '../../../src/harnesses/install/abandoned.ts';

let dir: string;
let pipe: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-tool-'));
  pipe = join(dir, 'pipe');
  execFileSync('mkfifo', [pipe]);
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Command that starts a process of its own, writes both ids into the pipe, and waits. */
const BUSY = ['sh', '-c', 'sleep 600 & echo $$ $! >"$0"; wait'];

/** Reads the ids of the processes of a {@link BUSY} command as soon as they run. */
async function processesOf(): Promise<number[]> {
  return (await readFile(pipe, 'utf8')).trim().split(' ').map(Number);
}

function isAlive(pid: number): boolean {
  try {
    // A zombie has ended. The first process of a container may never collect it.
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

it('an aborted tool is ended with all processes that it started before the promise rejects', async () => {
  const stop = new AbortController();
  const running = runTool([...BUSY, pipe], { cwd: dir, env: process.env, signal: stop.signal });
  const processes = await processesOf();
  expect(processes.filter(isAlive)).toHaveLength(2);
  const reason = new Error('interrupted');
  stop.abort(reason);
  await expect(running).rejects.toBe(reason);
  await expect.poll(() => processes.filter(isAlive)).toEqual([]);
});

it('a tool that a killed installing process left is ended, and its directory is removed', async () => {
  const ended = spawn('true');
  await once(ended, 'exit');
  const parent = join(dir, 'parent');
  const abandoned = join(parent, `${TEMP_PREFIX}${ended.pid}-abc`);
  const live = join(parent, `${TEMP_PREFIX}${process.pid}-abc`);
  for (const path of [abandoned, live]) mkdirSync(path, { recursive: true });
  const [program = '', ...args] = BUSY;
  const env = { ...process.env, [INSTALLATION_MARK]: abandoned };
  const tool = spawn(program, [...args, pipe], { cwd: abandoned, env, stdio: 'ignore' });
  const toolEnded = once(tool, 'exit');
  const processes = await processesOf();
  await removeAbandoned(parent);
  expect((await toolEnded)[1]).toBe('SIGKILL');
  await expect.poll(() => processes.filter(isAlive)).toEqual([]);
  expect(readdirSync(parent)).toEqual([`${TEMP_PREFIX}${process.pid}-abc`]);
});
