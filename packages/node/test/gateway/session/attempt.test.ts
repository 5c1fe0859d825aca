import { FloeError, type Span, type VirtualClock } from '@floe-rl/core';
import type { AssistantMessage, SessionStatus, TaskRequestInput } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { Attempt } from '../../../src/gateway/session/attempt.ts';
import type { Failure } from '../../../src/gateway/session/failure.ts';
import { bench } from '../session-bench.ts';

type Setting = {
  readonly attempt: Attempt;
  readonly clock: VirtualClock;
  /** The calls of `onChange`. */
  readonly changes: (SessionStatus | null)[];
  /** The spans that were started, as `parent > name`, each followed by its error if it ended with one. */
  readonly spans: string[];
};

function setting(task: Partial<TaskRequestInput> = {}): Setting {
  const { attempt: source, clock } = bench({ task });
  // The node has been running for a while when the attempt begins.
  clock.advance(60_000);
  const changes: Setting['changes'] = [];
  const spans: string[] = [];
  const spanOf = (path: string): Span => ({
    traceparent: null,
    child: (name, attributes) => {
      spans.push(`start ${path} > ${name} ${JSON.stringify(attributes)}`);
      return spanOf(`${path} > ${name}`);
    },
    set: () => {},
    end: (error) => void spans.push(`end ${path}${error == null ? '' : `: ${error}`}`),
  });
  const lease = { ...source.lease, attempt: 3, epoch: 4, queued_ms: 7 };
  const attempt = new Attempt(lease, source.spec, clock, (entered) => void changes.push(entered), spanOf('attempt'));
  return { attempt, clock, changes, spans };
}

const STAGES = ['init_ms', 'ready_ms', 'running_ms', 'postrun_queue_ms', 'build_ms', 'eval_ms', 'postrun_ms'] as const;

const UNREACHED = Object.fromEntries(STAGES.map((key) => [key, null]));

describe('the timing of an attempt', () => {
  it.each(STAGES)('has the time that was measured as %s, and null for what was not measured', async (key) => {
    const { attempt, clock } = setting();
    clock.advance(5);
    await attempt.measure(key, async () => clock.advance(30));
    clock.advance(100);
    expect(attempt.timing()).toEqual({ queued_ms: 7, ...UNREACHED, [key]: 30, total_ms: 135 });
  });

  it('counts a running measurement up to now', async () => {
    const { attempt, clock } = setting();
    await attempt.measure('postrun_ms', async () => {
      clock.advance(20);
      await attempt.measure('eval_ms', async () => clock.advance(5));
      expect(attempt.timing()).toMatchObject({ postrun_ms: 25, eval_ms: 5 });
    });
  });

  it('adds up several measurements of one stage', async () => {
    const { attempt, clock } = setting();
    await attempt.measure('build_ms', async () => clock.advance(30));
    clock.advance(100);
    await attempt.measure('build_ms', async () => {
      clock.advance(5);
      expect(attempt.timing().build_ms).toBe(35);
    });
    expect(attempt.timing().build_ms).toBe(35);
  });

  it('has the duration of work that failed', async () => {
    const { attempt, clock } = setting();
    const work = async (): Promise<void> => {
      clock.advance(40);
      throw new Error('no space left');
    };
    await expect(attempt.measure('init_ms', work)).rejects.toThrow('no space left');
    clock.advance(1_000);
    expect(attempt.timing().init_ms).toBe(40);
  });
});

describe('the spans of an attempt', () => {
  it('are named after the stages, with the ids of session and attempt, and end with the error of the work', async () => {
    const { attempt, spans } = setting();
    const ids = JSON.stringify({ session_id: 'ses_1', attempt: 3 });
    await attempt.measure('postrun_ms', (span) => attempt.measure('eval_ms', async () => {}, span));
    const failing = attempt.measure('init_ms', () => Promise.reject(new Error('no space left')));
    await expect(failing).rejects.toThrow('no space left');
    expect(spans).toEqual([
      `start attempt > postrun ${ids}`,
      `start attempt > postrun > eval ${ids}`,
      'end attempt > postrun > eval',
      'end attempt > postrun',
      `start attempt > init ${ids}`,
      'end attempt > init: no space left',
    ]);
  });
});

describe('stop', () => {
  it.each([
    ['cancelled', 'cancelled'],
    ['lease_lost', 'stale_epoch'],
    ['shutdown', 'not_ready'],
  ] as const)('with reason %s aborts the attempt with the error %s; a later reason is ignored', (reason, code) => {
    const { attempt } = setting();
    expect([attempt.stopReason, attempt.signal.aborted]).toEqual([null, false]);
    attempt.stop(reason);
    attempt.stop(reason === 'cancelled' ? 'shutdown' : 'cancelled');
    expect(attempt.stopReason).toBe(reason);
    expect(attempt.signal.reason).toBeInstanceOf(FloeError);
    expect(attempt.signal.reason).toMatchObject({ code, message: `session ses_1 was stopped: ${reason}` });
  });
});

describe('an attempt', () => {
  it('reports its progress, and each change of it', () => {
    const { attempt, changes } = setting();
    attempt.enter('INIT');
    attempt.recordCalls(2, 50, { role: 'assistant', content: 'Done.' });
    attempt.enter('READY');
    expect(changes).toEqual(['INIT', null, 'READY']);
    expect(attempt.progress()).toEqual({
      session_id: 'ses_1',
      epoch: 4,
      status: 'READY',
      turns: 2,
      sampled_tokens: 50,
    });
    expect(attempt.names).toEqual({ task_id: 'tsk_1', session_id: 'ses_1', attempt: 3, epoch: 4 });
  });

  it('reports the beginning of a new reply to one heartbeat: its text, else its tool call, else its thinking', () => {
    const { attempt } = setting();
    const reply = (fields: Partial<AssistantMessage>): string | undefined => {
      attempt.recordCalls(1, 1, { role: 'assistant', content: null, ...fields });
      return attempt.report().last_reply;
    };
    const call = { id: 'c', type: 'function' as const, function: { name: 'move', arguments: '{"to":1}' } };
    expect(reply({ content: ' Hello. ', tool_calls: [call] })).toBe('Hello.');
    expect(reply({ content: '', tool_calls: [call], reasoning_content: 'hm' })).toBe('move {"to":1}');
    expect(reply({ reasoning_content: 'hm' })).toBe('hm');
    expect(reply({ content: 'x'.repeat(1000) })).toHaveLength(200);
    expect(attempt.report()).not.toHaveProperty('last_reply');
  });

  it('shows the stall watch that a stage was entered or made progress', () => {
    const { attempt } = setting();
    const counts = [attempt.progressCount];
    attempt.enter('INIT');
    counts.push(attempt.progressCount);
    attempt.recordProgress();
    counts.push(attempt.progressCount);
    expect(new Set(counts).size).toBe(3);
  });

  it('refuses a status that cannot follow, and keeps its own', () => {
    const { attempt, changes } = setting();
    expect(() => attempt.enter('RUNNING')).toThrow('a session cannot move from LEASED to RUNNING');
    expect([attempt.status, changes]).toEqual(['LEASED', []]);
  });

  it('keeps its first failure', () => {
    const { attempt } = setting();
    const failureOf = (outcome: Failure['outcome']): Failure => ({
      outcome,
      error: { code: 'internal', message: outcome, stage: null, details: {} },
    });
    attempt.fail(failureOf('infra_error'));
    attempt.fail(failureOf('agent_timeout'));
    expect(attempt.failure?.outcome).toBe('infra_error');
  });

  it("has the time budget of its task, by the task's clock", () => {
    const active = setting({ timeout_seconds: 30 });
    active.clock.advance(1_000);
    expect(active.attempt.timer.remainingMs()).toBe(30_000);
    const wall = setting({ timeout_seconds: 30, timeout_clock: 'wall' });
    wall.clock.advance(1_000);
    expect(wall.attempt.timer.remainingMs()).toBe(29_000);
  });

  it('begins without results, and as if its lease had just been renewed', () => {
    const { attempt, clock } = setting();
    expect(attempt).toMatchObject({ failure: null, agent: null, tallies: [], turns: 0, sampledTokens: 0 });
    expect(attempt.renewal).toEqual({ atMs: clock.monotonicMs(), pausedMs: 0 });
  });
});
