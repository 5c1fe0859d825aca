import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Clock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { waitFor } from '../../src/commands/cluster-wait.ts';

/**
 * Returns a clock that skips waiting time: each timer fires immediately, and the clock advances by the timer's whole duration. It calls
 * `onWait` when a timer is set.
 */
function skippingClock(onWait: () => void = () => undefined): Clock {
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
  const requests: string[] = [];
  beforeEach(async () => {
    status = 503;
    requests.length = 0;
    server = createServer((request, response) => {
      requests.push(request.url ?? '');
      response.writeHead(status).end('{}');
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterEach(() => {
    server.close();
    server.closeAllConnections();
  });

  it('repeats the request until it succeeds', async () => {
    const clock = skippingClock(() => {
      if (requests.length === 3) status = 200;
    });
    await waitFor(`${url}/health`, { seconds: 60, clock });
    expect(requests).toEqual(['/health', '/health', '/health', '/health']);
  });

  it('fails after its time limit with the last reply in the message', async () => {
    const late = { code: 'deadline_exceeded', message: expect.stringContaining('answered 503') };
    await expect(waitFor(url, { seconds: 5, clock: skippingClock() })).rejects.toMatchObject(late);
    expect(requests).toHaveLength(6);
  });

  it('fails when the process that it waits for has ended', async () => {
    // No process can have this pid, because it is larger than the largest pid of Linux.
    const options = { seconds: 60, pid: 2 ** 30, clock: skippingClock() };
    await expect(waitFor(url, options)).rejects.toMatchObject({ code: 'setup_failed' });
    expect(requests).toHaveLength(1);
  });

  it('succeeds with one ready server of a folder to which files are added', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-wait-'));
    try {
      await writeFile(join(dir, '1'), 'http://127.0.0.1:9');
      status = 200;
      const clock = skippingClock();
      const target = pathToFileURL(dir).href;
      await expect(waitFor(target, { seconds: 2, clock })).rejects.toMatchObject({ code: 'deadline_exceeded' });
      await writeFile(join(dir, '2'), url);
      await waitFor(target, { seconds: 2, clock });
      expect(requests).toEqual(['/ready']);
    } finally {
      await rm(dir, { recursive: true });
    }
  });

  it('refuses an invalid URL', async () => {
    await expect(waitFor('here', { seconds: 1, clock: skippingClock() })).rejects.toMatchObject({
      code: 'bad_request',
    });
  });
});
