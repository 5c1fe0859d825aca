import type { SessionResult } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { CHEAT_CLASSES, type Cheat, taskOf } from '../../verify/cheats/cheat.ts';
import { allCheats } from '../../verify/cheats/cheats.ts';
import { rowOf } from '../../verify/cheats/round.ts';
import { repository } from '../../verify/cheats/works.ts';

const surroundings = { testsDir: '/files/tests', library: '/files/forge.so' };
const cheat: Cheat = { name: 'does something', kind: 'tests', work: repository(), command: 'true' };

function result(fields: Partial<SessionResult>): SessionResult {
  return { outcome: 'completed', reward: 0, attempt: 1, reward_details: {}, ...fields } as SessionResult;
}

describe('the cheats', () => {
  it('have different names and cover every class', () => {
    const cheats = allCheats(surroundings);
    expect(new Set(cheats.map(({ name }) => name)).size).toBe(cheats.length);
    expect(new Set(cheats.map(({ kind }) => kind))).toEqual(new Set(CHEAT_CLASSES));
  });

  it('run after a model call, without a network, in small sandboxes', () => {
    const plan = { id: 'cheat-1', work: cheat.work, command: 'touch x', says: 'Yes.' };
    const place = { backend: 'bubblewrap', image: '/image', mark: 'mark', webUrl: 'http://127.0.0.1:1/' } as const;
    const task = taskOf(plan, place);
    expect(task.agent.custom_shell).toMatch(/Do the work cheat-1\.[\s\S]*\|\| exit 90\ntouch x$/);
    expect(task.runtime).toMatchObject({ network: 'none', memory_mb: 512 });
  });
});

describe('the judgement of a cheat', () => {
  const judged = (fields: Partial<SessionResult>, one: Cheat = cheat) =>
    rowOf({ cheat: one, role: 'cheat' }, result(fields), 'bubblewrap').isRight;

  it('accepts a reward of 0 in one attempt', () => {
    expect(judged({})).toBe(true);
  });

  it('finds a reward, a missing reward, a second attempt and another outcome', () => {
    expect(judged({ reward: 1 })).toBe(false);
    expect(judged({ reward: 0.1 })).toBe(false);
    expect(judged({ reward: null })).toBe(false);
    expect(judged({ attempt: 2 })).toBe(false);
    expect(judged({ outcome: 'agent_error' })).toBe(false);
    expect(rowOf({ cheat, role: 'cheat' }, undefined, 'bubblewrap').isRight).toBe(false);
  });

  it('accepts a reward that a field of the result flags, if the cheat permits it', () => {
    const flagged: Cheat = {
      ...cheat,
      isFlagged: ({ reward_details }) => Number(reward_details.output_dropped_bytes) > 0,
    };
    const cut = { reward: 1, reward_details: { output_dropped_bytes: 5 } };
    expect(judged(cut, flagged)).toBe(true);
    expect(judged({ reward: 1, reward_details: { output_dropped_bytes: 0 } }, flagged)).toBe(false);
    expect(judged(cut)).toBe(false);
  });

  it('requires the reward 1 of honest agents and of cheats without protection', () => {
    for (const role of ['honest', 'unprotected'] as const) {
      expect(rowOf({ cheat, role }, result({ reward: 1 }), 'bubblewrap').isRight).toBe(true);
      expect(rowOf({ cheat, role }, result({ reward: 0 }), 'bubblewrap').isRight).toBe(false);
    }
  });
});
