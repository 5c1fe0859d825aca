import { taskEngineSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { ThreadPools } from '../../../src/proxy/session/thread-pools.ts';

const pools = () => new ThreadPools(taskEngineSchema.parse({ pool: 'policy', extra_pools: ['large'] }));

describe('the engine pools of a session', () => {
  it("are the task's by default, and one that the task lists for a thread that names it", () => {
    const session = pools();
    expect(session.of({ thread: 'main' })).toBe('policy');
    expect(session.of({ thread: 'critic', enginePool: 'large' })).toBe('large');
    expect(session.of({ thread: 'critic', enginePool: 'large' })).toBe('large');
    expect(session.of({ thread: 'helper', enginePool: 'policy' })).toBe('policy');
  });

  it.each([
    ['that the task does not list', { thread: 'critic', enginePool: 'other' }, /engine\.extra_pools has: large/],
    [
      'for the main agent',
      { thread: 'main', enginePool: 'large' },
      /the main agent uses the engine pool of the task, policy/,
    ],
  ])('refuse a pool %s', (_, call, message) => {
    expect(() => pools().of(call)).toThrow(message);
    expect(() => pools().of(call)).toThrow(expect.objectContaining({ code: 'unsupported' }));
  });

  it('refuse another pool for a thread that has used one', () => {
    const session = pools();
    session.of({ thread: 'critic', enginePool: 'large' });
    expect(() => session.of({ thread: 'critic' })).toThrow(
      expect.objectContaining({
        code: 'conflict',
        message: expect.stringContaining('critic uses the engine pool large'),
      }),
    );
  });
});
