import { describe, expect, it } from 'vitest';
import { FloeError } from '../../src/core/errors.ts';
import { tellKill } from '../../src/runtimes/kills.ts';
import type { ExecResult, StartRequest } from '../../src/runtimes/runtime.ts';

function told(killedBy: ExecResult['killedBy'], reason?: FloeError): string[] {
  const reasons: string[] = [];
  const request = { onKill: (why) => void reasons.push(why) } satisfies Pick<StartRequest, 'onKill'>;
  const signal = reason === undefined ? new AbortController().signal : AbortSignal.abort(reason);
  tellKill(request as unknown as StartRequest, killedBy, signal);
  return reasons;
}

describe('why a command was ended before its time', () => {
  it('is the limit that it exceeded, even when its deadline came as well', () => {
    const deadline = new FloeError('deadline_exceeded', 'too late');
    expect(told('memory')).toEqual(['memory']);
    expect(told('processes', deadline)).toEqual(['processes']);
  });

  it('is its deadline, or that it is not wanted any more', () => {
    expect(told(null, new FloeError('deadline_exceeded', 'too late'))).toEqual(['deadline']);
    expect(told(null, new FloeError('cancelled', 'no more'))).toEqual(['stopped']);
  });

  it('is nothing for one that ended by itself', () => {
    expect(told(null)).toEqual([]);
  });
});
