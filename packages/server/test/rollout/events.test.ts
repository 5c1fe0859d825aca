import { describe, expect, it } from 'vitest';
import { EventBus, eventFeed } from '../../src/rollout/events.ts';

describe('EventFeed', () => {
  it('keeps the numbers of events while it drops the oldest to stay within its limit', () => {
    const bus = new EventBus();
    const feed = eventFeed(bus, 1000);
    let notified = 0;
    const unsubscribe = feed.subscribe(() => notified++);
    for (let i = 0; i < 100; i++) bus.publish({ type: 'task.created', task_id: `t${i}`, total_sessions: 1 });
    unsubscribe();
    bus.publish({ type: 'task.created', task_id: 't100', total_sessions: 1 });
    expect([notified, feed.end]).toEqual([100, 101]);
    expect(feed.at(0)).toBeNull();
    expect(feed.at(100)).toBe(
      'event: task.created\ndata: {"type":"task.created","task_id":"t100","total_sessions":1}\n\n',
    );
    expect(feed.at(101)).toBeUndefined();
    const kept = Array.from({ length: 101 }, (_, i) => feed.at(i)).filter((text) => text !== null);
    expect(kept.join('').length).toBeLessThanOrEqual(1000);
    expect(kept.length).toBeGreaterThan(3);
  });
});
