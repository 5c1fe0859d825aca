import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { startServer, treeCpuUs } from '../../../../bench/peers/processes.ts';
import { freePort } from '../../../../verify/services/ports.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'floe-peers-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

const SERVER = `
  const { spawnSync } = require('node:child_process');
  spawnSync(process.execPath, ['-e', 'const end = process.cpuUsage().user + 200_000; while (process.cpuUsage().user < end);']);
  require('node:http').createServer((_, response) => response.end()).listen(Number(process.argv[1]), '127.0.0.1');
`;

it('treeCpuUs counts the CPU time of a server and of a process that it ran, and close ends the server', async () => {
  const readyUrl = `http://127.0.0.1:${await freePort()}`;
  const server = await startServer({
    program: process.execPath,
    args: ['-e', SERVER, new URL(readyUrl).port],
    env: {},
    log: join(directory, 'log'),
    readyUrl,
  });
  expect(treeCpuUs(server.pid)).toBeGreaterThanOrEqual(200_000);
  await server.close();
  await expect(fetch(readyUrl)).rejects.toThrow();
});

it('startServer quotes the output of a server that ends before it answers', async () => {
  const start = startServer({
    program: process.execPath,
    args: ['-e', 'console.error("no key is set"); process.exit(3)'],
    env: {},
    log: join(directory, 'log'),
    readyUrl: `http://127.0.0.1:${await freePort()}`,
  });
  await expect(start).rejects.toThrow(/ended with 3: no key is set/);
});
