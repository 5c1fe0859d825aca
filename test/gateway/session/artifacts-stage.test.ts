import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { deliveryLength } from '../../../src/client/index.ts';
import { RESULT_LIMIT_BYTES } from '../../../src/core/envelope.ts';
import { FloeError } from '../../../src/core/errors.ts';
import { deliverable } from '../../../src/gateway/session/artifacts-stage.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { MAX_ARTIFACTS_MB } from '../../../src/schema/index.ts';
import { type BenchParts, bench, ENDED_WELL, settle, untilAborted } from '../bench.ts';

const MIB = 1024 * 1024;
const ARCHIVE = gzipSync('a tar archive');

const PACKED: BenchParts = {
  pack: async () => ({
    ...ENDED_WELL,
    stdout: `gzip 0\ntar 0\nhead 0\nbytes ${ARCHIVE.length}\narchive /tmp/tmp.1/packed\n`,
  }),
  readFile: async () => ARCHIVE,
};

describe('what the agent left behind', () => {
  it('is delivered with the result, and its size is in the summary', async () => {
    const { attempt, deps } = bench(PACKED);
    const result = await runSession(attempt, deps);
    expect(result?.artifacts).toEqual(ARCHIVE);
    expect(result?.summary).toMatchObject({
      outcome: 'completed',
      artifacts: { bytes: ARCHIVE.length, omitted: null },
    });
  });

  it('is packed after the agent was graded', async () => {
    const order: string[] = [];
    const { attempt, deps } = bench({
      pack: async (signal) => {
        order.push('packed');
        return PACKED.pack?.(signal) ?? ENDED_WELL;
      },
      evaluate: async () => {
        order.push('graded');
        return { reward: 1, details: {} };
      },
    });
    await runSession(attempt, deps);
    expect(order).toEqual(['graded', 'packed']);
  });

  it('is kept of an agent that ran out of time, and of one whose grading failed', async () => {
    const slow = bench({
      ...PACKED,
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      exec: untilAborted,
    });
    const ended = runSession(slow.attempt, slow.deps);
    await settle();
    slow.clock.advance(10_000);
    expect(await ended).toMatchObject({ summary: { outcome: 'agent_timeout' }, artifacts: ARCHIVE });

    const { attempt, deps } = bench({
      ...PACKED,
      evaluate: async () => {
        throw new FloeError('evaluator_failed', 'no report');
      },
    });
    expect(await runSession(attempt, deps)).toMatchObject({
      summary: { outcome: 'verifier_error' },
      artifacts: ARCHIVE,
    });
  });

  it('is not looked for when the task does not want it', async () => {
    const { attempt, deps } = bench({ ...PACKED, task: { artifacts: { collect: false } } });
    const result = await runSession(attempt, deps);
    expect(result).toMatchObject({ artifacts: null, summary: { artifacts: null, outcome: 'completed' } });
  });

  it('that takes too long to pack is left out, and the session ends as it had', async () => {
    const { attempt, deps, clock } = bench({ pack: untilAborted, task: { evaluator: { strategy: 'fake' } } });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(20_000);
    expect(await ended).toMatchObject({
      artifacts: null,
      summary: { outcome: 'completed', artifacts: { bytes: 0, omitted: 'packing took longer than 20 s' } },
    });
  });

  it('that cannot be packed is no failure of the session', async () => {
    const { attempt, deps } = bench({
      pack: async () => {
        throw new FloeError('runtime_failed', 'the sandbox is gone');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({
      outcome: 'completed',
      error: null,
      artifacts: { bytes: 0, omitted: 'the sandbox is gone' },
    });
  });

  it('is of no use once the session is cancelled while it is packed', async () => {
    const { attempt, deps, alive } = bench({ pack: untilAborted });
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('cancelled');
    expect(await ended).toBeNull();
    expect(alive.size).toBe(0);
  });

  it('is left out, with the reason, when the node shuts down while it is packed', async () => {
    const { attempt, deps } = bench({ pack: untilAborted });
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('shutdown');
    expect((await ended)?.summary).toMatchObject({
      outcome: 'completed',
      artifacts: { bytes: 0, omitted: expect.stringContaining('shutdown') },
    });
  });
});

describe('a result that no server would take with its artifacts', () => {
  it('is delivered without them, and says so', async () => {
    const { attempt, deps } = bench(PACKED);
    const result = await runSession(attempt, deps);
    if (result === null) throw new Error('there is a result');
    const bytes = deliveryLength(result);
    expect(deliverable(result, bytes)).toBe(result);
    const smaller = deliverable(result, bytes - 1);
    expect(smaller).toMatchObject({
      artifacts: null,
      trajectory: result.trajectory,
      summary: { outcome: 'completed' },
    });
    expect(smaller.summary.artifacts).toEqual({ bytes: 0, omitted: expect.stringContaining(String(bytes - 1)) });
  });

  it('is one with token data beyond any real session, whatever its task asks for', () => {
    expect(RESULT_LIMIT_BYTES - MAX_ARTIFACTS_MB * MIB).toBeGreaterThanOrEqual(64 * MIB);
  });
});
