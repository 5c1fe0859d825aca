// Starts a server on loopback and stops it with everything that it started.
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

/** vLLM compiles and profiles for a minute on two cores. */
const START_TIMEOUT_MS = 300_000;
const POLL_MS = 300;
/** A server that does not end by itself is killed. */
const STOP_TIMEOUT_MS = 10_000;

/** @returns {Promise<number>} a port that was free a moment ago */
export function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

/** Resolves with the server's URL when it answers /health. Rejects with the end of its log when it ends before. */
export async function startServer({ command, args, env = {}, port, log }) {
  const output = openSync(log, 'w');
  // A group of its own: servers start workers, which must end with them.
  const child = spawn(command, args, {
    env: { ...process.env, ...env },
    stdio: ['ignore', output, output],
    detached: true,
  });
  closeSync(output);
  const ended = new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(`ended with ${code ?? signal}`));
  });
  let end = null;
  ended.then((reason) => {
    end = reason;
  });
  const stop = async () => {
    const signal = (name) => {
      try {
        process.kill(-child.pid, name);
      } catch {
        // It has ended already.
      }
    };
    signal('SIGTERM');
    await Promise.race([ended, delay(STOP_TIMEOUT_MS)]);
    // Also what a server that has ended left behind.
    signal('SIGKILL');
  };
  const url = `http://127.0.0.1:${port}`;
  for (const deadline = Date.now() + START_TIMEOUT_MS; Date.now() < deadline; await delay(POLL_MS)) {
    if (end !== null) break;
    const healthy = await fetch(`${url}/health`).then(
      (response) => response.ok,
      () => false,
    );
    if (healthy) return { url, stop };
  }
  await stop();
  const lines = readFileSync(log, 'utf8').trimEnd().split('\n').slice(-15).join('\n');
  throw new Error(`the server ${end ?? 'did not answer in time'}; the end of ${log}:\n${lines}`);
}
