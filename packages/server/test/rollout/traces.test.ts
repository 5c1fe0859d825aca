import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { parseTraceparent, systemClock, traceIdOf } from '@floe-rl/core';
import type { SubmitReply, TaskRequestInput } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { FinishedSpan } from '../../../observe/src/span-exporter.ts';
import { recordingTracer } from '../../../observe/src/tracing.ts';
import type { RolloutDeps } from '../../src/rollout/index.ts';
import { type Running, summaryOf, task, Workbench } from './workbench.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const PARENT = `00-${TRACE}-b7ad6b7169203331-01`;

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

async function submit(running: Running, request: TaskRequestInput, traceparent?: string) {
  const reply = await fetch(`${await running.listen()}/rollout/task/submit`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(traceparent === undefined ? {} : { traceparent }) },
    body: JSON.stringify(request),
  });
  return { status: reply.status, body: (await reply.json()) as SubmitReply };
}

async function leasedParent(running: Running): Promise<string | null | undefined> {
  const [lease] = await (await running.node()).lease({ slots: 1, wait_seconds: 5 });
  return lease?.task.traceparent;
}

describe('the trace of a task', () => {
  it('is taken from the header, and is sent to the node', async () => {
    const running = await bench.server();
    await submit(running, task(), PARENT);
    expect(await leasedParent(running)).toBe(PARENT);
  });

  it('is taken from the body when body and header name one', async () => {
    const running = await bench.server();
    await submit(running, task({ traceparent: PARENT }), PARENT.replace(TRACE, 'f'.repeat(32)));
    expect(await leasedParent(running)).toBe(PARENT);
  });

  it('is absent when the header is malformed, which does not refuse the task', async () => {
    const running = await bench.server();
    expect((await submit(running, task(), '00-nonsense')).status).toBe(200);
    expect(await leasedParent(running)).toBeNull();
  });

  it('must be valid in the body', async () => {
    const running = await bench.server();
    for (const traceparent of ['x', PARENT.toUpperCase(), `00-${'0'.repeat(32)}-b7ad6b7169203331-01`]) {
      const { status, body } = await submit(running, task({ traceparent }));
      expect(status).toBe(422);
      expect(JSON.stringify(body)).toContain('traceparent');
    }
  });

  it('does not make a repeat a different request', async () => {
    const running = await bench.server();
    const request = task({ idempotency_key: 'once' });
    const first = await submit(running, request, PARENT);
    const again = await submit(running, request, PARENT.replace('b7ad', 'c8be'));
    expect(again.body).toMatchObject({ task_id: first.body.task_id, duplicate: true });
  });
});

describe('a callback', () => {
  let trainer: Server;
  const received: (string | undefined)[] = [];
  const answers: number[] = [];
  beforeEach(async () => {
    received.length = 0;
    trainer = createServer((request, response) => {
      received.push(request.headers.traceparent as string | undefined);
      request.resume().on('end', () => response.writeHead(answers.shift() ?? 200).end());
    }).listen(0, '127.0.0.1');
    await once(trainer, 'listening');
  });
  afterEach(async () => {
    trainer.close();
    trainer.closeAllConnections();
    await once(trainer, 'close');
  });

  /** Submits a task and delivers its result. Resolves to the task id once the trainer has acknowledged the callback. */
  async function calledBack(deps: Partial<RolloutDeps>, traceparent?: string): Promise<string> {
    const fast = { callback_backoff_seconds: 0.01, callback_backoff_max_seconds: 0.05 };
    const running = await bench.server(fast, deps);
    const node = await running.node();
    const callback_url = `http://127.0.0.1:${(trainer.address() as AddressInfo).port}/done`;
    const { body } = await submit(running, task({ callback_url, policy_version: 'v7' }), traceparent);
    const [lease] = await node.lease({ slots: 1, wait_seconds: 5 });
    if (lease === undefined) throw new Error('no lease came');
    const summary = summaryOf(lease, 'completed', { trace_count: 0, trainable_tokens: 0 });
    await node.deliverResult({ summary, trajectory: null, completions: null, artifacts: null });
    await expect.poll(async () => (await running.server.status()).undelivered_callbacks).toBe(0);
    return body.task_id;
  }

  it('carries the trace context of its task, and none when the task has none', async () => {
    await calledBack({}, PARENT);
    expect(received).toEqual([PARENT]);
    received.length = 0;
    await bench.dispose();
    bench = await Workbench.create();
    await calledBack({});
    expect(received).toEqual([undefined]);
  });

  it('has a span for each try, which the trainer receives', async () => {
    const spans: FinishedSpan[] = [];
    answers.push(500);
    const taskId = await calledBack({ tracer: recordingTracer(systemClock, (span) => spans.push(span)) });
    expect(spans.map(({ name, traceId, error, attributes }) => ({ name, traceId, error, attributes }))).toEqual([
      {
        name: 'callback',
        traceId: traceIdOf(taskId),
        error: 'answered with status 500',
        attributes: { task_id: taskId, attempt: 1, policy_version: 'v7', 'http.response.status_code': 500 },
      },
      {
        name: 'callback',
        traceId: traceIdOf(taskId),
        error: null,
        attributes: { task_id: taskId, attempt: 2, policy_version: 'v7', 'http.response.status_code': 200 },
      },
    ]);
    expect(received.map((text) => parseTraceparent(text ?? '')?.spanId)).toEqual(spans.map(({ spanId }) => spanId));
  });
});

describe('the log of a server', () => {
  it("has one line for every change of a session's status, with its ids", async () => {
    const lines: Record<string, unknown>[] = [];
    const info = (fields: object, message: string): void => void lines.push({ ...fields, message });
    const running = await bench.server({}, { log: { info, warn: () => {}, error: () => {} } });
    const node = await running.node();
    const { body } = await submit(running, task());
    const [lease] = await node.lease({ slots: 1, wait_seconds: 5 });
    if (lease === undefined) throw new Error('no lease came');
    const { session_id, epoch } = lease;
    const metrics = { init_inflight: 0, ready_depth: 0, run_inflight: 1, postrun_queue_depth: 0, postrun_inflight: 0 };
    for (const turns of [0, 1, 2]) {
      const progress = { session_id, epoch, status: 'RUNNING' as const, turns, sampled_tokens: turns };
      await node.heartbeat({ metrics, refuses: null, sessions: [progress], engines: null, wait_seconds: 0 });
    }
    const summary = summaryOf(lease, 'completed', { trace_count: 0, trainable_tokens: 0 });
    await node.deliverResult({ summary, trajectory: null, completions: null, artifacts: null });
    const of = { task_id: body.task_id, session_id, attempt: 1, epoch, node_id: 'node-1', message: 'session moved' };
    expect(lines).toEqual([
      { task_id: body.task_id, sessions: 1, message: 'task submitted' },
      { ...of, status: 'LEASED' },
      { ...of, status: 'RUNNING' },
      { task_id: body.task_id, status: 'completed', message: 'task ended' },
      { ...of, status: 'COMPLETED', outcome: 'completed' },
    ]);
  });
});
