import type { SessionFacts } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { barsOf, lanesOf } from '../../dashboard/src/timeline.ts';

function session(
  id: string,
  endedMs: number,
  totalMs: number | null,
  fields: Partial<SessionFacts> = {},
): SessionFacts {
  const none = { init_ms: null, ready_ms: null, running_ms: null, postrun_ms: null };
  const versions = { version: null, first_version: null, node_id: 'n1' };
  return { session_id: id, ended_ms: endedMs, total_ms: totalMs, ...none, ...versions, ...fields } as SessionFacts;
}

describe('the time line of sessions', () => {
  it('puts sessions that overlap into different lanes, and others into one', () => {
    const sessions = [
      session('d', 40, 10, { node_id: 'n0' }),
      session('c', 40, 15),
      session('b', 30, 20),
      session('a', 20, 20),
      session('queued', 5, null, { node_id: null }),
    ];
    const lanes = lanesOf(barsOf(sessions));
    expect(lanes.map(({ node, bars }) => [node, ...bars.map((bar) => bar.session.session_id)])).toEqual([
      ['n0', 'd'],
      ['n1', 'a', 'c'],
      ['n1', 'b'],
    ]);
  });

  it('shows how many steps the first token is older than the newest version at the end of the session', () => {
    const sessions = [
      session('c', 40, 10, { first_version: 'step-1', version: 'step-2' }),
      session('b', 30, 10, { first_version: 'step-3', version: 'step-4' }),
      session('a', 20, 10, { first_version: 'step-1', version: 'step-1' }),
      session('unknown', 10, 10, { first_version: 'abc', version: 'abc' }),
    ];
    const steps = barsOf(sessions).map(({ session: { session_id: id }, staleness }) => [id, staleness]);
    expect(steps).toEqual([
      ['unknown', null],
      ['a', 0],
      ['b', 1],
      ['c', 3],
    ]);
  });

  it('has the stages one after the other, and POSTRUN at the end', () => {
    const [bar] = barsOf([session('a', 100, 90, { init_ms: 10, ready_ms: 5, running_ms: 50, postrun_ms: 15 })]);
    expect(bar?.stages).toEqual([
      { name: 'INIT', startMs: 10, endMs: 20 },
      { name: 'READY', startMs: 20, endMs: 25 },
      { name: 'RUNNING', startMs: 25, endMs: 75 },
      { name: 'POSTRUN', startMs: 85, endMs: 100 },
    ]);
  });
});
