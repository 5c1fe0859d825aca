import { FloeError } from '@floe-rl/core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  firstTopLogprobs,
  logprobsModeOf,
  probeLogprobs,
  type TopLogprobs,
  topLogprobsSchema,
} from '../../src/engines/logprobs-probe.ts';
import { likelyTokensReply } from './scripted-server.ts';

const LOGITS = [5, 3, 2, 0, -4];

function logprobsOf(logits: readonly number[], temperature: number): number[] {
  const scaled = logits.map((logit) => logit / temperature);
  const total = Math.log(scaled.reduce((sum, logit) => sum + Math.exp(logit), 0));
  return scaled.map((logit) => logit - total);
}

function named(logprobs: readonly number[]): Map<string, number> {
  return new Map(logprobs.map((logprob, id) => [`token_id:${id}`, logprob]));
}

const warm: TopLogprobs = named(logprobsOf(LOGITS, 1));
const cool: TopLogprobs = named(logprobsOf(LOGITS, 0.5));
const without = (top: TopLogprobs, ...ids: number[]): TopLogprobs =>
  new Map([...top].filter(([name]) => !ids.includes(Number(name.slice('token_id:'.length)))));

describe('the mode of log-probabilities', () => {
  it('is raw when the differences are the same at both temperatures', () => {
    expect(logprobsModeOf(warm, warm)).toBe('raw');
  });

  it('is processed when the differences are twice as large at temperature 0.5', () => {
    expect(logprobsModeOf(warm, cool)).toBe('processed');
  });

  it('is measured with the tokens that both replies contain', () => {
    const coolOthers = new Map([...without(cool, 1, 4), ['token_id:77', -0.01]]);
    expect(logprobsModeOf(without(warm, 2), coolOthers)).toBe('processed');
    expect(logprobsModeOf(without(warm, 0), without(warm, 3))).toBe('raw');
  });

  it.each<[string, TopLogprobs, TopLogprobs]>([
    ['there are no tokens', new Map(), new Map()],
    ['the replies have one token in common', without(warm, 1, 2, 3, 4), cool],
    ['the replies have no token in common', without(warm, 0, 1), without(cool, 2, 3, 4)],
    [
      'all tokens are almost equally likely',
      named(logprobsOf([1, 0.9, 0.2], 1)),
      named(logprobsOf([1, 0.9, 0.2], 0.5)),
    ],
    ['the differences are one and a half times as large', warm, named(logprobsOf(LOGITS, 0.69))],
    ['the differences are four times as large', warm, named(logprobsOf(LOGITS, 0.25))],
    ['the differences are half as large', warm, named(logprobsOf(LOGITS, 2))],
    ['the order is reversed', warm, named(logprobsOf(LOGITS, -1))],
  ])('is unknown when %s', (_, one, other) => {
    expect(logprobsModeOf(one, other)).toBeNull();
  });

  it('is never mistaken for the other mode when every log-probability has an error of up to 0.1', () => {
    const errors = fc.array(fc.double({ min: -0.1, max: 0.1, noNaN: true }), { minLength: 8, maxLength: 8 });
    const logits = fc.array(fc.double({ min: -20, max: 20, noNaN: true }), { minLength: 2, maxLength: 8 });
    const withErrors = (values: readonly number[], added: readonly number[]): TopLogprobs =>
      named(values.map((value, index) => value + (added[index] ?? 0)));
    fc.assert(
      fc.property(logits, errors, errors, (values, one, other) => {
        const first = withErrors(logprobsOf(values, 1), one);
        expect(logprobsModeOf(first, withErrors(logprobsOf(values, 1), other))).not.toBe('processed');
        expect(logprobsModeOf(first, withErrors(logprobsOf(values, 0.5), other))).not.toBe('raw');
      }),
    );
  });
});

describe('the likely tokens of a reply', () => {
  const read = (reply: unknown): TopLogprobs => firstTopLogprobs(topLogprobsSchema.parse(reply));

  it('are those of its first position', () => {
    const top = [
      { token: 'token_id:4', logprob: -0.25, bytes: null },
      { token: 'token_id:9', logprob: -1.5 },
    ];
    expect([...read(likelyTokensReply(top))]).toEqual([
      ['token_id:4', -0.25],
      ['token_id:9', -1.5],
    ]);
  });

  it('leave out tokens without a log-probability, impossible tokens and names that occur twice', () => {
    const top = [
      { token: 'a', logprob: -0.5 },
      { token: 'b', logprob: null },
      { token: 'c', logprob: -9999 },
      { token: 'd', logprob: -3.4e38 },
      { token: '�', logprob: -2 },
      { token: '�', logprob: -3 },
    ];
    expect([...read(likelyTokensReply(top))]).toEqual([['a', -0.5]]);
  });

  it.each([
    { choices: [{}] },
    { choices: [{ logprobs: null }] },
    { choices: [{ logprobs: { content: null } }] },
    { choices: [{ logprobs: { content: [] } }] },
    { choices: [{ logprobs: { content: [{ token: 't', logprob: -1 }] } }] },
  ])('are none in %j', (reply) => {
    expect(read(reply).size).toBe(0);
  });
});

describe('measuring the mode', () => {
  const failing = (code: 'engine_rejected' | 'engine_error' | 'engine_unavailable', details = {}) => {
    const error = new FloeError(code, 'what happened', details);
    return probeLogprobs('raw', () => Promise.reject(error));
  };

  it('samples at the temperatures 1 and 0.5, one after the other', async () => {
    const temperatures: number[] = [];
    const probed = await probeLogprobs('processed', async (temperature) => {
      temperatures.push(temperature);
      return temperature === 1 ? warm : cool;
    });
    expect(temperatures).toEqual([1, 0.5]);
    expect(probed).toEqual({ mode: 'processed', notes: [], isRepeatable: false });
  });

  it('prefers the measured mode to the configured one, and notes the difference', async () => {
    expect(await probeLogprobs('processed', async () => warm)).toEqual({
      mode: 'raw',
      notes: ['logprobs_mode: configured processed, measured raw'],
      isRepeatable: false,
    });
  });

  it('uses the configured mode when nothing can be measured, and notes why', async () => {
    expect(await probeLogprobs('raw', async () => new Map())).toEqual({
      mode: 'raw',
      notes: [
        expect.stringMatching(/configured logprobs_mode raw is believed, because it cannot be measured: .*neither/),
      ],
      isRepeatable: false,
    });
  });

  it('is final when the server refuses the request, and repeatable when the server fails', async () => {
    const notes = ['the configured logprobs_mode raw is believed, because it cannot be measured: what happened'];
    expect(await failing('engine_rejected', { status: 400 })).toEqual({ mode: 'raw', notes, isRepeatable: false });
    expect(await failing('engine_error', { status: 500 })).toEqual({ mode: 'raw', notes, isRepeatable: true });
    expect(await failing('engine_error')).toEqual({ mode: 'raw', notes, isRepeatable: true });
  });

  it('rejects when the server cannot be reached or breaks off its reply', async () => {
    await expect(failing('engine_unavailable')).rejects.toMatchObject({ code: 'engine_unavailable' });
    await expect(failing('engine_error', { broken_off: true })).rejects.toMatchObject({ code: 'engine_error' });
  });
});
