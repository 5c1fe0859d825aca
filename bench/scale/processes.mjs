// Starts the server and the nodes that a measurement needs, and ends them with it.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeClient } from '../../dist/client/index.js';

const here = dirname(fileURLToPath(import.meta.url));

async function startProcess(file, options, execArgv = []) {
  const child = fork(join(here, file), [JSON.stringify(options)], { execArgv: [...process.execArgv, ...execArgv] });
  const ended = once(child, 'exit');
  let startedMs = 0;
  child.once('message', () => {
    startedMs = performance.now();
  });
  const first = await Promise.race([
    once(child, 'message'),
    ended.then(([code]) => [new Error(`${file} ended: ${code}`)]),
  ]);
  if (first[0] instanceof Error) throw first[0];
  return {
    started: first[0],
    startedMs,
    async usage() {
      const reply = once(child, 'message');
      child.send('usage');
      return (await reply)[0];
    },
    async close() {
      if (child.exitCode === null) child.send('close');
      await ended;
    },
  };
}

/** When a process said that it had started, by `performance.now()`. */
export const startedAt = (running) => running.startedMs;

/**
 * Runs `measure` with a server of its own and ways to start nodes. `database` null: SQLite in a new directory. Everything is ended
 * and removed afterwards, whatever happens.
 */
export async function withServer({ database = null, config = {} }, measure) {
  const dir = await mkdtemp(join(tmpdir(), 'floe-scale-'));
  const running = [];
  try {
    const server = await startProcess('server-process.mjs', { dir, config, database }, ['--expose-gc']);
    running.push(server);
    const { url } = server.started;
    const client = new FloeClient({ url });
    running.push({ close: () => client.close() });
    const startNode = async (options) => {
      const node = await startProcess('node-process.mjs', { url, ...options });
      running.push(node);
      return node;
    };
    return await measure({ client, server, startNode });
  } finally {
    for (const one of running.reverse()) await one.close();
    await rm(dir, { recursive: true, force: true });
  }
}

/** `count` calls of `work`, `width` at a time. */
export async function parallel(count, width, work) {
  let next = 0;
  const lane = async () => {
    for (let i = next++; i < count; i = next++) await work(i);
  };
  await Promise.all(Array.from({ length: Math.min(width, count) }, lane));
}
