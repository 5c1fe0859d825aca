import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { waitFor } from '../../src/cli/cluster-wait.ts';
import type { Clock } from '../../src/core/clock.ts';

/** Every wait is over at once, and has taken as long as it was to. */
function hastyClock(onWait: () => void = () => undefined): Clock {
  let now = 0;
  return {
    monotonicMs: () => now,
    nowMs: () => now,
    schedule(ms, run) {
      now += ms;
      onWait();
      const handle = setImmediate(run);
      return () => clearImmediate(handle);
    },
  };
}

describe('floe cluster wait', () => {
  let server: Server;
  let url: string;
  let status = 503;
  const asked: string[] = [];
  beforeEach(async () => {
    status = 503;
    asked.length = 0;
    server = createServer((request, response) => {
      asked.push(request.url ?? '');
      response.writeHead(status).end('{}');
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterEach(() => {
    server.close();
    server.closeAllConnections();
  });

  it('asks again until the answer is good', async () => {
    const clock = hastyClock(() => {
      if (asked.length === 3) status = 200;
    });
    await waitFor(`${url}/health`, { seconds: 60, clock });
    expect(asked).toEqual(['/health', '/health', '/health', '/health']);
  });

  it('gives up after its time, and tells what the last answer was', async () => {
    const late = { code: 'deadline_exceeded', message: expect.stringContaining('answered 503') };
    await expect(waitFor(url, { seconds: 5, clock: hastyClock() })).rejects.toMatchObject(late);
    expect(asked).toHaveLength(6);
  });

  it('gives up when the process that it waits for is gone', async () => {
    // No pid is this large.
    const options = { seconds: 60, pid: 2 ** 30, clock: hastyClock() };
    await expect(waitFor(url, options)).rejects.toMatchObject({ code: 'setup_failed' });
    expect(asked).toHaveLength(1);
  });

  it('is content with one ready server of a folder that fills up meanwhile', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-wait-'));
    try {
      await writeFile(join(dir, '1'), 'http://127.0.0.1:9');
      status = 200;
      const clock = hastyClock();
      const target = pathToFileURL(dir).href;
      await expect(waitFor(target, { seconds: 2, clock })).rejects.toMatchObject({ code: 'deadline_exceeded' });
      await writeFile(join(dir, '2'), url);
      await waitFor(target, { seconds: 2, clock });
      expect(asked).toEqual(['/ready']);
    } finally {
      await rm(dir, { recursive: true });
    }
  });

  it('refuses what is no URL', async () => {
    await expect(waitFor('here', { seconds: 1, clock: hastyClock() })).rejects.toMatchObject({ code: 'bad_request' });
  });
});
