import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { LedgerEntry } from '../src/ledger.ts';
import { checkAgainstLedger } from '../src/ledger-check.ts';

function entry(request_id: string, prompt_ids: number[], response_ids: number[]): LedgerEntry {
  const logprobs = response_ids.map((id) => -id / 10);
  return {
    sequence: 0,
    request_id,
    choice: 0,
    endpoint: '/v1/chat/completions',
    prompt_form: 'messages',
    session_id: 'ses_1',
    scenario: 'default',
    rule: 0,
    prompt_ids,
    response_ids,
    raw_logprobs: logprobs.map((logprob) => logprob * 2),
    processed_logprobs: logprobs,
    version_spans: [{ version: 'v1', start: 0, end: response_ids.length }],
    context_spans: [{ version: 'v1', start: 0, end: prompt_ids.length }],
    params: {} as LedgerEntry['params'],
    finish_reason: 'stop',
    stop_reason: null,
    aborted_at: null,
    faults: [],
    started_ms: 0,
    ended_ms: 0,
  };
}

/** Ledger entries of a conversation of two turns with the token ids: prompt 1 2 | sampled 3 4 | tool result 5 | sampled 6 7. */
const ledger = [entry('a', [1, 2], [3, 4]), entry('b', [1, 2, 3, 4, 5], [6, 7])];

function trace(changes: Partial<Trace> = {}): Trace {
  return {
    trace_id: 't',
    prompt_ids: [1, 2],
    response_ids: [3, 4, 5, 6, 7],
    loss_mask: [1, 1, 0, 1, 1],
    response_logprobs: [-0.3, -0.4, 0, -0.6, -0.7].map(Math.fround),
    version_spans: [
      { version: 'v1', start: 0, end: 2 },
      { version: 'v1', start: 3, end: 5 },
    ],
    constrained_spans: [],
    prompt_messages: [],
    response_messages: [],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward: 1,
    completion_ids: ['a', 'b'],
    metadata: {},
    ...changes,
  };
}

describe('an aborted reply that a second call continues', () => {
  const begun = { ...entry('a', [1, 2], [3]), finish_reason: 'abort' as const, aborted_at: 1 };
  const rest = entry('a', [1, 2, 3], [4]);
  const whole = trace({
    response_ids: [3, 4],
    loss_mask: [1, 1],
    response_logprobs: [-0.3, -0.4].map(Math.fround),
    version_spans: [{ version: 'v1', start: 0, end: 2 }],
    completion_ids: ['a'],
  });
  const found = (entries: LedgerEntry[]) =>
    checkAgainstLedger([sessionOf([whole], 2)], entries, 'processed').mismatches.map(({ what }) => what);

  it('is one reply', () => {
    expect(found([begun, rest])).toEqual([]);
  });

  it('is not joined when the second call has another prompt', () => {
    expect(found([begun, entry('a', [1, 2], [4])])).toContain('invented');
    expect(found([{ ...begun, aborted_at: null }, rest])).toContain('invented');
  });
});

const sessionOf = (traces: Trace[], trained: number): SessionResult =>
  ({ session_id: 'ses_1', trajectory: { traces, audit: { tokens: { trained } } } }) as unknown as SessionResult;

const check = (traces: Trace[], trained = 4): string[] =>
  checkAgainstLedger([sessionOf(traces, trained)], ledger, 'processed').mismatches.map((mismatch) => mismatch.what);

describe('checkAgainstLedger', () => {
  it('accepts a chain that equals the ledger and counts the tokens with exact context', () => {
    const report = checkAgainstLedger([sessionOf([trace()], 4)], ledger, 'processed');
    expect(report).toMatchObject({ mismatches: [], traces: 1, trainable_tokens: 4, exact_context_tokens: 4 });
  });

  it('does not count a merged turn that was sampled in another context', () => {
    const report = checkAgainstLedger([sessionOf([trace({ prompt_ids: [1, 9] })], 4)], ledger, 'processed');
    expect(report).toMatchObject({ mismatches: [], trainable_tokens: 4, exact_context_tokens: 0 });
  });

  it('counts tokens without a version where they are allowed and compares all others', () => {
    const versions = (second: string | null) => [
      { version: null, start: 0, end: 2 },
      { version: second, start: 3, end: 5 },
    ];
    const report = (second: string | null, unknownVersions?: 'allow') => {
      const result = sessionOf([trace({ version_spans: versions(second) })], 4);
      return checkAgainstLedger([result], ledger, 'processed', unknownVersions && { unknownVersions });
    };
    expect(report('v1', 'allow')).toMatchObject({ mismatches: [], unknown_version_tokens: 2 });
    expect(report('v2', 'allow').mismatches.map(({ what }) => what)).toEqual(['version', 'version', 'context']);
    expect(report('v1')).toMatchObject({
      mismatches: [{ what: 'version' }, { what: 'version' }],
      unknown_version_tokens: 0,
    });
  });

  it('counts context that other weights computed, unless the version of the first token is unknown', () => {
    const stale = [
      { version: 'v0', start: 0, end: 3 },
      { version: 'v1', start: 3, end: 5 },
    ];
    const entries = [entry('a', [1, 2], [3, 4]), { ...entry('b', [1, 2, 3, 4, 5], [6, 7]), context_spans: stale }];
    const report = (versions: Trace['version_spans']) =>
      checkAgainstLedger([sessionOf([trace({ version_spans: versions })], 4)], entries, 'processed', {
        unknownVersions: 'allow',
      });
    expect(report(trace().version_spans)).toMatchObject({
      stale_context_tokens: 3,
      mismatches: [
        { what: 'context', completion_id: 'b', detail: expect.stringMatching(/^3 tokens .* by v0, .* v1$/) },
      ],
    });
    expect(
      report([
        { version: 'v1', start: 0, end: 2 },
        { version: null, start: 3, end: 5 },
      ]),
    ).toMatchObject({ stale_context_tokens: 0, mismatches: [] });
  });

  it.each<[string, Trace[], number, string]>([
    ['a wrong id', [trace({ response_ids: [3, 4, 5, 6, 8] })], 4, 'ids'],
    ['logprobs off by one', [trace({ response_logprobs: [0, -0.3, -0.4, 0, -0.6].map(Math.fround) })], 4, 'logprob'],
    ['a mask off by one', [trace({ loss_mask: [0, 1, 1, 0, 1] })], 3, 'mask'],
    ['a wrong version', [trace({ version_spans: [{ version: 'v2', start: 0, end: 5 }] })], 4, 'version'],
    [
      'a constraint that the engine was not given',
      [trace({ constrained_spans: [{ constraint: 'tool_choice', start: 3, end: 5 }] })],
      4,
      'constraint',
    ],
    ['an unknown completion', [trace({ completion_ids: ['a', 'z'] })], 4, 'unknown completion'],
    ['a token trained twice', [trace(), trace()], 8, 'trained twice'],
    ['tokens that were not sampled', [trace({ completion_ids: ['a'] })], 4, 'invented'],
    ['an audit with another count', [trace()], 5, 'audit'],
  ])('reports %s', (_, traces, trained, what) => {
    expect(check(traces, trained)).toContain(what);
  });
});
