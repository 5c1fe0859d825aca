import { getEventListeners } from 'node:events';
import { describe, expect, it } from 'vitest';
import { abortAfter, abortLate, linkAbort, onAbort, raceAbort } from '../src/abort.ts';
import { VirtualClock } from '../src/virtual-clock.ts';

const listenerCount = (signal: AbortSignal): number => getEventListeners(signal, 'abort').length;

describe('onAbort', () => {
  it('runs the callback once when the signal aborts', () => {
    const controller = new AbortController();
    let calls = 0;
    onAbort(controller.signal, () => calls++);
    controller.abort();
    controller.abort();
    expect(calls).toBe(1);
  });

  it('runs the callback immediately when the signal has already aborted', () => {
    let calls = 0;
    onAbort(AbortSignal.abort(), () => calls++);
    expect(calls).toBe(1);
  });

  it('removes the listener when it is released', () => {
    const controller = new AbortController();
    let calls = 0;
    const release = onAbort(controller.signal, () => calls++);
    expect(listenerCount(controller.signal)).toBe(1);
    release();
    expect(listenerCount(controller.signal)).toBe(0);
    controller.abort();
    expect(calls).toBe(0);
  });

  it('does nothing without a signal', () => {
    onAbort(undefined, () => expect.unreachable())();
  });
});

describe('raceAbort', () => {
  it('settles as the promise does and leaves no listener', async () => {
    const { signal } = new AbortController();
    expect(await raceAbort(Promise.resolve(7), signal)).toBe(7);
    await expect(raceAbort(Promise.reject(new Error('failed')), signal)).rejects.toThrow('failed');
    await Promise.resolve();
    expect(listenerCount(signal)).toBe(0);
  });

  it('rejects with the reason of a signal that aborts first and ignores a later rejection', async () => {
    const controller = new AbortController();
    let fail = (_: Error): void => {};
    const work = new Promise<never>((_, reject) => {
      fail = reject;
    });
    const raced = raceAbort(work, controller.signal);
    controller.abort(new Error('stopped'));
    await expect(raced).rejects.toThrow('stopped');
    fail(new Error('too late'));
  });

  it('rejects when the signal has already aborted', async () => {
    await expect(raceAbort(Promise.resolve(1), AbortSignal.abort(new Error('stopped')))).rejects.toThrow('stopped');
  });
});

describe('linkAbort', () => {
  it('aborts with the reason of the first parent that aborts and releases the others', () => {
    const [first, second] = [new AbortController(), new AbortController()];
    const linked = linkAbort(first.signal, undefined, second.signal);
    second.abort('second');
    first.abort('first');
    expect(linked.signal.reason).toBe('second');
    expect(listenerCount(first.signal)).toBe(0);
  });

  it('has already aborted when a parent has, and adds no listener to any parent', () => {
    const [live, dead] = [new AbortController(), new AbortController()];
    dead.abort('dead');
    const linked = linkAbort(live.signal, dead.signal);
    expect(linked.signal.reason).toBe('dead');
    expect(listenerCount(live.signal)).toBe(0);
  });

  it('aborts by itself without aborting its parents', () => {
    const parent = new AbortController();
    const linked = linkAbort(parent.signal);
    linked.abort('own');
    expect(linked.signal.reason).toBe('own');
    expect(parent.signal.aborted).toBe(false);
  });

  it('does not abort with a parent after its release', () => {
    const parent = new AbortController();
    const linked = linkAbort(parent.signal);
    linked.release();
    expect(listenerCount(parent.signal)).toBe(0);
    parent.abort();
    expect(linked.signal.aborted).toBe(false);
  });
});

describe('abortAfter', () => {
  it('aborts with its own reason when the time is up', () => {
    const clock = new VirtualClock();
    const limited = abortAfter(clock, 100, () => 'late');
    clock.advance(99);
    expect(limited.signal.aborted).toBe(false);
    clock.advance(1);
    expect(limited.signal.reason).toBe('late');
  });

  it('aborts earlier when a parent does, and keeps that reason', () => {
    const clock = new VirtualClock();
    const parent = new AbortController();
    const limited = abortAfter(clock, 100, () => 'late', parent.signal);
    parent.abort('parent');
    clock.advance(200);
    expect(limited.signal.reason).toBe('parent');
  });

  it('cancels the deadline and its listeners when it is released', () => {
    const clock = new VirtualClock();
    const parent = new AbortController();
    const limited = abortAfter(clock, 100, () => 'late', parent.signal);
    limited.release();
    expect(clock.fireNext()).toBe(false);
    expect(listenerCount(parent.signal)).toBe(0);
  });
});

describe('abortLate', () => {
  it('aborts some time after its parent, with the parent’s reason', () => {
    const clock = new VirtualClock();
    const parent = new AbortController();
    const late = abortLate(clock, 100, parent.signal);
    clock.advance(1_000);
    parent.abort('parent');
    clock.advance(99);
    expect(late.signal.aborted).toBe(false);
    clock.advance(1);
    expect(late.signal.reason).toBe('parent');
  });

  it.each([true, false])('never aborts after its release, parent aborted before: %s', (before) => {
    const clock = new VirtualClock();
    const parent = new AbortController();
    if (before) parent.abort('parent');
    const late = abortLate(clock, 100, parent.signal);
    late.release();
    expect(listenerCount(parent.signal)).toBe(0);
    parent.abort('parent');
    expect(clock.fireNext()).toBe(false);
    expect(late.signal.aborted).toBe(false);
  });
});
