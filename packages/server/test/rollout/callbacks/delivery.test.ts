import { createHmac } from 'node:crypto';
import type { lookup } from 'node:dns';
import { once } from 'node:events';
import { readdir, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import type { Lease, TaskRequestInput, TaskResult } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { checkedLookup, checkOutboundUrl } from '../../../src/rollout/callbacks/address.ts';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import type { CallbackPost, CallbackTransport } from '../../../src/rollout/index.ts';
import { type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

type Received = { headers: IncomingHttpHeaders; body: string };

/**
 * A trainer that answers callbacks with the given HTTP statuses one after another, and then always with 200. The status `hang up` closes
 * the connection without an answer.
 */
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

async function finishTask(
  running: Running,
  callbackUrl: string,
  fields: Partial<TaskRequestInput> = {},
): Promise<string> {
  const client = await running.client();
  const node = await running.node();
  const { task_id } = await client.submit(task({ num_samples: 2, callback_url: callbackUrl, ...fields }));
  for (const lease of await node.lease({ slots: 2, wait_seconds: 5 })) {
    await node.deliverResult({ summary: summaryOf(lease), trajectory: TRAJECTORY, completions: null, artifacts: null });
  }
  return task_id;
}

async function untilDelivered(running: Running): Promise<void> {
  const client = await running.client();
  while ((await client.status()).undelivered_callbacks > 0) await new Promise(setImmediate);
}

describe('CallbackDelivery', () => {
  it('posts a task result until the trainer acknowledges it, always with the same key', async () => {
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

  it('delivers the other results of a task of which a trajectory is damaged', async () => {
    const trainer = await Trainer.start([]);
    const running = await bench.server({
      ...FAST,
      callback_secrets: [`whsec_${Buffer.alloc(32, 1).toString('base64')}`],
    });
    const client = await running.client();
    const node = await running.node();
    await client.submit(task({ num_samples: 2, callback_url: trainer.url }));
    const [first, second] = await node.lease({ slots: 2, wait_seconds: 5 });
    if (first === undefined || second === undefined) throw new Error('two sessions were queued');
    const deliver = (lease: Lease, trajectory: Buffer) =>
      node.deliverResult({ summary: summaryOf(lease), trajectory, completions: null, artifacts: null });
    await deliver(first, Buffer.from('{"traces":["damaged"]}'));
    const blobs = join(bench.directory, 'blobs');
    for (const name of await readdir(blobs, { recursive: true })) {
      if (name.length > 64) await writeFile(join(blobs, name), 'other bytes');
    }
    await deliver(second, TRAJECTORY);
    await untilDelivered(running);
    const { results } = JSON.parse(trainer.received.at(-1)?.body ?? '') as TaskResult;
    expect(results).toMatchObject([
      { session_id: first.session_id, trajectory: null, error: { code: 'corrupt_record' } },
      { session_id: second.session_id, trajectory: JSON.parse(TRAJECTORY.toString()), error: null },
    ]);
    await trainer.stop();
  });

  it('reports a cancelled task too', async () => {
    const trainer = await Trainer.start([]);
    const running = await bench.server(FAST);
    const client = await running.client();
    const { task_id } = await client.submit(task({ num_samples: 3, callback_url: trainer.url }));
    await client.cancel(task_id);
    await trainer.until(1);
    expect(JSON.parse(trainer.received[0]?.body ?? '')).toMatchObject({ status: 'cancelled' });
    await trainer.stop();
  });

  it('leaves undelivered callbacks to the next server', async () => {
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

  const SECRETS = [
    `whsec_${Buffer.alloc(32, 1).toString('base64')}`,
    `whsec_${Buffer.alloc(24, 2).toString('base64')}`,
  ];

  it('signs a callback with every secret, and each try separately under one id', async () => {
    const trainer = await Trainer.start([503]);
    const running = await bench.server({ ...FAST, callback_secrets: SECRETS });
    await finishTask(running, trainer.url);
    await untilDelivered(running);
    const ids = trainer.received.map((request) => request.headers['webhook-id']);
    expect(new Set(ids).size).toBe(1);
    for (const { headers, body } of trainer.received) {
      const id = String(headers['webhook-id']);
      const stamp = String(headers['webhook-timestamp']);
      expect(id).toMatch(/^msg_[0-9a-f]{32}$/);
      expect(Math.abs(Number(stamp) - Date.now() / 1000)).toBeLessThan(300);
      const expected = SECRETS.map((secret) => {
        const key = Buffer.from(secret.slice('whsec_'.length), 'base64');
        return `v1,${createHmac('sha256', key).update(`${id}.${stamp}.${body}`).digest('base64')}`;
      });
      expect(String(headers['webhook-signature']).split(' ')).toEqual(expected);
    }
    const status = await (await running.client()).status();
    expect(status.limits.callbacks_signed).toBe(true);
    expect(status.counters).toMatchObject({ callbacks_delivered: 1, callbacks_failed: 1 });
    for (const secret of SECRETS) expect(JSON.stringify(status)).not.toContain(secret);
    await trainer.stop();
  });

  it('does not sign callbacks without a secret, and shows that in the status', async () => {
    const trainer = await Trainer.start([]);
    const running = await bench.server(FAST);
    await finishTask(running, trainer.url);
    await untilDelivered(running);
    expect(trainer.received[0]?.headers).not.toHaveProperty('webhook-signature');
    expect((await (await running.client()).status()).limits.callbacks_signed).toBe(false);
    await trainer.stop();
  });

  it.each(['secret', 'whsec_', 'whsec_dG9vIHNob3J0', 'whsec_!!!!'])('the secret %s is refused', (secret) => {
    expect(rolloutConfigSchema.safeParse({ callback_secrets: [secret] }).success).toBe(false);
  });

  it('omits token data from a callback of summaries, and states so', async () => {
    const trainer = await Trainer.start([]);
    const running = await bench.server(FAST);
    await finishTask(running, trainer.url, { callback_results: 'summary' });
    await untilDelivered(running);
    const { body, headers } = trainer.received[0] ?? { body: '', headers: {} };
    expect(Number(headers['content-length'])).toBe(Buffer.byteLength(body));
    const result = JSON.parse(body) as TaskResult;
    expect(result).toMatchObject({
      callback_results: 'summary',
      results: [{ trajectory: null }, { trajectory: null }],
    });
    expect(result.results.map((one) => one.trainable_tokens)).toEqual([3, 3]);
    const path = result.result_paths[0] ?? '';
    expect((await running.server.app.inject(path)).payload).toBe(TRAJECTORY.toString());
    await trainer.stop();
  });

  it('marks the results as collected when a callback is acknowledged, not when it is refused', async () => {
    const trainer = await Trainer.start([500]);
    const running = await bench.server(FAST);
    const uncollected = async () => (await (await running.client()).status()).trainers[0]?.uncollected_results ?? 0;
    await finishTask(running, trainer.url);
    await trainer.until(1);
    expect(await uncollected()).toBe(2);
    await untilDelivered(running);
    expect(await uncollected()).toBe(0);
    await trainer.stop();
  });

  it('ends a callback that is answered with 410, and does not retry it', async () => {
    const trainer = await Trainer.start([500, 410]);
    const running = await bench.server(FAST);
    await finishTask(running, trainer.url);
    await untilDelivered(running);
    expect(trainer.received).toHaveLength(2);
    expect((await (await running.client()).status()).counters).toMatchObject({
      callbacks_delivered: 0,
      callbacks_failed: 2,
    });
    await trainer.stop();
  });

  it('counts an acknowledgement even if the rest of the answer never arrives', async () => {
    let asked = 0;
    const server = createServer((request, response) => {
      asked++;
      request.resume().on('end', () => {
        response.writeHead(200, { 'content-length': '1000' }).write('x');
        request.socket.destroySoon();
      });
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const running = await bench.server(FAST);
    await finishTask(running, `http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    await untilDelivered(running);
    expect(asked).toBe(1);
    server.close();
    server.closeAllConnections();
  });

  /** A callback transport without a network. The function passed to its constructor returns the trainer's answers. */
  class Script implements CallbackTransport {
    readonly posts: CallbackPost[] = [];
    private readonly answer: (post: CallbackPost, count: number) => Promise<number>;
    private arrived: () => void = () => {};

    constructor(answer: (post: CallbackPost, count: number) => Promise<number>) {
      this.answer = answer;
    }

    async post(callback: CallbackPost): Promise<number> {
      for await (const _ of callback.body) {
        // The loop only reads the body to its end, as a network transport would.
      }
      this.posts.push(callback);
      this.arrived();
      return this.answer(callback, this.posts.length);
    }

    async until(count: number): Promise<void> {
      while (this.posts.length < count) {
        await new Promise<void>((resolve) => {
          this.arrived = resolve;
        });
      }
    }

    async close(): Promise<void> {}
  }

  function untilAborted(signal: AbortSignal): Promise<number> {
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
  }

  describe('on a virtual clock', () => {
    let clock: VirtualClock;
    let own: Workbench;
    beforeEach(async () => {
      clock = new VirtualClock();
      own = await Workbench.create(clock);
    });
    afterEach(() => own.dispose());

    /** Advances the clock in small steps until the transport has been called `count` times. Returns the milliseconds that this took. */
    async function advanceUntil(script: Script, count: number, limitMs: number): Promise<number> {
      const startMs = clock.monotonicMs();
      while (script.posts.length < count) {
        if (clock.monotonicMs() - startMs > limitMs) throw new Error(`only ${script.posts.length} posts`);
        clock.advance(250);
        for (let i = 0; i < 20; i++) await new Promise(setImmediate);
      }
      return clock.monotonicMs() - startMs;
    }

    it('delivers to a trainer that answers 500 for an hour, with growing pauses', async () => {
      const hourMs = 3_600_000;
      const script = new Script(async () => (clock.monotonicMs() < hourMs ? 500 : 200));
      const running = await own.server({ callback_backoff_max_seconds: 600 }, { callbackTransport: script });
      await finishTask(running, 'http://127.0.0.1/');
      while (clock.monotonicMs() < hourMs + 700_000) {
        clock.advance(10_000);
        for (let i = 0; i < 10; i++) await new Promise(setImmediate);
      }
      await untilDelivered(running);
      expect(script.posts.length).toBeGreaterThan(9);
      expect(script.posts.length).toBeLessThan(30);
    });

    it('keeps other servers from a callback in progress for as long as it takes', async () => {
      const { store, blobs } = await own.open();
      const slow = new Script((post) => untilAborted(post.signal));
      const other = new Script(async () => 200);
      const config = { callback_claim_seconds: 6, callback_timeout_seconds: 3600 };
      const first = await own.server(config, { store, blobs, callbackTransport: slow });
      await finishTask(first, 'http://127.0.0.1/');
      await slow.until(1);
      const second = await own.server(config, { store, blobs, callbackTransport: other });
      await second.listen();
      // The clock advances by 60 s, ten times the 6 s after which a server's claim on a callback expires unless the server renews it.
      for (let i = 0; i < 120; i++) {
        clock.advance(500);
        for (let k = 0; k < 5; k++) await new Promise(setImmediate);
      }
      expect([slow.posts.length, other.posts.length]).toEqual([1, 0]);
    });

    it('takes over the callback of a killed server when its claim expires', async () => {
      const { store, blobs } = await own.open();
      const script = new Script(async () => 200);
      const running = await own.server({}, { store, blobs, callbackTransport: script });
      const client = await running.client();
      const node = await running.node();
      const { task_id } = await client.submit(task({ callback_url: 'http://127.0.0.1/' }));
      const claimedMs = 15_000;
      // Adds the stored row of a callback whose server died right after it had claimed the callback.
      await store.transaction(async (tables) => {
        const url = 'http://127.0.0.1/';
        await tables.callbacks.insert({
          task_id,
          url,
          tries: 0,
          next_try_ms: claimedMs,
          last_error: null,
          delivered_at: null,
        });
      });
      expect(await store.transaction((tables) => tables.callbacks.claimDue(claimedMs - 1, 9, 0))).toEqual([]);
      const waitedMs = await advanceUntil(script, 1, claimedMs + 2000);
      expect(waitedMs).toBeGreaterThanOrEqual(claimedMs);
      await untilDelivered(running);
      await node.close();
    });

    it('aborts a request that the trainer never answers, and retries it', async () => {
      let requests = 0;
      const server = createServer((request, response) => {
        request.resume();
        if (++requests > 1) response.end();
      }).listen(0, '127.0.0.1');
      await once(server, 'listening');
      const running = await own.server({ callback_timeout_seconds: 3600 });
      const asked = once(server, 'request');
      await finishTask(running, `http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
      await asked;
      clock.advance(3_600_000);
      while (requests < 2) {
        clock.advance(250);
        for (let i = 0; i < 20; i++) await new Promise(setImmediate);
      }
      await untilDelivered(running);
      expect(requests).toBe(2);
      server.close();
      server.closeAllConnections();
    });

    it('runs at most as many deliveries concurrently as callback_parallel', async () => {
      let answer = (): void => {};
      const answered = new Promise<void>((resolve) => {
        answer = resolve;
      });
      const script = new Script(() => answered.then(() => 200));
      const running = await own.server({ callback_parallel: 2 }, { callbackTransport: script });
      for (let tasks = 0; tasks < 5; tasks++) await finishTask(running, 'http://127.0.0.1/');
      await script.until(2);
      expect(script.posts).toHaveLength(2);
      answer();
      await untilDelivered(running);
      expect(script.posts).toHaveLength(5);
    });

    it('starts no delivery once the server closes', async () => {
      const { store, blobs } = await own.open();
      const script = new Script(async () => 200);
      const running = await own.server({}, { store, blobs, callbackTransport: script });
      const { task_id } = await (await running.client()).submit(task());
      // The server does not notice this callback before it closes, because the clock does not advance to its next check.
      const due = { next_try_ms: 0, tries: 0, last_error: null, delivered_at: null };
      await store.transaction((tables) => tables.callbacks.insert({ task_id, url: 'http://127.0.0.1/', ...due }));
      await running.close();
      expect(script.posts).toEqual([]);
      expect(await store.read((tables) => tables.callbacks.get(task_id))).toMatchObject(due);
    });

    it('leaves a callback that a closing server aborted to the next server immediately', async () => {
      const { store, blobs } = await own.open();
      const hanging = new Script((post) => untilAborted(post.signal));
      const first = await own.server({}, { store, blobs, callbackTransport: hanging });
      await finishTask(first, 'http://127.0.0.1/');
      await hanging.until(1);
      await first.close();
      const taking = new Script(async () => 200);
      const second = await own.server({}, { store, blobs, callbackTransport: taking });
      await second.listen();
      await taking.until(1);
      await untilDelivered(second);
      expect(hanging.posts).toHaveLength(1);
    });
  });

  describe('the addresses of callbacks', () => {
    const local = rolloutConfigSchema.parse({});
    const open = rolloutConfigSchema.parse({ host: '0.0.0.0', token: 't' });
    const named = rolloutConfigSchema.parse({ host: '0.0.0.0', token: 't', callback_hosts: ['127.0.0.1'] });
    const listed = rolloutConfigSchema.parse({ callback_hosts: ['trainer.example'] });

    it.each([
      [local, 'http://127.0.0.1:9/x'],
      [local, 'http://localhost/x'],
      [local, 'http://[::1]/x'],
      [local, 'http://2130706433/'],
      [open, 'https://trainer.example/x'],
      [open, 'http://10.0.0.1/'],
      [listed, 'https://trainer.example/x'],
      [named, 'http://127.0.0.1:9/x'],
    ])('are accepted: configuration %o, URL %s', (config, url) => {
      expect(() => checkOutboundUrl(config, url, 'callback_url')).not.toThrow();
    });

    it.each([
      [local, 'http://10.0.0.1/'],
      [local, 'http://trainer.example/'],
      [local, 'http://localhost.example/'],
      [local, 'http://[::ffff:10.0.0.1]/'],
      [local, 'ftp://127.0.0.1/'],
      [local, 'file:///etc/passwd'],
      [local, 'gopher://127.0.0.1:6379/_flushall'],
      [open, 'http://127.0.0.1/'],
      [open, 'http://localhost/'],
      [open, 'http://2130706433/'],
      [open, 'http://0x7f.1/'],
      [open, 'http://0177.0.0.1/'],
      [open, 'http://[::1]/'],
      [open, 'http://[::ffff:127.0.0.1]/'],
      [open, 'http://[64:ff9b::7f00:1]/'],
      [open, 'http://[64:ff9b::a9fe:a9fe]/'],
      [open, 'http://[2002:a9fe:a9fe::1]/'],
      [open, 'http://[::169.254.169.254]/'],
      [open, 'http://[fd00:ec2::254]/latest/meta-data'],
      [open, 'http://[fd00:ec2::23]/'],
      [open, 'http://[fd20:ce::254]/'],
      [open, 'http://[fd00:42::42]/'],
      [open, 'http://[::ffff:0:169.254.169.254]/'],
      [open, 'http://[64:ff9b:1::169.254.169.254]/'],
      [open, 'http://[64:ff9b:1:a9fe:a9:fe00::]/'],
      [open, 'http://[fd01::5efe:169.254.169.254]/'],
      [open, 'http://[2001::a9fe:a9fe]/'],
      [open, 'http://localhost./'],
      [open, 'http://api.localhost/'],
      [open, 'http://2852039166/latest/meta-data'],
      [open, 'http://100.100.100.200/'],
      [open, 'http://169.254.169.254/latest/meta-data'],
      [open, 'http://[fe80::1]/'],
      [open, 'http://0.0.0.0/'],
      [open, 'http://239.1.2.3/'],
      [open, 'http://255.255.255.255/'],
      [open, 'http://192.0.0.192/'],
      [open, 'http://168.63.129.16/'],
      [open, 'http://[::]/'],
      [open, 'http://[ff02::1]/'],
      [open, 'http://[::ffff:169.254.169.254]/'],
      [open, 'http://user:secret@trainer.example/'],
      [listed, 'http://127.0.0.1/'],
    ])('are refused: configuration %o, URL %s', (config, url) => {
      expect(() => checkOutboundUrl(config, url, 'callback_url')).toThrow(
        expect.objectContaining({ code: 'schema_violation' }),
      );
    });

    it('are checked after the name was resolved, and only checked addresses are connected to', async () => {
      const resolve = (config: typeof local, name: string) =>
        new Promise((done) =>
          checkedLookup(config)(name, { all: true }, (error, found) => done(error?.message ?? found)),
        );
      expect(await resolve(local, 'localhost')).toEqual(
        expect.arrayContaining([expect.objectContaining({ address: expect.stringMatching(/^(127\.0\.0\.1|::1)$/) })]),
      );
      expect(await resolve(local, '10.0.0.1')).toMatch(/not loopback/);
      expect(await resolve(open, '169.254.169.254')).toMatch(/link-local/);
      expect(await resolve(open, 'localhost')).toMatch(/machine of this server/);
    });

    it('are refused when a name is rebound to the metadata service', async () => {
      const answers = [['10.0.0.7'], ['169.254.169.254'], ['10.0.0.7', '127.0.0.1'], ['::ffff:169.254.169.254'], []];
      const rebinding = ((_name: string, _options: object, done: (error: null, found: object[]) => void) =>
        done(
          null,
          (answers.shift() ?? []).map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
        )) as unknown as typeof lookup;
      const seen: unknown[] = [];
      for (const all of [true, false, true, false, true]) {
        checkedLookup(open, rebinding)('trainer.example', { all }, (error, found) =>
          seen.push(error?.message ?? found),
        );
      }
      expect(seen).toEqual([
        [{ address: '10.0.0.7', family: 4 }],
        expect.stringMatching(/link-local/),
        expect.stringMatching(/machine of this server/),
        expect.stringMatching(/link-local/),
        'trainer.example has no address',
      ]);
    });

    it('are refused when a redirect leads to the metadata service', async () => {
      let asked = 0;
      const server = createServer((request, response) => {
        request.resume();
        if (++asked === 1) response.writeHead(307, { location: 'http://169.254.169.254/latest/meta-data' }).end();
        else response.end();
      }).listen(0, '127.0.0.1');
      await once(server, 'listening');
      const running = await bench.server(FAST);
      await finishTask(running, `http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
      await untilDelivered(running);
      expect(asked).toBe(2);
      server.close();
      server.closeAllConnections();
    });
  });
});
