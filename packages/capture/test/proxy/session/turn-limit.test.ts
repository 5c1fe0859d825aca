import { FloeError } from '@floe-rl/core';
import { type CallKind, callKindSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TurnLimit } from '../../../src/proxy/session/turn-limit.ts';

/** Returns the error that refuses a call; `null` when the call is admitted. */
function refusal(limit: TurnLimit, kind: CallKind): FloeError | null {
  try {
    limit.refuse(kind);
    return null;
  } catch (error) {
    if (error instanceof FloeError) return error;
    throw error;
  }
}

function call(limit: TurnLimit, kind: CallKind, answered = true): boolean {
  if (refusal(limit, kind) !== null) return false;
  limit.callStarted(kind);
  limit.callEnded(kind, answered);
  return true;
}

const SIDE_KINDS = callKindSchema.options.filter((kind) => kind !== 'main');

describe('a bound on turns', () => {
  it.each(SIDE_KINDS)('does not allow unlimited calls of kind %s', (kind) => {
    let limitCalls = 0;
    const limit = new TurnLimit(2, () => void limitCalls++);
    let calls = 0;
    while (calls < 10_000 && call(limit, kind)) calls++;
    expect(calls).toBe(256);
    expect(limitCalls).toBe(1);
    const refused = refusal(limit, kind);
    expect(refused).toMatchObject({ code: 'turn_limit', details: { turns: 2, calls: 256 } });
    expect(refused?.message).not.toMatch(/context|too long|token|length|exceed|maximum|window|prompt/i);
    // The limit on calls of any kind is reached, so calls of the main agent are refused as well, although the main agent has turns left.
    expect(refusal(limit, 'main')).toMatchObject({ code: 'turn_limit' });
    expect(limitCalls).toBe(1);
  });

  it('bounds the calls by a number that grows with the allowed turns', () => {
    const limit = new TurnLimit(100, () => undefined);
    let calls = 0;
    while (calls < 10_000 && call(limit, SIDE_KINDS[calls % SIDE_KINDS.length] ?? 'title')) calls++;
    expect(calls).toBe(3200);
  });

  it('still allows calls of sub-agents when the main agent has used its turns', () => {
    const limit = new TurnLimit(1, () => undefined);
    expect(call(limit, 'main')).toBe(true);
    expect(call(limit, 'main')).toBe(false);
    expect(call(limit, 'subagent')).toBe(true);
  });

  it('does not count calls without a usable reply', () => {
    const limit = new TurnLimit(1, () => undefined);
    for (let i = 0; i < 1000; i++) expect(call(limit, 'main', false)).toBe(true);
    expect(call(limit, 'main')).toBe(true);
  });

  it('refuses nothing when it is absent', () => {
    const limit = new TurnLimit(null, () => expect.unreachable());
    for (let i = 0; i < 1000; i++) expect(call(limit, i % 2 === 0 ? 'main' : 'title')).toBe(true);
  });

  it('is never exceeded, whatever runs concurrently', () => {
    const action = fc.record({ kind: fc.constantFrom<CallKind>('main', 'subagent', 'title'), answered: fc.boolean() });
    fc.assert(
      fc.property(fc.array(action, { maxLength: 400 }), fc.integer({ min: 1, max: 6 }), (actions, parallel) => {
        const limit = new TurnLimit(3, () => undefined);
        const running: typeof actions = [];
        const recorded = { main: 0, all: 0 };
        for (const next of actions) {
          if (refusal(limit, next.kind) === null) {
            limit.callStarted(next.kind);
            running.push(next);
          }
          const done = running.length >= parallel ? running.shift() : undefined;
          if (done === undefined) continue;
          limit.callEnded(done.kind, done.answered);
          if (done.answered && done.kind === 'main') recorded.main++;
          if (done.answered) recorded.all++;
        }
        expect(recorded.main).toBeLessThanOrEqual(3);
        expect(recorded.all).toBeLessThanOrEqual(256);
      }),
    );
  });
});
