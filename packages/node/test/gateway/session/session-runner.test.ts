import type { ProxySession, ProxySessionSpec } from '@floe-rl/capture';
import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { CallFailures } from '../../../../capture/src/proxy/session/call-failures.ts';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { sandboxNames } from '../../../src/gateway/session/session-sandboxes.ts';
import type { LaunchContext } from '../../../src/harnesses/harness.ts';
import { shellHarness } from '../../../src/harnesses/shell.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';

const hangingEval = {
  start: (purpose: 'agent' | 'eval', _: unknown, signal: AbortSignal) =>
    purpose === 'eval' ? untilAborted(signal) : Promise.resolve(runtimeOf(async () => ENDED_WELL, new Set())),
};

describe("the evaluator's fresh runtime", () => {
  it('fails the evaluation at its deadline when it never starts', async () => {
    const { attempt, deps, clock } = bench(hangingEval);
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(100_000);
    const result = await ended;
    expect(result?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
    expect(result?.summary.error?.code).toBe('deadline_exceeded');
  });

  it('may start during the time limit of INIT without taking time from the evaluation', async () => {
    let evaluated: AbortSignal | null = null;
    let ready = (): void => {};
    const { attempt, deps, clock, alive } = bench({
      start: async (purpose) => {
        if (purpose === 'eval') await new Promise<void>((resolve) => (ready = resolve));
        return runtimeOf(async () => ENDED_WELL, alive);
      },
      evaluate: async (_, signal) => {
        clock.advance(99_000);
        evaluated = signal;
        return { reward: 1, details: {} };
      },
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(99_000);
    ready();
    expect((await ended)?.summary).toMatchObject({ outcome: 'completed', reward: 1 });
    expect(evaluated).toMatchObject({ aborted: false });
  });

  it('is stopped before another one with a name of its own is started in its place', async () => {
    const started: string[] = [];
    const aliveAtStart: number[] = [];
    const { attempt, deps, alive } = bench({
      start: async (_, { name }) => {
        started.push(name);
        aliveAtStart.push(alive.size);
        return runtimeOf(async () => ENDED_WELL, alive);
      },
      evaluate: async ({ freshRuntime, renewFreshRuntime }, signal) => {
        const second = await renewFreshRuntime?.(signal);
        const third = await renewFreshRuntime?.(signal);
        expect(alive.has(third as never)).toBe(true);
        return { reward: new Set([freshRuntime, second, third]).size, details: {} };
      },
    });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'completed', reward: 3 });
    expect(started.map((name) => name.replace(/^.*-/, ''))).toEqual(['agent', 'eval', 'eval2', 'eval3']);
    expect(sandboxNames(attempt)).toEqual(started);
    expect(aliveAtStart).toEqual([0, 1, 1, 1]);
    expect(alive.size).toBe(0);
  });

  it('has the settings that the task replaces for it, and the user of another image', async () => {
    const specs: object[] = [];
    const { attempt, deps, alive } = bench({
      task: {
        runtime: {
          image: 'agents:1',
          user: 'dev',
          memory_mb: 500,
          eval_overrides: { image: 'graders:1', memory_mb: 900 },
        },
      },
      start: async (_, { spec }) => {
        specs.push(spec);
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    await runSession(attempt, deps);
    expect(specs).toMatchObject([
      { image: 'agents:1', user: 'dev', memory_mb: 500 },
      { image: 'graders:1', user: null, memory_mb: 900 },
    ]);
  });

  it('fails the session as that of the first one does when another one cannot be started', async () => {
    const { attempt, deps, alive } = bench({
      start: async (_, { name }) => {
        if (name.endsWith('-eval2')) throw new FloeError('runtime_failed', 'no space left');
        return runtimeOf(async () => ENDED_WELL, alive);
      },
      evaluate: async ({ renewFreshRuntime }, signal) => {
        await renewFreshRuntime?.(signal);
        return { reward: 1, details: {} };
      },
    });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'infra_error', reward: null });
    expect(alive.size).toBe(0);
  });

  it('is not waited for when the outcome needs no evaluation', async () => {
    const { attempt, deps } = bench({ ...hangingEval, session: { completionCount: 0 } });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'no_completions', reward: null });
  });

  it('is stopped when it starts after the session has ended', async () => {
    let ready = (): void => {};
    const { attempt, deps, alive } = bench({
      session: { completionCount: 0 },
      start: async (purpose) => {
        if (purpose === 'eval') await new Promise<void>((resolve) => (ready = resolve));
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    const ended = runSession(attempt, deps);
    await settle();
    ready();
    await ended;
    expect(alive.size).toBe(0);
  });
});

describe('the launch of the harness', () => {
  it("gets the command of floe's MCP server, and the variables of the task for its commands", async () => {
    let launched: LaunchContext | null = null;
    const launch = (context: LaunchContext) => {
      launched = context;
      return shellHarness.launch(context);
    };
    const { attempt, deps } = bench({
      task: {
        agent: { harness: 'shell', custom_shell: 'true', env: { B: 'agent' } },
        runtime: { env: { A: 'runtime', B: 'runtime' } },
      },
      start: async () => ({ ...runtimeOf(async () => ENDED_WELL, new Set()), mcpCommand: ['/.floe/node', 'mcp.js'] }),
    });
    await runSession(attempt, { ...deps, harnesses: new Map([['shell', { ...shellHarness, launch }]]) });
    expect(launched).toMatchObject({
      toolServer: { command: ['/.floe/node', 'mcp.js'], env: { A: 'runtime', B: 'agent' } },
    });
  });
});

describe('the evaluation', () => {
  it('has a time budget of its own, so that an agent that used up its time is graded', async () => {
    const { attempt, deps, clock } = bench({
      task: { timeout_seconds: 100, evaluator: { strategy: 'fake' } },
      exec: untilAborted,
      evaluate: async () => ({ reward: 0, details: { graded: true } }),
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(100_000);
    expect((await ended)?.summary).toMatchObject({
      outcome: 'agent_timeout',
      reward: 0,
      reward_details: { graded: true },
    });
  });

  it.each(['truncated_turns', 'truncated_context'] as const)(
    'leaves the reward null when it fails after %s, instead of giving 0',
    async (outcome) => {
      const failures = new CallFailures();
      const overflow = new FloeError('engine_rejected', 'too long', { context_overflow: true });
      failures.callEnded({ thread: 'main', callKind: 'main' }, overflow);
      const { attempt, deps } = bench({
        task: { evaluator: { strategy: 'fake' } },
        exec: async () => {
          if (outcome === 'truncated_turns') throw new FloeError('turn_limit', 'all turns are used');
          return ENDED_WELL;
        },
        session: outcome === 'truncated_context' ? { failures } : {},
        evaluate: async () => {
          throw new FloeError('evaluator_failed', 'no report');
        },
      });
      expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome, reward: null });
    },
  );

  it('ends after `timeout_seconds` when the task sets no budget for it, with a reward of null', async () => {
    const { attempt, deps, clock } = bench({
      task: { timeout_seconds: 100, evaluator: { strategy: 'fake' } },
      evaluate: (_, signal) => untilAborted(signal),
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(100_000);
    expect((await ended)?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
  });
});

describe("the session's proxy", () => {
  it('has the time limit of the agent, and is closed when it opens after that', async () => {
    let open = (_session: ProxySession): void => {};
    let closed = 0;
    const { attempt, deps, clock } = bench({
      task: { evaluator: null, budgets: { agent: 30 } },
      openSession: () =>
        new Promise((resolve) => {
          open = resolve;
        }),
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(30_000);
    expect((await ended)?.summary).toMatchObject({ outcome: 'infra_error', error: { code: 'setup_failed' } });
    open({ close: async () => void closed++ } as ProxySession);
    await settle();
    expect(closed).toBe(1);
  });
});

describe('the start of an attempt', () => {
  it('is recorded before its sandbox is started', async () => {
    const order: string[] = [];
    const { attempt, deps, alive } = bench({
      recordStart: async () => void order.push('recorded'),
      start: async () => {
        order.push('sandbox');
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    await runSession(attempt, deps);
    expect(order.slice(0, 2)).toEqual(['recorded', 'sandbox']);
  });

  it('fails as infra_error without a sandbox when it cannot be recorded', async () => {
    let started = 0;
    const { attempt, deps } = bench({
      recordStart: async () => {
        throw new FloeError('store_unavailable', 'the disk is full');
      },
      start: async () => {
        started++;
        throw new Error('must not start');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({
      outcome: 'infra_error',
      error: { code: 'store_unavailable' },
    });
    expect(started).toBe(0);
  });
});

describe('an attempt whose evaluator the node refuses', () => {
  it('fails as env_error before its sandbox is started', async () => {
    const { attempt, deps, alive } = bench({
      checkEvaluator: () => {
        throw new FloeError('schema_violation', 'evaluator.config.words: must be positive');
      },
      start: () => Promise.reject(new Error('started')),
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({
      outcome: 'env_error',
      error: { code: 'schema_violation', stage: 'init' },
    });
    expect(alive.size).toBe(0);
  });
});

describe('the proxy session of an attempt', () => {
  it.each([
    [undefined, null],
    ['copilot_cli', 'copilot_cli'],
  ] as const)('labels the calls of a shell command by the rules that the task names: %s', async (named, rules) => {
    const opened: ProxySessionSpec[] = [];
    const { attempt, deps } = bench({
      task: { agent: { harness: 'shell', custom_shell: 'true', call_rules: named } },
      openSession: async (spec) => {
        opened.push(spec);
        throw new FloeError('setup_failed', 'the test needs no session');
      },
    });
    await runSession(attempt, deps);
    expect(opened.map(({ callRules }) => callRules)).toEqual([rules]);
  });
});

describe('a model call beyond `agent.max_turns`', () => {
  it('ends the run with an error that names the limit', async () => {
    let reachLimit = (): void => {};
    const { attempt, deps } = bench({
      task: { agent: { harness: 'shell', custom_shell: 'true', max_turns: 3 } },
      exec: (signal) => {
        reachLimit();
        return untilAborted(signal);
      },
    });
    const open = (spec: ProxySessionSpec) => {
      reachLimit = () => spec.onTurnLimit?.();
      return deps.proxy.open(spec);
    };
    expect((await runSession(attempt, { ...deps, proxy: { ...deps.proxy, open } }))?.summary).toMatchObject({
      outcome: 'truncated_turns',
      error: { code: 'turn_limit', message: expect.stringContaining('agent.max_turns'), details: { turns: 3 } },
    });
  });
});

describe('an attempt that loses its lease', () => {
  it('returns a partial result that is never trained', async () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(t.after(h0, c0));
    const { attempt, deps, alive } = bench({
      exec: (signal) => {
        attempt.stop('lease_lost');
        return untilAborted(signal);
      },
      session: { completions: () => t.completions, completionCount: 2 },
    });
    const partial = await runSession(attempt, deps);
    expect(partial?.summary).toMatchObject({
      outcome: 'infra_error',
      completion_count: 2,
      reward: null,
      error: { code: 'stale_epoch' },
    });
    expect(JSON.parse(String(partial?.completions))).toHaveLength(2);
    expect(JSON.parse(String(partial?.trajectory))).toMatchObject({ status: 'ERROR' });
    expect(alive.size).toBe(0);
  });

  it('returns null when no model call was recorded', async () => {
    const { attempt, deps } = bench({
      exec: (signal) => {
        attempt.stop('lease_lost');
        return untilAborted(signal);
      },
    });
    expect(await runSession(attempt, deps)).toBeNull();
  });
});

describe('the end of a session', () => {
  it('stops the sandbox even if the proxy session fails to close', async () => {
    let closes = 0;
    const { attempt, deps, alive } = bench({
      session: {
        close: async () => {
          if (++closes > 1) throw new Error('close failed');
        },
      },
    });
    expect((await runSession(attempt, deps))?.summary.outcome).toBe('completed');
    expect(closes).toBeGreaterThan(1);
    expect(alive.size).toBe(0);
  });

  it('does not wait indefinitely for a sandbox that does not stop', async () => {
    const { attempt, deps, clock, alive } = bench({
      task: { evaluator: null },
      start: async () => ({ ...runtimeOf(async () => ENDED_WELL, alive), stop: () => new Promise<void>(() => {}) }),
    });
    const ended = runSession(attempt, deps);
    for (let i = 0; i < 5; i++) await settle();
    clock.advance(30_000);
    expect((await ended)?.summary.outcome).toBe('completed');
  });

  it('closes the proxy session on cancellation while its processes are still ending', async () => {
    let closed = false;
    let end = (): void => {};
    const { attempt, deps } = bench({
      exec: (signal) =>
        new Promise((_, reject) => {
          end = () => reject(signal.reason);
        }),
      session: {
        close: async () => {
          closed = true;
        },
      },
    });
    const ended = runSession(attempt, deps);
    await settle();
    expect(closed).toBe(false);
    attempt.stop('cancelled');
    await settle();
    expect(closed).toBe(true);
    end();
    expect(await ended).toBeNull();
  });
});
