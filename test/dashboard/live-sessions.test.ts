import type { LiveSession, RolloutEvent } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import {
  MAX_SHOWN,
  type ShownSessions,
  withEvent,
  withLoaded,
  withoutGone,
} from '../../dashboard/src/live-sessions.ts';

const event = (id: string, fields: Partial<Extract<RolloutEvent, { session_id: string }>> = {}): RolloutEvent => ({
  type: 'session.state_changed',
  task_id: 't',
  session_id: id,
  sample_index: 0,
  status: 'RUNNING',
  turns: 1,
  sampled_tokens: 5,
  reward: null,
  outcome: null,
  ...fields,
});

const NONE: ShownSessions = new Map();
const idsOf = (shown: ShownSessions): string[] => [...shown.keys()];

describe('the live sessions of the page', () => {
  it('keep the newest reply while later events have none', () => {
    const first = withEvent(NONE, event('a', { last_reply: 'Hello.' }), null, 0);
    const second = withEvent(first, event('a', { turns: 2 }), null, 1000);
    expect(second.get('a')).toMatchObject({ turns: 2, last_reply: 'Hello.', updated_at: '1970-01-01T00:00:01.000Z' });
  });

  it('show the outcome of a session for ten seconds, also when the list is loaded meanwhile', () => {
    const running = withEvent(NONE, event('a'), null, 0);
    const ended = withEvent(running, event('a', { status: 'COMPLETED', outcome: 'completed' }), null, 0);
    const loaded = withLoaded(ended, { sessions: [], total: 0 });
    expect(withoutGone(loaded, 9_999).get('a')?.outcome).toBe('completed');
    expect(idsOf(withoutGone(loaded, 10_000))).toEqual([]);
  });

  it('drop sessions that the server no longer runs, and those that wait for another attempt', () => {
    const shown = withEvent(withEvent(NONE, event('a'), null, 0), event('b'), null, 0);
    const loaded = withLoaded(shown, { sessions: [{ session_id: 'b' } as LiveSession], total: 1 });
    expect(idsOf(loaded)).toEqual(['b']);
    expect(idsOf(withEvent(loaded, event('b', { status: 'QUEUED' }), null, 0))).toEqual([]);
  });

  it('are those of the chosen task, and at most as many as the page shows', () => {
    expect(withEvent(NONE, event('a'), 'other', 0)).toBe(NONE);
    let shown = NONE;
    for (let i = 0; i < MAX_SHOWN + 50; i++) shown = withEvent(shown, event(`s${i}`), null, 0);
    expect(shown.size).toBe(MAX_SHOWN);
  });
});
