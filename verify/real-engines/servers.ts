// Starts an inference server on loopback, and stops it together with the processes that it started.
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { sleep, systemClock } from '@floe-rl/core';

/** Maximum time in milliseconds until a started server answers. On two cores, vLLM compiles and profiles for a minute. */
const START_TIMEOUT_MS = 300_000;
const POLL_INTERVAL_MS = 300;
/** Time in milliseconds after SIGTERM at which a server that is still running gets SIGKILL. */
const STOP_TIMEOUT_MS = 10_000;
/** Maximum number of lines from the end of the log that the error message quotes when a server does not start. */
const QUOTED_LINES = 15;

/** The command that starts a server, with its arguments and additional environment variables. */
export type ServerCommand = {
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Path that the server answers with status 200 when it is ready; `/health` when absent. */
  readonly healthPath?: string;
};

export type RunningServer = { readonly url: string; stop(): Promise<void> };

/**
 * Starts a server and waits until it answers its health path. Rejects with the end of its log when the server ends before that or does not answer
 * within `START_TIMEOUT_MS`.
 */
export async function startServer(
  { command, args, env = {}, healthPath = '/health' }: ServerCommand,
  { port, log }: { readonly port: number; readonly log: string },
): Promise<RunningServer> {
  const output = openSync(log, 'w');
  // The server runs in a separate process group, so that the workers that it starts can be ended together with it.
  const child = spawn(command, args, {
    env: { ...process.env, ...env },
    stdio: ['ignore', output, output],
    detached: true,
  });
  closeSync(output);
  let ending: string | null = null;
  const ended = new Promise<void>((resolve) => {
    const end = (reason: string): void => {
      ending = reason;
      resolve();
    };
    child.once('error', (error) => end(error.message));
    child.once('exit', (code, signal) => end(`ended with ${code ?? signal}`));
  });
  const stop = async (): Promise<void> => {
    if (child.pid === undefined) return;
    signalGroup(child.pid, 'SIGTERM');
    await Promise.race([ended, sleep(systemClock, STOP_TIMEOUT_MS)]);
    // Kills the whole process group, because workers may still run after the server itself has ended.
    signalGroup(child.pid, 'SIGKILL');
  };
  const url = `http://127.0.0.1:${port}`;
  const deadlineMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
  while (ending === null && systemClock.monotonicMs() < deadlineMs) {
    if (await isHealthy(url + healthPath)) return { url, stop };
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
  await stop();
  const lines = readFileSync(log, 'utf8').trimEnd().split('\n').slice(-QUOTED_LINES).join('\n');
  throw new Error(`the server ${ending ?? 'did not answer in time'}; the end of ${log}:\n${lines}`);
}

async function isHealthy(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {
    // Sending the signal fails when all processes of the group have already ended, and then there is nothing to do.
  }
}
