import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { polarTaskResult } from '../../../../../verify/clients/polar-models.ts';
import type { CallbackPost, CallbackTransport } from '../../../src/rollout/index.ts';
import { type Running, Workbench } from '../workbench.ts';
import { PolarCaller } from './polar-caller.ts';

type Posted = { readonly url: string; readonly length: number; readonly body: unknown; readonly bytes: number };

/** Records callbacks, and answers each with the next of the given statuses, or with 200. */
class RecordingTransport implements CallbackTransport {
  readonly posted: Posted[] = [];
  private readonly answers: number[];

  constructor(answers: number[] = []) {
    this.answers = answers;
  }

  async post({ url, headers, body }: CallbackPost): Promise<number> {
    const chunks: Buffer[] = [];
    for await (const chunk of body) chunks.push(chunk);
    const bytes = Buffer.concat(chunks);
    const length = Number(headers['content-length']);
    this.posted.push({ url, length, bytes: bytes.length, body: JSON.parse(bytes.toString()) });
    return this.answers.shift() ?? 200;
  }

  async close(): Promise<void> {}

  async until(count: number): Promise<void> {
    while (this.posted.length < count) await setImmediate();
  }
}

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

const CALLBACK = { callback_url: 'http://127.0.0.1:9/callback/task_result' };

async function start(transport: RecordingTransport): Promise<{ running: Running; polar: PolarCaller }> {
  const running = await bench.server(
    { polar: 'root', callback_backoff_seconds: 600 },
    { callbackTransport: transport },
  );
  await running.listen();
  return { running, polar: new PolarCaller(running) };
}

async function runToEnd(polar: PolarCaller, fields: Record<string, unknown> = {}): Promise<void> {
  await polar.submitPolar({ task_id: 'group-0', num_samples: 2, ...CALLBACK, ...fields });
  for (const lease of await polar.leaseSome(2)) await polar.end(lease);
}

describe('the callback of a Polar task', () => {
  it('has a body that Polar reads as TaskResult, with the length that its header states', async () => {
    const transport = new RecordingTransport();
    const { polar } = await start(transport);
    await runToEnd(polar);
    await transport.until(1);
    const [posted] = transport.posted;
    expect(posted?.length).toBe(posted?.bytes);
    const result = polarTaskResult.parse(posted?.body);
    expect(result).toMatchObject({ task_id: 'group-0', status: 'completed' });
    expect(result.results.map(({ status, trajectory }) => [status, trajectory.traces[0]?.reward])).toEqual([
      ['COMPLETED', 1],
      ['COMPLETED', 1],
    ]);
  });

  it('is not sent for a task that was cancelled', async () => {
    const transport = new RecordingTransport();
    const { running, polar } = await start(transport);
    await polar.submitPolar({ task_id: 'cancelled', ...CALLBACK });
    await polar.call('DELETE', '/rollout/task/cancelled');
    await runToEnd(polar);
    await transport.until(1);
    expect(transport.posted.map(({ body }) => (body as { task_id: string }).task_id)).toEqual(['group-0']);
    expect((await running.server.status()).undelivered_callbacks).toBe(0);
  });

  it('is given up when a restarted trainer uses the id again, and the new run calls the new address', async () => {
    const transport = new RecordingTransport([503]);
    const { running, polar } = await start(transport);
    await runToEnd(polar);
    await transport.until(1);
    const url = 'http://127.0.0.1:10/callback/task_result';
    await runToEnd(polar, { callback_url: url });
    await transport.until(2);
    expect(transport.posted[1]?.url).toBe(url);
    expect((await running.server.status()).undelivered_callbacks).toBe(0);
  });
});
