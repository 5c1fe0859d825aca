import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FloeClient } from '@floe-rl/client';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { summaryOf, Workbench } from '../workbench.ts';
import { StreamBench, streamOf } from './stream-bench.ts';

const undo: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const step of undo.splice(0).reverse()) await step();
});

/** Serves rows as a generator does. The first request fails. */
function generator(total: number): Promise<string> {
  let requests = 0;
  return serve((response, query) => {
    const after = Number(query.get('after'));
    if (requests++ === 0) return void response.writeHead(500).end();
    const rows = Array.from({ length: Math.min(2, total - after) }, (_, index) => ({ question: `g${after + index}` }));
    response.end(JSON.stringify({ rows, done: after + rows.length === total }));
  });
}

async function serve(reply: (response: ServerResponse, query: URLSearchParams) => void): Promise<string> {
  const server: Server = createServer((request, response) =>
    reply(response, new URL(request.url ?? '', 'http://x').searchParams),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  undo.push(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/rows`;
}

describe('a generator of rows', () => {
  it.each([
    ['no JSON', '\0{"rows"', 200, 'is not valid JSON'],
    ['rows that are no objects', '{"rows": [{}, 7]}', 200, 'rows.1'],
    ['neither rows nor an end', '{"rows": []}', 200, 'returned no rows'],
    ['a redirect', '', 302, 'answered with 302'],
  ])(
    'that replies with %s is an error of the source that every database can store',
    async (_, reply, status, message) => {
      const bench = await StreamBench.create();
      undo.push(() => bench.dispose());
      const url = await serve((response) => response.writeHead(status, { location: 'http://127.0.0.1:1/' }).end(reply));
      await bench.createStream({ source: { kind: 'generator', url } });
      await bench.running.server.sweep();
      const { source_error: problem, row_count: count } = await vi.waitFor(async () => {
        const view = await bench.view();
        expect(view.source_error).not.toBeNull();
        return view;
      });
      expect(problem).toContain(message);
      expect(problem).not.toMatch(/\p{Cc}/u);
      expect(count).toBe(0);
    },
  );

  it('is requested until it has no more, and once more after a failure', async () => {
    const bench = await Workbench.create();
    undo.push(() => bench.dispose());
    const running = await bench.server();
    const client: FloeClient = await running.client();
    const node = await running.node();
    const url = await generator(5);
    const { body } = await call(await running.listen(), 'POST', '/rollout/batches', {
      ...streamOf({ order: { epochs: 1 }, max_staleness: 10 }),
      source: { kind: 'generator', url },
    });
    expect(body).toMatchObject({ batch_id: 'b', rows_complete: false });
    const seen: string[] = [];
    while (seen.length < 10) {
      const leases = await node.lease({ slots: 1, wait_seconds: 30 });
      for (const lease of leases) {
        seen.push(lease.task.instruction);
        await node.deliverResult({
          summary: summaryOf(lease, 'completed', { reward: lease.sample_index }),
          trajectory: null,
          completions: null,
          artifacts: null,
        });
      }
    }
    expect(seen.filter((_, index) => index % 2 === 0)).toEqual([0, 1, 2, 3, 4].map((row) => `Answer g${row}`));
    expect((await client.status()).counters).toBeDefined();
  }, 60_000);
});

describe('a file of rows', () => {
  it('is read below the dataset_dir alone, and a broken line is named', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'floe-rows-'));
    undo.push(() => rm(directory, { recursive: true, force: true }));
    await writeFile(join(directory, 'good.jsonl'), '{"question": "a"}\n{"question": "b"}\n');
    await writeFile(join(directory, 'broken.jsonl'), '{"question": "a"}\nnot json\n');
    await symlink('/etc/hostname', join(directory, 'link.jsonl'));
    const bench = await StreamBench.create({ dataset_dir: directory });
    undo.push(() => bench.dispose());
    const view = await bench.createStream({ source: { kind: 'file', path: 'good.jsonl' } });
    expect(view).toMatchObject({ row_count: 2, rows_complete: true });
    for (const [path, text] of [
      ['broken.jsonl', 'broken.jsonl:2'],
      ['link.jsonl', 'outside'],
      ['../x.jsonl', 'does not exist'],
      ['missing.jsonl', 'does not exist'],
    ]) {
      const { status, body } = await bench.refusal({ batch_id: 'other', source: { kind: 'file', path } });
      expect([status, body.error.details.issues]).toMatchObject([422, [{ path: 'source.path' }]]);
      expect(body.error.message).toContain(text);
    }
  });
});

async function call(base: string, method: string, path: string, body: object): Promise<{ body: unknown }> {
  const headers = { 'content-type': 'application/json' };
  const reply = await fetch(`${base}${path}`, { method, headers, body: JSON.stringify(body) });
  return { body: await reply.json() };
}
