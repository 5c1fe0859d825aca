import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { settle } from '../../../../node/test/gateway/session-bench.ts';
import { type BoxConnection, type BoxEnd, BoxListener } from '../../../src/box/connection.ts';
import { encodeFrame, FrameReader } from '../../../src/box/frames.ts';
import type { BoxRequest } from '../../../src/box/messages.ts';
import { BoxToolClient } from '../../../src/box/tool-client.ts';
import { never } from '../../backends/workbench.ts';

const LOST = { code: 'runtime_failed', details: { box: 'lost' } };
const ENDED = {
  ...{ type: 'tool_ended', exitCode: 0, signal: null, droppedBytes: 0, timedOut: false, isFirst: true },
  ...{ processEnd: null, stdoutBytes: 0, stderrBytes: 0 },
};

let dir: string;
let server: Socket;
let tools: BoxToolClient;
let clock: VirtualClock;
let ends: number;
let connection: BoxConnection;
/** The end of the box server, as its provider reports it. */
let boxEnd: BoxEnd;
/** Returns the reply to a request; `null` for no reply. */
let answer: (request: BoxRequest) => readonly [header: object, body?: Buffer] | null;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-tools-'));
  clock = new VirtualClock();
  const listener = await BoxListener.open(join(dir, 's'), { clock, maxBodyBytes: 2_000_000 });
  const accepted = listener.accept(new Promise<never>(() => {}), never);
  server = connect(join(dir, 's'));
  const send = (header: object, body?: Buffer) => {
    for (const part of encodeFrame(header, body)) server.write(part);
  };
  const limits = { headerBytes: 1_000_000, bodyBytes: 1_000_000 };
  const reader = new FrameReader(limits, ({ header }) => {
    const request = header as BoxRequest & { readonly id: number };
    const [reply, body] = answer(request) ?? [null];
    if (reply !== null) send({ id: request.id, ...reply }, body);
  });
  server.on('data', (chunk: Buffer) => reader.push(chunk));
  send({ type: 'ready', environment: {}, user: null });
  connection = await accepted;
  ends = 0;
  boxEnd = { byAgent: true, killedBy: null };
  const explainEnd = async () => boxEnd;
  const end = async () => {
    ends += 1;
    connection.close();
  };
  const common = { connection, clock, workdir: '/work', env: {}, prefix: [], maxOutputBytes: 1_000 };
  tools = new BoxToolClient({ ...common, onActivity: undefined, end, explainEnd, release: async () => {} });
});
afterEach(async () => {
  server.destroy();
  await rm(dir, { recursive: true, force: true });
});

const run = (signal = never) => tools.shell().run('true', { timeoutMs: 1_000 }, signal);
const replyToRun =
  (header: object, body?: Buffer): typeof answer =>
  ({ type }) =>
    type === 'tool_run' ? [header, body] : [{ type: 'tool_done' }];

describe('tools whose box server an agent has taken over', () => {
  it.each<[string, object, Buffer?]>([
    ['a reply of another kind', { type: 'tool_done' }],
    ['an exit code that no process has', { ...ENDED, exitCode: 256 }],
    ['an additional field', { ...ENDED, reward: 1 }],
    ['a body that is too long', ENDED, Buffer.alloc(2_000_001)],
  ])('lose the sandbox at %s', async (_what, header, body) => {
    answer = replyToRun(header, body);
    await expect(run()).rejects.toMatchObject(LOST);
    await expect(tools.list('.', never)).rejects.toMatchObject(LOST);
  });

  it('divide the output within the bytes that arrived', async () => {
    answer = replyToRun({ ...ENDED, stdoutBytes: 2, stderrBytes: 1_000_000 }, Buffer.from('abc'));
    expect(await run()).toMatchObject({ stdout: 'ab', stderr: 'c' });
  });

  it.each([
    ['that is not JSON', Buffer.from('[')],
    ['with entries of another shape', Buffer.from('[{"name":"x","type":"socket","bytes":null}]')],
    ['with too many entries', Buffer.from(`[${Array(2_001).fill('{"name":"x","type":"other","bytes":null}').join()}]`)],
  ])('lose the sandbox at a listing %s', async (_what, body) => {
    answer = () => [{ type: 'tool_entries', isPartial: false }, body];
    await expect(tools.list('.', never)).rejects.toMatchObject(LOST);
  });

  it('end it when it does not answer, although it shows signs of life', async () => {
    answer = ({ type }) => (type === 'tool_ping' ? [{ type: 'tool_done' }] : null);
    const rejected = expect(tools.list('.', never)).rejects.toMatchObject(LOST);
    for (let passedMs = 0; passedMs < 75_000; passedMs += 3_000) {
      expect(ends).toBe(0);
      clock.advance(3_000);
      await settle();
    }
    await rejected;
    expect(ends).toBe(1);
  });

  it.each([
    ['a command', () => run()],
    ['a cell', () => tools.python().run('1', { timeoutMs: 300_000 }, never)],
    ['an action of a browser', () => tools.browser().run('{}', { timeoutMs: 300_000 }, never)],
    ['an edit', () => tools.editFile('a', { oldText: 'b', newText: 'c' }, never)],
  ])('end it within seconds when it shows no sign of life during %s', async (_what, work) => {
    answer = ({ type }) => (type === 'tool_open' ? [{ type: 'tool_done' }] : null);
    const message = expect.stringContaining('it has not responded for 15 s');
    const rejected = expect(work()).rejects.toMatchObject({ ...LOST, message });
    await settle();
    for (let passedMs = 0; passedMs < 18_000; passedMs += 3_000) {
      clock.advance(3_000);
      await settle();
    }
    await rejected;
    expect(ends).toBe(1);
    expect(tools.loss).toMatchObject({ byAgent: true, wasUsed: true });
  });

  it('wait for code that runs for long as long as the box server shows signs of life', async () => {
    let finish = (): void => {};
    answer = ({ type }) => {
      if (type !== 'tool_run') return [{ type: 'tool_done' }];
      finish = () => server.write(Buffer.concat(encodeFrame({ id: 2, ...ENDED })));
      return null;
    };
    const running = tools.shell().run('sleep 300', { timeoutMs: 300_000 }, never);
    for (let passedMs = 0; passedMs < 300_000; passedMs += 3_000) {
      await settle();
      clock.advance(3_000);
    }
    await settle();
    finish();
    expect((await running).exitCode).toBe(0);
    expect([ends, tools.loss]).toEqual([0, null]);
  });

  it('end it when it does not end code whose signal has aborted, and reject with the reason', async () => {
    const asked = new Promise<void>((resolve) => {
      answer = ({ type }) => {
        if (type !== 'tool_run') return [{ type: 'tool_done' }];
        resolve();
        return null;
      };
    });
    const controller = new AbortController();
    const reason = new Error('enough');
    const rejected = expect(run(controller.signal)).rejects.toBe(reason);
    await asked;
    controller.abort(reason);
    clock.advance(5_000);
    await rejected;
    expect(ends).toBe(1);
  });

  it('take the answer that has arrived when a timer is late', async () => {
    answer = ({ type }) => {
      if (type !== 'tool_run') return [{ type: 'tool_done' }];
      // The timer fires when the answer is sent, and before it is read.
      setImmediate(() => clock.advance(76_000));
      return [ENDED];
    };
    expect(await run()).toMatchObject({ exitCode: 0 });
    expect(ends).toBe(0);
  });

  it('close even when it does not answer', async () => {
    answer = ({ type }) => (type === 'tool_close' ? null : type === 'tool_run' ? [ENDED] : [{ type: 'tool_done' }]);
    expect((await run()).exitCode).toBe(0);
    const closed = tools.close();
    clock.advance(5_000);
    await closed;
    expect(ends).toBe(1);
  });
});

describe('the loss of a box server', () => {
  it('comes before its use when no code ran and no file was accessed', async () => {
    answer = () => [{ type: 'tool_done' }];
    server.destroy();
    await connection.closed;
    await expect(run()).rejects.toMatchObject(LOST);
    expect(tools.loss).toMatchObject({ byAgent: true, wasUsed: false });
  });

  it.each<BoxEnd>([
    { byAgent: false, killedBy: null },
    { byAgent: true, killedBy: 'memory' },
  ])('is explained by how the sandbox ended: %o', async (end) => {
    boxEnd = end;
    answer = ({ type }) => {
      if (type === 'tool_run') server.destroy();
      return [{ type: 'tool_done' }];
    };
    await expect(run()).rejects.toMatchObject({ ...LOST, details: { killed_by: end.killedBy } });
    expect(tools.loss).toMatchObject({ byAgent: end.byAgent, wasUsed: true });
  });
});

describe('tools', () => {
  it('refuse code that is too long and environments that no process can have', async () => {
    answer = replyToRun(ENDED);
    const long = tools.shell().run('x'.repeat(2 ** 20 + 1), { timeoutMs: 1 }, never);
    await expect(long).rejects.toMatchObject({ name: 'ToolError', reason: 'too_large' });
    expect(() => tools.shell({ env: { 'A=B': 'x' } })).toThrow(/cannot be the name of a variable/);
    await expect(tools.readFile('a\0b', {}, never)).rejects.toMatchObject({ code: 'schema_violation' });
  });
});
