import { FloeError, VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import type { ExecRequest, ExecResult, Runtime } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import type { ReusableRuntime, StartSandbox } from '../../../src/gateway/session/reusable-runtime.ts';
import { ReusedRuntimes, type ReuseEvent } from '../../../src/gateway/session/reused-runtimes.ts';
import { ENDED_WELL, fakeSockets, runtimeOf, settle, untilAborted } from '../session-bench.ts';

const never = new AbortController().signal;
const FAILED: ExecResult = { ...ENDED_WELL, exitCode: 7, stderr: 'no server' };

type Settings = Readonly<Record<string, unknown>>;

type Options = {
  readonly maxCount?: number;
  readonly maxMb?: number;
  /** Runs a command in a sandbox. By default `serve` runs until it is aborted, and other commands succeed. */
  readonly exec?: (request: ExecRequest, signal: AbortSignal) => Promise<ExecResult> | undefined;
  readonly restore?: () => Promise<void>;
};

/** A pool of fake sandboxes that record their commands. */
function pool(options: Options = {}) {
  const clock = new VirtualClock();
  const events: ReuseEvent[] = [];
  const alive = new Set<Runtime>();
  const commands: string[] = [];
  const directories = new Set<string>();
  const egress: string[] = [];
  const warnings: unknown[] = [];
  const reused = new ReusedRuntimes({
    clock,
    log: { ...silentLogger, warn: (...entry: unknown[]) => void warnings.push(entry) } as typeof silentLogger,
    maxCount: options.maxCount ?? 2,
    maxMb: options.maxMb ?? 1_000_000,
    idleMs: 60_000,
    sockets: fakeSockets(directories),
    openEgress: async (_spec, socketPath) => {
      egress.push(`open ${socketPath}`);
      return { close: async () => void egress.push(`close ${socketPath}`) };
    },
    onEvent: (event) => events.push(event),
  });
  const start: StartSandbox = async () => {
    const runtime: Runtime = {
      ...runtimeOf(async () => ENDED_WELL, new Set()),
      exec: (request, signal) => {
        const command = String(request.command);
        commands.push(command);
        const own = options.exec?.(request, signal);
        if (own !== undefined) return own;
        return command === 'serve' ? untilAborted(signal) : Promise.resolve(ENDED_WELL);
      },
      snapshot: async () => {
        commands.push('snapshot');
        return { backend: 'bubblewrap', sandbox: 's', bytes: 1, release: async () => void commands.push('release') };
      },
      restore: async () => {
        commands.push('restore');
        await options.restore?.();
      },
      stop: async () => void alive.delete(runtime),
    };
    alive.add(runtime);
    return runtime;
  };
  const take = async (key: string, reuse: Settings = {}): Promise<ReusableRuntime> => {
    const spec = runtimeSpecSchema.parse({ reuse });
    if (spec.reuse === null) throw new Error('the task does not reuse sandboxes');
    return reused.take({ key, spec, reuse: spec.reuse }, () => {}, never);
  };
  const open = async (key: string, reuse: Settings = {}) => {
    const reusable = await take(key, reuse);
    const runtime = await reusable.open(start, {}, never);
    reused.recordUse(reusable);
    return { reusable, runtime };
  };
  /** Lets a session of the key run, and waits for the reset after it. */
  const session = async (key: string, reuse: Settings = {}): Promise<number> => {
    const { reusable, runtime } = await open(key, reuse);
    const { uses } = reusable;
    await runtime.stop();
    reused.giveBack(reusable);
    await settle();
    return uses;
  };
  return { clock, events, alive, commands, directories, egress, warnings, reused, start, take, open, session };
}

describe('ReusedRuntimes', () => {
  it('resets a sandbox and gives it to the next session with the same key', async () => {
    const { session, commands, events, egress } = pool();
    const reuse = { services: ['serve'], reset_command: 'clean', health_command: 'ask' };
    expect(await session('a', reuse)).toBe(1);
    expect(commands).toEqual(['snapshot', 'serve', 'ask', 'restore', 'serve', 'clean', 'ask']);
    expect(egress).toEqual([
      expect.stringMatching(/^open \/tmp\/u\w+-e$/),
      expect.stringMatching(/^close \/tmp\/u\w+-e$/),
    ]);
    commands.length = 0;
    expect(await session('a', reuse)).toBe(2);
    expect(commands).toEqual(['ask', 'restore', 'serve', 'clean', 'ask']);
    expect(await session('b', reuse)).toBe(1);
    expect(events).toEqual(['started', 'reused', 'started']);
  });

  it('lets services run on through a reset that restores no files', async () => {
    const { session, commands, open } = pool();
    const reuse = { services: ['serve'], restore: 'none', reset_command: 'clean' };
    await session('a', reuse);
    expect((await open('a', reuse)).reusable.uses).toBe(2);
    expect(commands).toEqual(['serve', 'true', 'clean', 'true', 'true']);
  });

  it('ends a sandbox after its last use', async () => {
    const { session, events, alive, directories, commands } = pool();
    const reuse = { max_uses: 2 };
    expect(await session('a', reuse)).toBe(1);
    expect(directories.size).toBe(2);
    expect(await session('a', reuse)).toBe(2);
    expect(events).toEqual(['started', 'reused', 'discarded']);
    expect(alive.size + directories.size).toBe(0);
    expect(commands.at(-1)).toBe('release');
    expect(await session('a', reuse)).toBe(1);
  });

  it('waits for a running reset rather than starting a sandbox', async () => {
    let finish = (): void => {};
    const { open, reused, events } = pool({
      restore: () =>
        new Promise((resolve) => {
          finish = resolve;
        }),
    });
    const first = await open('a');
    reused.giveBack(first.reusable);
    await settle();
    const second = open('a');
    const third = open('a');
    expect((await third).reusable.uses).toBe(1);
    finish();
    expect((await second).reusable.uses).toBe(2);
    expect(events).toEqual(['started', 'started', 'reused']);
  });

  it('starts another sandbox when the reset failed', async () => {
    const { session, events, alive } = pool({ restore: () => Promise.reject(new Error('no memory')) });
    await session('a');
    expect(alive.size).toBe(0);
    expect(await session('a')).toBe(1);
    expect(events).toEqual(['started', 'reset_failed', 'started', 'reset_failed']);
  });

  it('starts another sandbox when the reset command fails or takes too long', async () => {
    const results = [() => Promise.resolve(FAILED), (signal: AbortSignal) => untilAborted(signal)];
    const { session, events, clock } = pool({
      exec: ({ command }, signal) => (command === 'clean' ? results.shift()?.(signal) : undefined),
    });
    const reuse = { reset_command: 'clean', timeout_seconds: 5 };
    await session('a', reuse);
    expect(events).toEqual(['started', 'reset_failed']);
    await session('a', reuse);
    clock.advance(5_000);
    await settle();
    expect(events.slice(2)).toEqual(['started', 'reset_failed']);
    await session('a', reuse);
    expect(await session('a', reuse)).toBe(2);
  });

  it('ends a sandbox that is not healthy in time after a reset', async () => {
    let isHealthy = true;
    const { session, events, clock, alive } = pool({
      exec: ({ command }) => (command === 'ask' && !isHealthy ? Promise.resolve(FAILED) : undefined),
      restore: async () => {
        isHealthy = false;
      },
    });
    await session('a', { health_command: 'ask', timeout_seconds: 1 });
    for (let i = 0; i < 5; i++) {
      clock.advance(250);
      await settle();
    }
    expect(events).toEqual(['started', 'unhealthy']);
    expect(alive.size).toBe(0);
  });

  it('states how the health command failed last when it never succeeds', async () => {
    const results = [FAILED, { ...ENDED_WELL, exitCode: 2, stdout: 'no response\n' }];
    const { open, clock } = pool({
      exec: ({ command }, signal) =>
        command === 'ask' ? Promise.resolve(results.shift() ?? untilAborted(signal)) : undefined,
    });
    const opened = open('a', { health_command: 'ask', timeout_seconds: 3 });
    opened.catch(() => {});
    for (let i = 0; i < 12; i++) {
      await settle();
      clock.advance(250);
    }
    const message = 'the health check took longer than 3 s; its last try: it exited with 2: no response';
    await expect(opened).rejects.toMatchObject({ code: 'prepare_failed', message: `runtime.reuse: ${message}` });
  });

  it('waits until the health command succeeds before the first session', async () => {
    const answers = [FAILED, FAILED, ENDED_WELL];
    const { open, clock } = pool({
      exec: ({ command }) => (command === 'ask' ? Promise.resolve(answers.shift() ?? FAILED) : undefined),
    });
    const opened = open('a', { health_command: 'ask' });
    for (let i = 0; i < 2; i++) {
      await settle();
      clock.advance(250);
    }
    await opened;
    expect(answers).toEqual([]);
  });

  it('fails the first session, and leaves nothing, when a service ends', async () => {
    const { open, alive, take, reused, directories, clock } = pool({ exec: () => Promise.resolve(FAILED) });
    const reuse = { services: ['serve'], health_command: 'ask' };
    const opened = open('a', reuse);
    opened.catch(() => {});
    await settle();
    clock.advance(250);
    await expect(opened).rejects.toMatchObject({
      code: 'prepare_failed',
      message: expect.stringContaining('the service "serve" has ended: it exited with 7: no server'),
    });
    expect(alive.size).toBe(0);
    reused.giveBack(await take('b'));
    await settle();
    expect(directories.size).toBe(2);
  });

  it('replaces a sandbox whose service ended while no session used it', async () => {
    let end = (_result: ExecResult): void => {};
    const { session, events, open, reused } = pool({
      exec: ({ command }) =>
        command === 'serve'
          ? new Promise((resolve) => {
              end = resolve;
            })
          : undefined,
    });
    const reuse = { services: ['serve'], restore: 'none', reset_command: 'clean' };
    await session('a', reuse);
    end(FAILED);
    await settle();
    const { reusable } = await open('a', reuse);
    expect(reusable.uses).toBe(1);
    expect(events).toEqual(['started', 'unhealthy', 'started']);
    expect(reused.sandboxes).toEqual([reusable.name]);
    end(FAILED);
    reused.giveBack(reusable);
    await settle();
    expect(events.at(-1)).toBe('reset_failed');
  });

  it('keeps at most the configured number and memory, without those that were used least recently', async () => {
    const { session, events } = pool({ maxCount: 2 });
    for (const key of ['a', 'b', 'c']) await session(key);
    expect(events).toEqual(['started', 'started', 'started', 'discarded']);
    expect([await session('c'), await session('b'), await session('a')]).toEqual([2, 2, 1]);
    const small = pool({ maxMb: 4096 + 1024 });
    for (const key of ['a', 'b', 'a']) await small.session(key);
    expect(small.events).toEqual(['started', 'started', 'discarded', 'started', 'discarded']);
    expect(small.warnings).toEqual([]);
    const none = pool({ maxCount: 0, maxMb: 0 });
    for (const _ of [1, 2]) await none.session('a');
    expect(none.events).toEqual(['started', 'discarded', 'started', 'discarded']);
    expect(none.warnings).toEqual([]);
  });

  it('warns about a sandbox that is not kept because it is larger than all kept ones may be together', async () => {
    const { session, events, warnings } = pool({ maxMb: 4096 + 1023 });
    for (const _ of [1, 2]) await session('a');
    expect(events).toEqual(['started', 'discarded', 'started', 'discarded']);
    const limits = expect.objectContaining({ memory_mb: 5120, max_mb: 5119 });
    expect(warnings[0]).toEqual([limits, expect.stringContaining('reused_runtimes.max_mb')]);
  });

  it('ends a sandbox that no session used for the idle time', async () => {
    const { session, events, clock, alive, reused } = pool();
    await session('a');
    clock.advance(59_999);
    await settle();
    expect(alive.size).toBe(1);
    clock.advance(1);
    await settle();
    expect(alive.size).toBe(0);
    expect(events).toEqual(['started', 'discarded']);
    expect(reused.sandboxes).toEqual([]);
  });

  it('ends the unused sandboxes when the node drains, and the others when it closes', async () => {
    const { session, reused, open, directories, events } = pool();
    const { reusable } = await open('b');
    await session('a');
    await reused.drain();
    expect(reused.sandboxes).toEqual([reusable.name]);
    expect(events).toEqual(['started', 'started', 'discarded']);
    expect(await session('a')).toBe(1);
    expect(reused.sandboxes).toEqual([reusable.name]);
    await reused.close();
    expect(reused.sandboxes).toEqual([]);
    expect(directories.size).toBe(0);
  });

  it('closes although a sandbox does not end', async () => {
    const { reused, take, clock } = pool();
    const reusable = await take('a');
    const stuck = { ...runtimeOf(async () => ENDED_WELL, new Set()), exec: async () => ENDED_WELL };
    const start: StartSandbox = async () => ({
      ...stuck,
      snapshot: async () => ({ backend: 'local', sandbox: 's', bytes: 1, release: async () => {} }),
      stop: () => new Promise(() => {}),
    });
    await reusable.open(start, {}, never);
    const closed = reused.close();
    await settle();
    clock.advance(30_000);
    await closed;
    expect(reused.sandboxes).toEqual([]);
  });

  it('does not give a sandbox to another session when a process in it could not be ended', async () => {
    const stuck = new FloeError('cancelled', 'stopped', { unkillable: true });
    const { open, reused, events } = pool({
      exec: ({ command }) => (command === 'agent' ? Promise.reject(stuck) : undefined),
    });
    const { reusable, runtime } = await open('a');
    await expect(runtime.exec({ command: 'agent' }, never)).rejects.toBe(stuck);
    await runtime.stop();
    reused.giveBack(reusable);
    await settle();
    expect(events).toEqual(['started', 'discarded']);
  });

  it("ends a session's commands before the reset, and refuses its later ones", async () => {
    const { open, reused, commands } = pool({
      exec: ({ command }, signal) => (command === 'agent' ? untilAborted(signal) : undefined),
    });
    const { reusable, runtime } = await open('a');
    const running = runtime.exec({ command: 'agent' }, never);
    reused.giveBack(reusable);
    await expect(running).rejects.toMatchObject({ code: 'runtime_failed' });
    await settle();
    const late = runtime.exec({ command: 'late' }, never);
    await expect(late).rejects.toMatchObject({ code: 'runtime_failed' });
    expect(commands.slice(-2)).toEqual(['restore', 'true']);
    expect((await open('a')).reusable.uses).toBe(2);
  });
});
