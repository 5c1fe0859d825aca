import { FloeError, VirtualClock } from '@floe-rl/core';
import type { SessionResult, SubmitReply, TaskRequestInput } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { parseCondition } from '../../src/generation/acceptance-conditions.ts';
import type { JournalRecord } from '../../src/generation/journal.ts';
import { sampleOf, sampleTask } from '../../src/generation/row-task.ts';
import { SampleIndex } from '../../src/generation/samples.ts';
import { type NumberedRow, type SamplingOptions, SamplingRun } from '../../src/generation/sampling-run.ts';
import { resultOf } from './results.ts';

const TEMPLATE = { instruction: '{{row.text}}', agent: { harness: 'pi' } };

/** A server that a test controls. A submitted task ends when `end` is called with its id. */
class FakeServer {
  /** Number of submissions by task. */
  readonly submitted = new Map<string, number>();
  readonly ended = new Map<string, SessionResult>();
  /** What the stream of results does next: yields a result or throws an error. */
  private readonly stream: (SessionResult | FloeError)[] = [];
  private wake: () => void = () => {};
  private watchers: (() => void)[] = [];
  /** Throws an error to refuse a submission. */
  refuse: (task: TaskRequestInput) => void = () => {};

  end(taskId: string, fields: Partial<SessionResult> = {}, isStreamed = true): void {
    const [, run = '', row, sample, retry = 0] = /^(.*?)-(\d+)-(\d+)(?:-(\d+))?$/.exec(taskId) ?? [];
    const id = { run, row: Number(row), sample: Number(sample), retry: Number(retry) };
    const result = resultOf({ task_id: taskId, session_id: taskId, metadata: { floe_generate: id }, ...fields });
    this.ended.set(taskId, result);
    if (isStreamed) this.push(result);
  }

  push(next: SessionResult | FloeError): void {
    this.stream.push(next);
    this.wake();
  }

  /** Resolves when a task has been submitted `count` times. */
  async until(taskId: string, count = 1): Promise<void> {
    while ((this.submitted.get(taskId) ?? 0) < count) {
      await new Promise<void>((resolve) => this.watchers.push(resolve));
    }
  }

  async submit(task: TaskRequestInput): Promise<SubmitReply> {
    this.refuse(task);
    const id = task.task_id ?? '';
    const duplicate = this.submitted.has(id);
    this.submitted.set(id, (this.submitted.get(id) ?? 0) + 1);
    for (const resolve of this.watchers.splice(0)) resolve();
    return { task_id: id, status: this.ended.has(id) ? 'completed' : 'running', session_ids: [id], duplicate };
  }

  async task(taskId: string): Promise<never> {
    if (!this.submitted.has(taskId)) throw new FloeError('not_found', `no task ${taskId}`);
    return { status: this.ended.has(taskId) ? 'completed' : 'running' } as never;
  }

  async taskResults(taskId: string): Promise<SessionResult[]> {
    const result = this.ended.get(taskId);
    return result === undefined ? [] : [result];
  }

  async *results({ signal }: { signal?: AbortSignal } = {}): AsyncGenerator<SessionResult> {
    for (;;) {
      const next = this.stream.shift();
      if (next instanceof FloeError) throw next;
      if (next !== undefined) yield next;
      else {
        await new Promise<void>((resolve, reject) => {
          this.wake = resolve;
          if (signal?.aborted) reject(signal.reason);
          signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
        });
      }
    }
  }
}

type Setup = {
  readonly server: FakeServer;
  readonly clock: VirtualClock;
  readonly index: SampleIndex;
  readonly records: JournalRecord[];
  readonly start: (rows: number, options?: Partial<SamplingOptions>) => Promise<void>;
  readonly stop: AbortController;
};

function setup(): Setup {
  const server = new FakeServer();
  const clock = new VirtualClock();
  const index = new SampleIndex();
  const records: JournalRecord[] = [];
  const stop = new AbortController();
  const owner = { run: 'gen_1', trainer: 'gen_1' };
  const options: SamplingOptions = {
    client: server,
    clock,
    run: owner.run,
    trainer: owner.trainer,
    consumer: owner.trainer,
    policy: { samples: 1, keep: null },
    concurrency: 8,
    conditions: [parseCondition('reward>=1')],
    ownsRow: () => true,
    taskOf: (row, id) => sampleTask(TEMPLATE, row, owner, id),
    journal: {
      append: async (record) => {
        records.push(record);
        return { path: 'journal.jsonl', offset: 0, length: 1 };
      },
    },
  };
  async function* numbered(count: number): AsyncGenerator<NumberedRow> {
    for (let number = 0; number < count; number++) {
      yield { number, row: { where: `rows:${number + 1}`, fields: { text: `row ${number}` } } };
    }
  }
  const start = (rows: number, changes: Partial<SamplingOptions> = {}): Promise<void> =>
    new SamplingRun({ ...options, ...changes }, index).generate(numbered(rows), stop.signal);
  return { server, clock, index, records, start, stop };
}

const journaled = (records: readonly JournalRecord[]) =>
  records.map((record) => (record.kind === 'result' ? sampleOf('gen_1', record.result)?.row : record.kind));

describe('SamplingRun', () => {
  it('ends when all rows have their samples in the journal', async () => {
    const { server, records, start } = setup();
    const run = start(2);
    await server.until('gen_1-1-0');
    server.end('gen_1-1-0');
    server.end('gen_1-0-0');
    await run;
    expect(journaled(records)).toEqual([1, 0]);
    expect([...server.submitted]).toEqual([
      ['gen_1-0-0', 1],
      ['gen_1-1-0', 1],
    ]);
  });

  it('has at most as many sessions without a result as the concurrency allows', async () => {
    const { server, start } = setup();
    const run = start(5, { concurrency: 2 });
    for (let row = 0; row < 5; row++) {
      await server.until(`gen_1-${row}-0`);
      expect(server.submitted.size - server.ended.size).toBeLessThanOrEqual(2);
      server.end(`gen_1-${row}-0`);
    }
    await run;
    expect(server.submitted.size).toBe(5);
  });

  it('requests the next result only when the one before it is in the journal', async () => {
    const { server, records, start } = setup();
    let permit: () => void = () => {};
    const requested: string[] = [];
    const results = async function* (options: object = {}): AsyncGenerator<SessionResult> {
      for await (const result of server.results(options)) {
        requested.push(result.task_id);
        yield result;
      }
    };
    const append: SamplingOptions['journal']['append'] = async (record) => {
      await new Promise<void>((resolve) => {
        permit = resolve;
        appending();
      });
      records.push(record);
      return { path: 'journal.jsonl', offset: 0, length: 1 };
    };
    let appending: () => void = () => {};
    let began = new Promise<void>((resolve) => {
      appending = resolve;
    });
    const client = {
      results,
      submit: server.submit.bind(server),
      task: server.task.bind(server),
      taskResults: server.taskResults.bind(server),
    };
    const run = start(2, { client, journal: { append } });
    await server.until('gen_1-1-0');
    server.end('gen_1-0-0');
    server.end('gen_1-1-0');
    await began;
    expect([requested, records.length]).toEqual([['gen_1-0-0'], 0]);
    began = new Promise((resolve) => {
      appending = resolve;
    });
    permit();
    await began;
    expect([requested.length, records.length]).toEqual([2, 1]);
    permit();
    await run;
    expect(journaled(records)).toEqual([0, 1]);
  });

  it('journals a result once, although the server sends it twice', async () => {
    const { server, records, start } = setup();
    const run = start(2);
    await server.until('gen_1-1-0');
    server.end('gen_1-0-0');
    server.end('gen_1-0-0');
    server.end('gen_1-1-0');
    await run;
    expect(journaled(records)).toEqual([0, 1]);
  });

  it('fetches the result of a task that an earlier process submitted and whose result was read', async () => {
    const { server, records, start } = setup();
    server.submitted.set('gen_1-0-0', 1);
    server.end('gen_1-0-0', {}, false);
    await start(1);
    expect(journaled(records)).toEqual([0]);
  });

  it('leaves results of other runs and shards to them', async () => {
    const { server, records, start } = setup();
    const run = start(1, { ownsRow: (row) => row === 0 });
    await server.until('gen_1-0-0');
    server.end('gen_1-1-0');
    server.end('gen_2-0-0');
    server.push(resultOf());
    server.end('gen_1-0-0');
    await run;
    expect(journaled(records)).toEqual([0]);
  });

  it('submits its tasks to a server that has lost its store, and fetches what it missed', async () => {
    const { server, records, start } = setup();
    const run = start(2);
    await server.until('gen_1-1-0');
    server.submitted.delete('gen_1-0-0');
    server.end('gen_1-1-0', {}, false);
    server.push(new FloeError('schema_violation', 'query: after: is 7, but the newest cursor of this server is 0'));
    await server.until('gen_1-0-0');
    server.end('gen_1-0-0');
    await run;
    expect(new Set(journaled(records))).toEqual(new Set([0, 1]));
  });

  it('ends when the server refuses to return results twice in a row', async () => {
    const { server, start } = setup();
    const run = start(1);
    await server.until('gen_1-0-0');
    const refusal = new FloeError('schema_violation', 'query: consumer: is invalid');
    server.push(refusal);
    server.push(refusal);
    await expect(run).rejects.toBe(refusal);
  });

  it('compares sessions without a result with the server once a minute', async () => {
    const { server, clock, records, start } = setup();
    const run = start(1);
    await server.until('gen_1-0-0');
    server.end('gen_1-0-0', {}, false);
    clock.advance(60_000);
    await run;
    expect(journaled(records)).toEqual([0]);
  });

  it('ends when the first tasks are all refused, and skips refused rows otherwise', async () => {
    const refusal = new FloeError('unknown_harness', 'no harness x');
    const { server, records, start } = setup();
    server.refuse = () => {
      throw refusal;
    };
    await expect(start(6)).rejects.toBe(refusal);
    expect(journaled(records)).toHaveLength(4);

    const other = setup();
    const refused: string[] = [];
    other.server.refuse = ({ instruction }) => {
      if (instruction !== 'row 0') throw refusal;
    };
    const run = other.start(9, { onRefused: ({ where }) => refused.push(where) });
    await other.server.until('gen_1-0-0');
    other.server.end('gen_1-0-0');
    await run;
    expect(refused).toHaveLength(8);
    expect([other.index.refusalOf(0), other.index.refusalOf(8)]).toEqual([null, 'no harness x']);
  });

  it.each(['unauthorized', 'conflict', 'internal'] as const)('ends with the error %s of the server', async (code) => {
    const { server, start } = setup();
    const error = new FloeError(code, 'no');
    server.refuse = () => {
      throw error;
    };
    await expect(start(1)).rejects.toBe(error);
  });

  it('ends with the error of the journal', async () => {
    const { server, start } = setup();
    const full = new FloeError('setup_failed', 'the disk is full');
    const run = start(1, { journal: { append: () => Promise.reject(full) } });
    await server.until('gen_1-0-0');
    server.end('gen_1-0-0');
    await expect(run).rejects.toBe(full);
  });

  it('stops when its signal aborts', async () => {
    const { server, start, stop } = setup();
    const run = start(1);
    await server.until('gen_1-0-0');
    stop.abort(new Error('interrupted'));
    await expect(run).rejects.toThrow('interrupted');
  });
});
