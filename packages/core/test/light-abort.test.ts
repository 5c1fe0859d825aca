import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { linkAbort, onAbort, raceAbort } from '../src/abort.ts';
import { LightAbort } from '../src/light-abort.ts';

describe('LightAbort', () => {
  it('keeps the first reason and runs each listener once, in the order of adding', () => {
    const abort = new LightAbort();
    const calls: string[] = [];
    onAbort(abort, () => calls.push('first'));
    onAbort(abort, () => calls.push('second'));
    abort.throwIfAborted();
    abort.abort('stopped');
    abort.abort('too late');
    expect(calls).toEqual(['first', 'second']);
    expect(abort).toMatchObject({ aborted: true, reason: 'stopped' });
    expect(() => abort.throwIfAborted()).toThrow('stopped');
  });

  it('runs a callback immediately when it has already aborted', () => {
    const abort = new LightAbort();
    abort.abort('stopped');
    let calls = 0;
    onAbort(abort, () => calls++);
    expect(calls).toBe(1);
  });

  it('runs no listener that was removed, also by another listener', () => {
    const abort = new LightAbort();
    const calls: string[] = [];
    const removeEarly = onAbort(abort, () => calls.push('early'));
    onAbort(abort, () => removeLate());
    onAbort(abort, () => calls.push('kept'));
    const removeLate = onAbort(abort, () => calls.push('late'));
    removeEarly();
    removeEarly();
    abort.abort('stopped');
    expect(calls).toEqual(['kept']);
  });

  it('works as the parent of a linked signal and in a race', async () => {
    const abort = new LightAbort();
    const linked = linkAbort(abort);
    const raced = raceAbort(new Promise(() => {}), abort);
    abort.abort(new Error('stopped'));
    expect(linked.signal.reason).toEqual(new Error('stopped'));
    await expect(raced).rejects.toThrow('stopped');
  });

  it('has the listeners of an event target', async () => {
    const abort = new LightAbort();
    const types: string[] = [];
    const listener = (event: Event): void => void types.push(event.type);
    const removed = { handleEvent: listener };
    abort.addEventListener('abort', listener);
    abort.addEventListener('abort', listener);
    abort.addEventListener('other', listener);
    abort.addEventListener('abort', removed);
    abort.removeEventListener('abort', removed);
    abort.onabort = listener;
    const waited = once(new EventTarget(), 'never', { signal: abort });
    abort.abort('stopped');
    expect(types).toEqual(['abort', 'abort']);
    await expect(waited).rejects.toThrow('aborted');
  });
});
