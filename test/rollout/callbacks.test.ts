import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkCallbackUrl, checkedLookup } from '../../src/rollout/callback-address.ts';
import { rolloutConfigSchema } from '../../src/rollout/config.ts';
import type { TaskResult } from '../../src/schema/index.ts';
import { type Running, summaryOf, TRAJECTORY, task, Workbench } from './harness.ts';

type Received = { headers: IncomingHttpHeaders; body: string };

/** A trainer's end: answers with the given statuses in turn, `hang up` among them, then with 200. */
class Trainer {
  readonly received: Received[] = [];
  readonly url: string;
  private readonly server: Server;
  private arrived: () => void = () => {};

  private constructor(server: Server) {
    this.server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/done`;
  }

  static async start(answers: (number | 'hang up')[]): Promise<Trainer> {
    const server = createServer(async (request, response) => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      trainer.received.push({ headers: request.headers, body: Buffer.concat(chunks).toString() });
      const answer = answers.shift() ?? 200;
      if (answer === 'hang up') request.socket.destroy();
      else response.writeHead(answer, answer === 302 ? { location: '/elsewhere' } : {}).end('thanks');
      trainer.arrived();
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const trainer = new Trainer(server);
    return trainer;
  }

  async until(count: number): Promise<void> {
    while (this.received.length < count) {
      await new Promise<void>((resolve) => {
        this.arrived = resolve;
      });
    }
  }

  async stop(): Promise<void> {
    this.server.close();
    this.server.closeAllConnections();
    await once(this.server, 'close');
  }
}

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

const FAST = { callback_backoff_seconds: 0.01, callback_backoff_max_seconds: 0.05 };

async function finishTask(running: Running, callbackUrl: string): Promise<string> {
  const client = await running.client();
  const node = await running.node();
  const { task_id } = await client.submit(task({ num_samples: 2, callback_url: callbackUrl }));
  for (const lease of await node.lease({ slots: 2, wait_seconds: 5 })) {
    await node.deliverResult({ summary: summaryOf(lease), trajectory: TRAJECTORY, completions: null, artifacts: null });
  }
  return task_id;
}

async function untilDelivered(running: Running): Promise<void> {
  const client = await running.client();
  while ((await client.status()).undelivered_callbacks > 0) await new Promise(setImmediate);
}

test('a task result is posted until the trainer takes it, always under one key', async () => {
  const trainer = await Trainer.start([500, 'hang up', 302, 404, 429, 204]);
  const running = await bench.server(FAST);
  const taskId = await finishTask(running, trainer.url);
  await trainer.until(6);
  await untilDelivered(running);
  expect(trainer.received).toHaveLength(6);
  expect(new Set(trainer.received.map((request) => request.headers['idempotency-key']))).toEqual(
    new Set([`floe-task-${taskId}`]),
  );
  expect(new Set(trainer.received.map((request) => request.body)).size).toBe(1);
  const body = trainer.received[0]?.body ?? '';
  expect(Number(trainer.received[0]?.headers['content-length'])).toBe(Buffer.byteLength(body));
  const result = JSON.parse(body) as TaskResult;
  expect(result).toMatchObject({ task_id: taskId, status: 'completed', results: [{ cursor: 1 }, { cursor: 2 }] });
  expect(body.split(TRAJECTORY.toString())).toHaveLength(3);
  expect(result.result_paths).toEqual(result.results.map((one) => `/sessions/${one.session_id}/trajectory`));
  await trainer.stop();
});

test('a cancelled task is reported too', async () => {
  const trainer = await Trainer.start([]);
  const running = await bench.server(FAST);
  const client = await running.client();
  const { task_id } = await client.submit(task({ num_samples: 3, callback_url: trainer.url }));
  await client.cancel(task_id);
  await trainer.until(1);
  expect(JSON.parse(trainer.received[0]?.body ?? '')).toMatchObject({ status: 'cancelled' });
  await trainer.stop();
});

test('what was not delivered is delivered by the next server', async () => {
  const down = await Trainer.start([]);
  const url = new URL(down.url);
  await down.stop();
  const first = await bench.server(FAST);
  const taskId = await finishTask(first, down.url);
  expect((await (await first.client()).status()).undelivered_callbacks).toBe(1);
  await first.close();
  const received: string[] = [];
  const server = createServer((request, response) => {
    received.push(String(request.headers['idempotency-key']));
    request.resume().on('end', () => response.end());
  }).listen(Number(url.port), '127.0.0.1');
  await once(server, 'listening');
  const second = await bench.server(FAST);
  await second.listen();
  await untilDelivered(second);
  expect(received).toEqual([`floe-task-${taskId}`]);
  server.close();
  server.closeAllConnections();
});

test('a trainer that never answers is left and tried again', async () => {
  let asked = 0;
  const server = createServer((request, response) => {
    request.resume();
    if (++asked > 1) response.end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const running = await bench.server({ ...FAST, callback_timeout_seconds: 0.1 });
  await finishTask(running, `http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  await untilDelivered(running);
  expect(asked).toBe(2);
  server.close();
  server.closeAllConnections();
});

describe('where callbacks may go', () => {
  const local = rolloutConfigSchema.parse({});
  const open = rolloutConfigSchema.parse({ host: '0.0.0.0', token: 't' });
  const listed = rolloutConfigSchema.parse({ callback_hosts: ['trainer.example'] });

  test.each([
    [local, 'http://127.0.0.1:9/x'],
    [local, 'http://localhost/x'],
    [local, 'http://[::1]/x'],
    [local, 'http://2130706433/'],
    [open, 'https://trainer.example/x'],
    [open, 'http://10.0.0.1/'],
    [listed, 'https://trainer.example/x'],
  ])('allowed: %o %s', (config, url) => {
    expect(() => checkCallbackUrl(config, url)).not.toThrow();
  });

  test.each([
    [local, 'http://10.0.0.1/'],
    [local, 'http://trainer.example/'],
    [local, 'http://localhost.example/'],
    [local, 'http://[::ffff:10.0.0.1]/'],
    [local, 'ftp://127.0.0.1/'],
    [open, 'http://169.254.169.254/latest/meta-data'],
    [open, 'http://[fe80::1]/'],
    [open, 'http://0.0.0.0/'],
    [open, 'http://[::ffff:169.254.169.254]/'],
    [open, 'http://user:secret@trainer.example/'],
    [listed, 'http://127.0.0.1/'],
  ])('refused: %o %s', (config, url) => {
    expect(() => checkCallbackUrl(config, url)).toThrow(expect.objectContaining({ code: 'schema_violation' }));
  });

  test('a name is checked by what it resolves to, and only checked addresses are connected to', async () => {
    const resolve = (config: typeof local, name: string) =>
      new Promise((done) =>
        checkedLookup(config)(name, { all: true }, (error, found) => done(error?.message ?? found)),
      );
    expect(await resolve(local, 'localhost')).toEqual(
      expect.arrayContaining([expect.objectContaining({ address: expect.stringMatching(/^(127\.0\.0\.1|::1)$/) })]),
    );
    expect(await resolve(local, '10.0.0.1')).toMatch(/not loopback/);
    expect(await resolve(open, '169.254.169.254')).toMatch(/link-local/);
  });
});
