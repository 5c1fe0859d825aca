import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { CallFailures } from '../../../src/proxy/session/call-failures.ts';

const MAIN = { thread: 'main', callKind: 'main' } as const;
const SUBAGENT = { thread: 'a1', callKind: 'subagent' } as const;
const TITLE = { thread: 'main', callKind: 'title' } as const;
const ERROR = new FloeError('engine_error', 'the engine failed');
const OTHER = new FloeError('engine_unavailable', 'there is no engine');

describe('the failure of the main agent', () => {
  it('is the failure of its last call, whatever calls of others ended later', () => {
    const failures = new CallFailures();
    failures.callEnded(MAIN, null);
    failures.callEnded(SUBAGENT, ERROR);
    failures.callEnded(TITLE, OTHER);
    expect([failures.ofMain, failures.ofAgents]).toEqual([null, ERROR]);
    failures.callEnded(MAIN, OTHER);
    failures.callEnded(SUBAGENT, null);
    expect([failures.ofMain, failures.ofAgents]).toEqual([OTHER, null]);
  });

  it('is that of its sub-agents before one of its own calls has ended, and of auxiliary calls before theirs', () => {
    const failures = new CallFailures();
    failures.callEnded(TITLE, OTHER);
    expect(failures.ofMain).toBe(OTHER);
    failures.callEnded(SUBAGENT, ERROR);
    expect(failures.ofMain).toBe(ERROR);
  });
});
