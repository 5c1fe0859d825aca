import { describe, expect, it } from 'vitest';
import { SimProcess } from '../../../verify/control-plane/sim-process.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';

describe('SimProcess', () => {
  it('runs nothing after it is killed, although replies arrive and timers are due', async () => {
    const timeline = new Timeline();
    const simulated = new SimProcess('a', timeline);
    const done: string[] = [];
    simulated.clock.schedule(5, () => done.push('timer'));
    void simulated.receive(timeline.pause(5)).then(() => done.push('reply'));
    timeline.after(3, () => simulated.kill());
    await timeline.run(() => false, 100);
    expect(done).toEqual([]);
    expect(simulated.alive).toBe(false);
  });

  it('runs the actions that arrived during a pause in order after it is resumed', async () => {
    const timeline = new Timeline();
    const simulated = new SimProcess('a', timeline);
    const done: [string, number][] = [];
    simulated.clock.schedule(5, () => done.push(['timer', timeline.nowMs]));
    void simulated.receive(timeline.pause(6)).then(() => done.push(['reply', timeline.nowMs]));
    timeline.after(3, () => simulated.pause());
    timeline.after(50, () => simulated.resume());
    await timeline.run(() => false, 100);
    expect(done).toEqual([
      ['timer', 50],
      ['reply', 50],
    ]);
  });

  it('has a monotonic clock that drifts and a wall clock that jumps', async () => {
    const timeline = new Timeline();
    let jumpMs = 0;
    const simulated = new SimProcess('a', timeline, 1.5, () => jumpMs);
    const wallMs = simulated.clock.nowMs();
    let firedMs = 0;
    simulated.clock.schedule(30, () => {
      firedMs = timeline.nowMs;
    });
    jumpMs = -3_600_000;
    await timeline.run(() => false, 100);
    expect(firedMs).toBe(20);
    expect(simulated.clock.monotonicMs()).toBe(30);
    expect(simulated.clock.nowMs()).toBe(wallMs + 20 - 3_600_000);
  });
});
