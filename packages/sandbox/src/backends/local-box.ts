import { spawn } from 'node:child_process';
import { realpath } from 'node:fs/promises';
import { FloeError, MIB, onAbort, systemClock } from '@floe-rl/core';
import type { RuntimeTools } from '../api/tools.ts';
import { BoxToolClient } from '../box/tool-client.ts';
import { BOX_NODE_FLAGS, boxServerArgument, startToolServer } from '../box/tool-server.ts';
import { programPath } from '../programs.ts';
import type { SpawnResult } from '../spawn/spawner.ts';

/** Maximum number of bytes that are kept of the output of one piece of code. */
const MAX_OUTPUT_BYTES = MIB;
/** Maximum number of bytes of the box server's error output that are kept. */
const MAX_ERROR_BYTES = 64 * 1024;

/** Tools on this machine, with the directory in which they act. */
export type LocalBox = RuntimeTools & { readonly workdir: string };

/**
 * Opens tools that act on this machine as its user, without any isolation. Commands start in the directory `dir`, which must exist. Rejects
 * with `bad_request` when it does not, with `runtime_failed`, or with the reason of `signal`.
 */
export async function openLocalBox(dir: string, signal: AbortSignal): Promise<LocalBox> {
  const workdir = await realpath(dir).catch((cause) => {
    throw new FloeError('bad_request', `there is no directory ${dir}`, { path: dir }, cause);
  });
  const { connection, end, explainEnd } = await startToolServer(
    (socketPath, killed) => runServer(socketPath, workdir, killed),
    { clock: systemClock, maxOutputBytes: MAX_OUTPUT_BYTES },
    signal,
  );
  const env = Object.fromEntries(
    Object.entries(process.env).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );
  const common = { connection, clock: systemClock, workdir, env, maxOutputBytes: MAX_OUTPUT_BYTES };
  const tools = new BoxToolClient({ ...common, prefix: [], onActivity: undefined, end, explainEnd, release: end });
  return Object.assign(tools, { workdir });
}

/** Runs a box server until it ends. Kills its process group when the signal aborts. */
function runServer(socketPath: string, workdir: string, signal: AbortSignal): Promise<SpawnResult> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, localBoxArgs(socketPath, workdir), {
      cwd: workdir,
      detached: true,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const errors: Buffer[] = [];
    let bytes = 0;
    child.stderr.on('data', (chunk: Buffer) => {
      if (bytes < MAX_ERROR_BYTES) errors.push(chunk);
      bytes += chunk.length;
    });
    const release = onAbort(signal, () => killGroup(child.pid));
    child.once('error', (cause) => {
      release();
      reject(new FloeError('runtime_failed', `the tools could not be started: ${cause.message}`, {}, cause));
    });
    child.once('close', (exitCode, ended) => {
      release();
      const none = Buffer.alloc(0);
      resolve({ exitCode, signal: ended, stdout: none, stderr: Buffer.concat(errors), droppedBytes: 0 });
    });
  });
}

/**
 * Returns the arguments of Node for a box server on this machine that acts below `root` alone. It does not end the processes of other programs,
 * which share its namespaces.
 */
export function localBoxArgs(socketPath: string, root: string): string[] {
  return [...BOX_NODE_FLAGS, programPath('box-server'), boxServerArgument({ socketPath, toolRoot: root })];
}

function killGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // The process has ended.
  }
}
