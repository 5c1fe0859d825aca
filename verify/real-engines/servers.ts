// Starts an inference server on loopback, and stops it together with the processes that it started.
import { rmSync } from 'node:fs';
import { Child } from '../runner/child.ts';

/** Maximum time in milliseconds until a started server answers. On two cores, vLLM compiles and profiles for a minute. */
const START_TIMEOUT_MS = 300_000;

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
  rmSync(log, { force: true });
  const child = new Child([command, ...args], { env, log, isGroup: true });
  const url = `http://127.0.0.1:${port}`;
  await child.answers(url + healthPath, START_TIMEOUT_MS);
  return { url, stop: () => child.stop() };
}
