import { describe, expect, it } from 'vitest';
import { SimProcess } from '../../../verify/control-plane/sim-process.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';

describe('a simulated process', () => {
  it('that is killed does nothing more, though answers arrive and its timers are due', async () => {
    const timeline = new Timeline();
    const life = new SimProcess('a', timeline);
    const done: string[] = [];
    life.clock.schedule(5, () => done.push('timer'));
    void life.outside(timeline.pause(5)).then(() => done.push('answer'));
    timeline.after(3, () => life.kill());
    await timeline.run(() => false, 100);
    expect(done).toEqual([]);
    expect(life.alive).toBe(false);
  });

  it('that stands still does everything in order once it goes on', async () => {
    const timeline = new Timeline();
    const life = new SimProcess('a', timeline);
    const done: [string, number][] = [];
    life.clock.schedule(5, () => done.push(['timer', timeline.nowMs]));
    void life.outside(timeline.pause(6)).then(() => done.push(['answer', timeline.nowMs]));
    timeline.after(3, () => life.pause());
    timeline.after(50, () => life.resume());
    await timeline.run(() => false, 100);
    expect(done).toEqual([
      ['timer', 50],
      ['answer', 50],
    ]);
  });

  it('has a monotonic clock that drifts and a wall clock that jumps', async () => {
    const timeline = new Timeline();
    let jumpMs = 0;
    const life = new SimProcess('a', timeline, 1.5, () => jumpMs);
    const wallMs = life.clock.nowMs();
    let firedMs = 0;
    life.clock.schedule(30, () => {
      firedMs = timeline.nowMs;
    });
    jumpMs = -3_600_000;
    await timeline.run(() => false, 100);
    expect(firedMs).toBe(20);
    expect(life.clock.monotonicMs()).toBe(30);
    expect(life.clock.nowMs()).toBe(wallMs + 20 - 3_600_000);
  });
});
