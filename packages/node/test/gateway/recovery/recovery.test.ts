import { mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { builderRegistry, CaptureJournal, type Completion } from '@floe-rl/capture';
import type { DeliveredResult } from '@floe-rl/client';
import { FloeError, VirtualClock } from '@floe-rl/core';
import { type Lease, leaseSchema } from '@floe-rl/core/schema';
import { createLogger } from '@floe-rl/observe';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { AttemptRecords, quarantine, readRecord } from '../../../src/gateway/recovery/attempt-records.ts';
import { Recovery } from '../../../src/gateway/recovery/recovery.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-recovery-'));
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

function leaseOf(session: string, over: Partial<Lease> = {}): Lease {
  return leaseSchema.parse({
    session_id: session,
    task_id: 'tsk_1',
    sample_index: 0,
    attempt: 1,
    epoch: 3,
    lease_seconds: 60,
    queued_ms: 0,
    task: { instruction: 'x', agent: { harness: 'shell', custom_shell: 'true' }, max_attempts: 1 },
    ...over,
  });
}

/** Builds `count` completions of one session, in which each continues the previous one. */
function turnsOf(session: string, count: number, attempt = 1): Completion[] {
  const t = new Transcript();
  let history = t.start();
  for (let i = 0; i < count; i++) {
    const call = t.call(history, { sessionId: session, attempt, completionId: `cpl_${session}_${attempt}_${i}` });
    history = t.after(history, call);
  }
  return t.completions;
}

type InterruptedAttempt = { readonly lease: Lease; readonly completions: readonly Completion[] };

/** Writes the files of a gateway that was killed after it had started these attempts and recorded their completions. */
async function recordInterrupted(attempts: readonly InterruptedAttempt[], segmentBytes = 100_000): Promise<void> {
  const records = await AttemptRecords.open(join(dir, 'attempts'));
  const journal = await CaptureJournal.open(join(dir, 'journal'), { segmentBytes });
  for (const { lease } of attempts) await begin(records, lease);
  const longest = Math.max(...attempts.map(({ completions }) => completions.length));
  for (let turn = 0; turn < longest; turn++) {
    for (const { completions } of attempts) {
      const completion = completions[turn];
      if (completion !== undefined) await journal.append(completion, completions.slice(0, turn));
    }
  }
  await journal.close();
}

function begin(records: AttemptRecords, lease: Lease): Promise<void> {
  return records.begin({ node_id: 'node', instance: 'proc_dead', owner_id: 'ab', begun_ms: 1_699_999_999_000, lease });
}

type RecoveringGateway = {
  readonly recovery: Recovery;
  readonly clock: VirtualClock;
  readonly delivered: DeliveredResult[];
  readonly outcomes: string[];
  readonly warnings: PassThrough;
  damaged: number;
  tries: number;
};

/**
 * Starts the recovery of a gateway that was restarted after a crash. `answer` returns the fake server's error for the partial result of a
 * session; `null` when the server accepts the result.
 */
async function startRecovery(answer: (session: string) => FloeError | null = () => null): Promise<RecoveringGateway> {
  const records = await AttemptRecords.open(join(dir, 'attempts'));
  const journal = await CaptureJournal.open(join(dir, 'journal'));
  const clock = new VirtualClock();
  const warnings = new PassThrough();
  const gateway: RecoveringGateway = {
    clock,
    delivered: [],
    outcomes: [],
    warnings,
    damaged: 0,
    tries: 0,
    recovery: new Recovery({
      clock,
      log: createLogger('test', 'warn', warnings),
      builders: builderRegistry(),
      engines: { info: () => [], modeOf: () => refuse(), detokenize: () => refuse() },
      nodeId: 'node',
      records: records.earlierFiles,
      segments: journal.earlierSegments,
      quarantineDir: join(dir, 'quarantine'),
      deliver: async (partial) => {
        gateway.tries++;
        const error = answer(partial.summary.session_id);
        if (error !== null) throw error;
        gateway.delivered.push(partial);
      },
      onRecovered: (outcome) => void gateway.outcomes.push(outcome),
      onDamaged: (count) => {
        gateway.damaged += count;
      },
    }),
  };
  gateway.recovery.start();
  return gateway;
}

function refuse(): never {
  throw new Error('there is no engine');
}

const ls = (name: string): Promise<string[]> => readdir(join(dir, name)).catch(() => []);

describe('Recovery', () => {
  it('delivers each attempt as it was recorded and removes its records', async () => {
    const one = { lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 5) };
    const two = { lease: leaseOf('ses.2', { attempt: 2 }), completions: turnsOf('ses.2', 3, 2) };
    // The journal segments are so small that each attempt has completions in several of them.
    await recordInterrupted([one, two], 1500);
    expect((await ls('journal')).length).toBeGreaterThan(2);
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered.map(({ summary }) => summary)).toMatchObject([
      { session_id: 'ses.2', attempt: 2, epoch: 3, completion_count: 3, outcome: 'infra_error', reward: null },
      {
        session_id: 'ses_1',
        attempt: 1,
        completion_count: 5,
        policy: { use: 'drop' },
        error: { code: 'node_died', details: { instance: 'proc_dead', damaged_records: 0 } },
      },
    ]);
    // The attempts ran from the start of the record to the end of their last completion, which took 2 ms.
    const ranMs = ({ completions }: InterruptedAttempt) =>
      (completions.at(-1)?.timestampMs ?? 0) + 2 - 1_699_999_999_000;
    expect(gateway.delivered.map(({ summary }) => summary.timing.total_ms)).toEqual([ranMs(two), ranMs(one)]);
    const last = gateway.delivered[1];
    const records = JSON.parse(String(last?.completions)) as { completion_id: string; response_ids: number[] }[];
    expect(records.map((record) => record.response_ids)).toEqual(one.completions.map((c) => [...c.responseIds]));
    const { traces } = JSON.parse(String(last?.trajectory)) as { traces: { completion_ids: string[] }[] };
    expect(traces[0]?.completion_ids).toEqual(one.completions.map((c) => c.completionId));
    expect([await ls('attempts'), await ls('journal'), await ls('quarantine')]).toEqual([[], [], []]);
  });

  it('delivers an attempt without completions and removes segments without undelivered attempts', async () => {
    await recordInterrupted([{ lease: leaseOf('ses_1'), completions: [] }]);
    const journal = await CaptureJournal.open(join(dir, 'journal'));
    await journal.append(turnsOf('ses_done', 1)[0] as Completion, []);
    await journal.close();
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered[0]?.summary).toMatchObject({ completion_count: 0, trace_count: 0 });
    expect(await ls('journal')).toEqual([]);
  });

  it('keeps an attempt that the server cannot accept yet and delivers all other attempts', async () => {
    await recordInterrupted([
      { lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 2) },
      { lease: leaseOf('ses_2'), completions: turnsOf('ses_2', 2) },
    ]);
    const full = new FloeError('store_unavailable', 'full');
    const gateway = await startRecovery((session) => (session === 'ses_1' ? full : null));
    await expect.poll(() => ls('attempts')).toEqual(['ses_1.1.3.rec']);
    expect(gateway.delivered.map(({ summary }) => summary.session_id)).toEqual(['ses_2']);
    expect(await ls('journal')).toHaveLength(1);
    await gateway.recovery.close();
    // A second recovery on the same files must deliver the attempt that the first recovery could not deliver.
    const next = await startRecovery();
    await next.recovery.done;
    expect(next.delivered.map(({ summary }) => [summary.session_id, summary.completion_count])).toEqual([['ses_1', 2]]);
    expect([await ls('attempts'), await ls('journal')]).toEqual([[], []]);
  });

  it.each(['not_found', 'stale_epoch', 'schema_violation', 'body_too_large'] as const)(
    'removes the records of an attempt that is refused with %s',
    async (code) => {
      await recordInterrupted([{ lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 1) }]);
      const gateway = await startRecovery(() => new FloeError(code, 'no', { session_id: 'ses_1' }));
      await gateway.recovery.done;
      expect(gateway.outcomes).toEqual(['refused']);
      expect([await ls('attempts'), await ls('journal')]).toEqual([[], []]);
    },
  );

  it.each(['conflict', 'unauthorized', 'forbidden', 'not_found', 'bad_request'] as const)(
    'keeps all records when the node itself is refused with %s',
    async (code) => {
      await recordInterrupted([{ lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 1) }]);
      const gateway = await startRecovery(() => new FloeError(code, 'no'));
      await expect.poll(() => gateway.tries).toBeGreaterThan(0);
      await gateway.recovery.close();
      expect([(await ls('attempts')).length, (await ls('journal')).length]).toEqual([1, 1]);
    },
  );

  it('continues with the other segments when one cannot be read or removed', async () => {
    await recordInterrupted([{ lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 2) }]);
    // A directory in place of a journal segment makes every read of the segment fail, as an I/O error of the disk does.
    await mkdir(join(dir, 'journal', 'capture-00000000.log'));
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered.map(({ summary }) => summary.completion_count)).toEqual([2]);
    expect([await ls('attempts'), await ls('journal')]).toEqual([[], ['capture-00000000.log']]);
  });

  it('keeps files in quarantine that have the same name', async () => {
    const kept = [];
    for (const text of ['one', 'two', 'three']) {
      await writeFile(join(dir, 'same.log'), text);
      kept.push(await quarantine(join(dir, 'same.log'), join(dir, 'quarantine')));
    }
    expect(await Promise.all(kept.map((path) => readFile(path, 'utf8')))).toEqual(['one', 'two', 'three']);
    expect(await ls('quarantine')).toEqual(['same.log', 'same.log.1', 'same.log.2']);
  });

  it('reads the complete records of a journal that was truncated anywhere', async () => {
    const completions = turnsOf('ses_1', 4);
    await recordInterrupted([{ lease: leaseOf('ses_1'), completions }]);
    const [name] = await ls('journal');
    const path = join(dir, 'journal', name as string);
    const whole = await readFile(path);
    const record = await readFile(join(dir, 'attempts', 'ses_1.1.3.rec'));
    await fc.assert(
      fc.asyncProperty(fc.nat(whole.length), async (cut) => {
        await writeFile(path, whole);
        await truncate(path, cut);
        await writeFile(join(dir, 'attempts', 'ses_1.1.3.rec'), record);
        const gateway = await startRecovery();
        await gateway.recovery.done;
        const [partial] = gateway.delivered;
        const kept = JSON.parse(String(partial?.completions ?? '[]')) as { completion_id: string }[];
        expect(kept.map((c) => c.completion_id)).toEqual(completions.slice(0, kept.length).map((c) => c.completionId));
        expect(gateway.damaged).toBe(0);
        expect([await ls('attempts'), await ls('journal'), await ls('quarantine')]).toEqual([[], [], []]);
      }),
      { numRuns: 25, examples: [[0], [whole.length]] },
    );
  });

  it('counts damaged records, builds from the rest and keeps the file in quarantine', async () => {
    const completions = turnsOf('ses_1', 4);
    await recordInterrupted([{ lease: leaseOf('ses_1'), completions }]);
    const [name = ''] = await ls('journal');
    const path = join(dir, 'journal', name);
    const data = await readFile(path);
    // One byte of the third record of the journal is changed. The fourth record refers to the third, so it cannot be decoded either.
    const at = data.indexOf(completions[2]?.completionId as string);
    data.writeUInt8(data.readUInt8(at) ^ 1, at);
    await writeFile(path, data);
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered[0]?.summary).toMatchObject({
      completion_count: 2,
      error: { details: { damaged_records: 1 } },
    });
    expect(gateway.damaged).toBe(2);
    expect([await ls('journal'), await ls('quarantine')]).toEqual([[], [name]]);
  });

  it('keeps a damaged attempt record and its segments in quarantine', async () => {
    await recordInterrupted([
      { lease: leaseOf('ses_1'), completions: turnsOf('ses_1', 2) },
      { lease: leaseOf('ses_2'), completions: turnsOf('ses_2', 2) },
    ]);
    const path = join(dir, 'attempts', 'ses_1.1.3.rec');
    const data = await readFile(path);
    data.writeUInt8(data.readUInt8(60) ^ 1, 60);
    await writeFile(path, data);
    const [segment = ''] = await ls('journal');
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered.map(({ summary }) => summary.session_id)).toEqual(['ses_2']);
    expect(gateway.damaged).toBe(1);
    expect((await ls('quarantine')).sort()).toEqual([segment, 'ses_1.1.3.rec'].sort());
    const warning = { path: join(dir, 'quarantine', 'ses_1.1.3.rec'), msg: expect.stringContaining('quarantine') };
    const logged = String(gateway.warnings.read()).trim().split('\n');
    expect(logged.map((line) => JSON.parse(line))).toContainEqual(expect.objectContaining(warning));
    expect([await ls('attempts'), await ls('journal')]).toEqual([[], []]);
  });

  it('drops an incomplete attempt record, since the attempt had not started', async () => {
    await recordInterrupted([{ lease: leaseOf('ses_1'), completions: [] }]);
    await truncate(join(dir, 'attempts', 'ses_1.1.3.rec'), 50);
    await writeFile(join(dir, 'attempts', 'ses_2.1.1.rec'), '');
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect([gateway.delivered, gateway.damaged]).toEqual([[], 0]);
    expect([await ls('attempts'), await ls('journal'), await ls('quarantine')]).toEqual([[], [], []]);
  });

  it('does nothing when there are no records', async () => {
    const gateway = await startRecovery();
    await gateway.recovery.done;
    expect(gateway.delivered).toEqual([]);
  });
});

describe('AttemptRecords', () => {
  it('reads back the record of a started attempt', async () => {
    const records = await AttemptRecords.open(join(dir, 'attempts'));
    const lease = leaseOf('a.b-1.2.3', { attempt: 12 });
    await begin(records, lease);
    const [path = ''] = (await AttemptRecords.open(join(dir, 'attempts'))).earlierFiles;
    expect((await readRecord(path)).lease).toEqual(lease);
    await records.end(lease);
    expect(await ls('attempts')).toEqual([]);
  });

  it('rejects when a record cannot be written', async () => {
    const records = await AttemptRecords.open(join(dir, 'attempts'));
    await rm(join(dir, 'attempts'), { recursive: true });
    await writeFile(join(dir, 'attempts'), '');
    await expect(begin(records, leaseOf('ses_1'))).rejects.toMatchObject({
      code: 'store_unavailable',
      message: expect.stringMatching(/^the start of the attempt cannot be recorded: ENOTDIR/),
    });
  });

  it('rejects a file that contains the record of another attempt as well', async () => {
    const records = await AttemptRecords.open(join(dir, 'attempts'));
    for (const session of ['ses_1', 'ses_2']) await begin(records, leaseOf(session));
    const [one = '', two = ''] = (await AttemptRecords.open(join(dir, 'attempts'))).earlierFiles;
    await writeFile(one, Buffer.concat([await readFile(one), await readFile(two)]));
    await expect(readRecord(one)).rejects.toMatchObject({ code: 'corrupt_record' });
    expect((await readRecord(two)).lease.session_id).toMatch(/^ses_[12]$/);
  });
});
