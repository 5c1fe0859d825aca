import { gzipSync } from 'node:zlib';
import { ENVELOPE_TYPE, encodeEnvelope } from '@floe-rl/core/protocol';
import type { Lease, SessionSummary } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

const ARCHIVE = gzipSync('a tar archive');
const KEPT = { bytes: ARCHIVE.length, omitted: null };

let bench: Workbench;
let running: Running;
beforeEach(async () => {
  bench = await Workbench.create();
  running = await bench.server();
});
afterEach(() => bench.dispose());

async function leased(server = running): Promise<Lease> {
  const client = await server.client();
  const node = await server.node();
  await client.submit(task());
  const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
  if (lease === undefined) throw new Error('a session was queued');
  return lease;
}

function delivery(lease: Lease, archive: Buffer | null, artifacts: SessionSummary['artifacts']) {
  const summary = summaryOf(lease, 'completed', { artifacts });
  return { summary, trajectory: TRAJECTORY, completions: null, artifacts: archive };
}

describe('artifacts', () => {
  it('are returned as they were delivered, also by a server that was started later', async () => {
    const lease = await leased();
    const node = await running.node();
    expect(await node.deliverResult(delivery(lease, ARCHIVE, KEPT))).toMatchObject({ duplicate: false });
    expect(await node.deliverResult(delivery(lease, ARCHIVE, KEPT))).toMatchObject({ duplicate: true });
    await running.close();
    const again = await bench.server();
    const client = await again.client();
    expect(await client.artifacts(lease.session_id)).toEqual(ARCHIVE);
    expect((await client.session(lease.session_id)).summary?.artifacts).toEqual(KEPT);
  });

  it('are sent as a file to save', async () => {
    const lease = await leased();
    await (await running.node()).deliverResult(delivery(lease, ARCHIVE, KEPT));
    const reply = await fetch(`${await running.listen()}/sessions/${lease.session_id}/artifacts`);
    expect(reply.headers.get('content-type')).toBe('application/gzip');
    expect(reply.headers.get('content-disposition')).toBe(`attachment; filename="${lease.session_id}.tar.gz"`);
    expect(Buffer.from(await reply.arrayBuffer())).toEqual(ARCHIVE);
  });

  it('are not_found when they are missing, with the reason if there is one', async () => {
    const lease = await leased();
    const client = await running.client();
    const fetched = () => client.artifacts(lease.session_id);
    await expect(fetched()).rejects.toMatchObject({ code: 'not_found', message: expect.stringContaining('LEASED') });
    await (await running.node()).deliverResult(delivery(lease, null, { bytes: 0, omitted: 'packing took too long' }));
    await expect(fetched()).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('has no artifacts: packing took too long'),
      details: { reason: 'packing took too long' },
    });
    await expect(client.artifacts('nobody')).rejects.toMatchObject({ code: 'not_found' });
  });

  it('cause a conflict when an earlier delivery had another archive', async () => {
    const lease = await leased();
    const node = await running.node();
    await node.deliverResult(delivery(lease, ARCHIVE, KEPT));
    const other = gzipSync('another one..');
    const changed = node.deliverResult(delivery(lease, other, { bytes: other.length, omitted: null }));
    await expect(changed).rejects.toMatchObject({ code: 'conflict' });
  });

  it.each([
    ['of another size than the summary says', ARCHIVE, { bytes: 7, omitted: null }, 'artifacts.bytes'],
    ['that the summary does not know', ARCHIVE, null, 'artifacts.bytes'],
    ['that are only in the summary', null, KEPT, 'artifacts.bytes'],
    ['that are not compressed', Buffer.from('plain'), { bytes: 5, omitted: null }, 'parts.artifacts'],
  ])('are refused when %s', async (_, archive, report, path) => {
    const lease = await leased();
    const node = await running.node();
    await expect(node.deliverResult(delivery(lease, archive, report))).rejects.toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path }] },
    });
    expect(await node.deliverResult(delivery(lease, ARCHIVE, KEPT))).toMatchObject({ duplicate: false });
  });

  it('are not required in a delivery', async () => {
    const lease = await leased();
    const { artifacts: _, ...header } = summaryOf(lease);
    const payload = encodeEnvelope({ header, parts: new Map([['trajectory', TRAJECTORY]]) });
    const reply = await running.server.app.inject({
      method: 'POST',
      url: '/nodes/node-1/results',
      payload,
      headers: { 'content-type': ENVELOPE_TYPE },
    });
    expect(reply.statusCode).toBe(200);
    expect((await new Caller(running.server).session(lease.session_id)).summary?.artifacts).toBeNull();
  });

  it('may be larger than the limit of token data', async () => {
    const lease = await leased();
    const large = Buffer.alloc(65 * 1024 * 1024);
    ARCHIVE.copy(large);
    const node = await running.node();
    await node.deliverResult(delivery(lease, large, { bytes: large.length, omitted: null }));
    expect((await (await running.client()).artifacts(lease.session_id)).equals(large)).toBe(true);
  });

  it.each([
    ['max_mb', { max_mb: 0 }],
    ['max_mb', { max_mb: 257 }],
    ['paths.0', { paths: [''] }],
    ['paths.0', { paths: ['../other'] }],
    ['paths.0', { paths: ['a\0b'] }],
    ['paths', { paths: Array.from({ length: 65 }, () => 'a') }],
  ])('are refused in a task with a wrong %s', async (field, artifacts) => {
    const submitted = (await running.client()).submit(task({ artifacts }));
    await expect(submitted).rejects.toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path: `artifacts.${field}` }] },
    });
  });
});
