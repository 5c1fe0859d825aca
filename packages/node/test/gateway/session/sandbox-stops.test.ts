import type { ExecResult, Runtime } from '@floe-rl/sandbox';
import { expect, it } from 'vitest';
import { SandboxStops } from '../../../src/gateway/session/sandbox-stops.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';

/** Makes sessions whose sandboxes stop only when the test ends them. */
function sessions(
  maxCount: number,
  maxMb = 100_000,
  exec: (signal: AbortSignal) => Promise<ExecResult> = async () => ENDED_WELL,
) {
  const alive = new Set<Runtime>();
  const ends: (() => void)[] = [];
  const stops = new SandboxStops({ maxCount, maxMb });
  const begin = () => {
    const { attempt, deps } = bench({
      start: async () => ({
        ...runtimeOf(exec, alive),
        stop: () => new Promise((resolve) => ends.push(resolve)),
      }),
    });
    let isEnded = false;
    const result = runSession(attempt, { ...deps, stops }).then((ended) => {
      isEnded = true;
      return ended;
    });
    return { attempt, result, hasEnded: () => isEnded };
  };
  const endSandboxes = (): void => {
    for (const end of ends.splice(0)) end();
  };
  return { begin, stops, endSandboxes };
}

it('a session ends before its sandboxes have ended', async () => {
  const { begin, stops, endSandboxes } = sessions(1);
  expect((await begin().result)?.summary.outcome).toBe('completed');
  expect(stops.sandboxes).toEqual(['ses_1-1-agent', 'ses_1-1-eval']);
  let isClosed = false;
  const closed = stops.close().then(() => {
    isClosed = true;
  });
  await settle();
  expect(isClosed).toBe(false);
  endSandboxes();
  await closed;
  expect(stops.sandboxes).toEqual([]);
});

it.each([
  ['too many sandboxes are being ended', 1, 100_000],
  ['the sandboxes that are being ended may use too much memory', 9, 3 * (4096 + 1024)],
])('a session waits while %s', async (_reason, maxCount, maxMb) => {
  const { begin, endSandboxes } = sessions(maxCount, maxMb);
  await begin().result;
  const second = begin();
  await settle();
  await settle();
  expect(second.hasEnded()).toBe(false);
  endSandboxes();
  expect((await second.result)?.summary.outcome).toBe('completed');
});

it('a session that was stopped waits for the end of its sandboxes', async () => {
  const { begin, endSandboxes, stops } = sessions(1, 100_000, untilAborted);
  const { attempt, result, hasEnded } = begin();
  await settle();
  attempt.stop('cancelled');
  await settle();
  await settle();
  expect([hasEnded(), stops.sandboxes]).toEqual([false, []]);
  endSandboxes();
  expect(await result).toBe(null);
});
