import { VirtualClock } from '@floe-rl/core';
import type { EngineInfo, Heartbeat } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { SentEngines } from '../src/sent-engines.ts';

type Report = NonNullable<Heartbeat['engines']>;

const engine = (fields: Partial<EngineInfo> = {}): EngineInfo =>
  ({ engine_id: 'e', healthy: true, inflight: 0, max_concurrency: 8, ...fields }) as EngineInfo;
const reportOf = (...info: EngineInfo[]): Report => ({ revision: 1, heard: 1, info, problems: [], unpaused: [] });

/** Sends a heartbeat that the server answers. Returns the state in the heartbeat; `null` when it was left out. */
function send(sent: SentEngines, ...info: EngineInfo[]): Report['info'] {
  const shortened = sent.shortened(reportOf(...info));
  shortened.sent();
  return shortened.engines?.info ?? null;
}

describe('the state of engines in heartbeats', () => {
  it('is left out while only the calls in flight change, and repeated after 150 ms for each engine', () => {
    const clock = new VirtualClock(0);
    const sent = new SentEngines(clock);
    const two = (inflight: number) => [engine({ inflight }), engine({ engine_id: 'f', held_back_ms: inflight })];
    expect(send(sent, ...two(0))).toHaveLength(2);
    clock.advance(299);
    expect(send(sent, ...two(3))).toBeNull();
    clock.advance(1);
    expect(send(sent, ...two(3))).toMatchObject([{ inflight: 3 }, { held_back_ms: 3 }]);
    expect(send(sent, ...two(4))).toBeNull();
  });

  it.each<[string, readonly EngineInfo[]]>([
    ['an engine responds no longer', [engine({ healthy: false })]],
    ['a limit changes', [engine({ max_concurrency: 9 })]],
    ['an engine was added', [engine(), engine({ engine_id: 'f' })]],
    ['an engine was removed', []],
  ])('is reported at once when %s', (_, changed) => {
    const sent = new SentEngines(new VirtualClock(0));
    send(sent, engine());
    expect(send(sent, ...changed)).toEqual(changed);
  });

  it('is repeated until a heartbeat with it was answered, and after a registration', () => {
    const sent = new SentEngines(new VirtualClock(0));
    expect(sent.shortened(reportOf(engine())).engines?.info).toHaveLength(1);
    expect(send(sent, engine())).toHaveLength(1);
    expect(send(sent, engine())).toBeNull();
    sent.forget();
    expect(send(sent, engine())).toHaveLength(1);
  });

  it('keeps the other fields of the report', () => {
    const sent = new SentEngines(new VirtualClock(0));
    send(sent, engine());
    const report = { ...reportOf(engine()), revision: 7, problems: [{ engine_id: 'x', message: 'gone' }] };
    expect(sent.shortened(report).engines).toEqual({ ...report, info: null });
    expect(sent.shortened(null).engines).toBeNull();
  });
});
