import type { SessionResult, Trace } from '@floe-rl/core/schema';
import type { LedgerEntry } from '@floe-rl/sim';
import { describe, expect, it } from 'vitest';
import { type Delivery, differences, sabotaged } from '../../verify/registrations/comparison.ts';

function entry(request_id: string, prompt_ids: number[], response_ids: number[]): LedgerEntry {
  const logprobs = response_ids.map((id) => -id / 7);
  return {
    sequence: 0,
    request_id,
    choice: 0,
    endpoint: '/inference/v1/generate',
    prompt_form: 'ids',
    session_id: 's',
    scenario: 'default',
    rule: 0,
    prompt_ids,
    response_ids,
    raw_logprobs: logprobs,
    processed_logprobs: logprobs,
    version_spans: [{ version: 'v0', start: 0, end: response_ids.length }],
    context_spans: [{ version: 'v0', start: 0, end: prompt_ids.length }],
    params: {} as LedgerEntry['params'],
    finish_reason: 'stop',
    stop_reason: null,
    aborted_at: null,
    faults: [],
    started_ms: 0,
    ended_ms: 0,
  };
}

/** Two calls of one conversation: prompt 1 2 | sampled 3 4 | tool result 5 | sampled 6 7. */
const LEDGER = [entry('a', [1, 2], [3, 4]), entry('b', [1, 2, 3, 4, 5], [6, 7])];
const LOGPROBS = [-3 / 7, -4 / 7, 0, -6 / 7, -1].map(Math.fround);
const TRACE = {
  trace_id: 't',
  prompt_ids: [1, 2],
  response_ids: [3, 4, 5, 6, 7],
  loss_mask: [1, 1, 0, 1, 1],
  response_logprobs: LOGPROBS,
  version_spans: [
    { version: 'v0', start: 0, end: 2 },
    { version: 'v0', start: 3, end: 5 },
  ],
  constrained_spans: [],
  completion_ids: ['a', 'b'],
} as unknown as Trace;

function result(use: 'train' | 'mask' = 'train'): SessionResult {
  const trajectory = { traces: [TRACE], audit: { tokens: { trained: 4 } } };
  return { session_id: 's', reward: 0.5, trainable_tokens: 4, policy: { use }, trajectory } as unknown as SessionResult;
}

function delivery(sequences: NonNullable<Delivery['sequences']>, others: Partial<Delivery> = {}): Delivery {
  return { face: 'face', row: 'row', session_id: 's', reward: 0.5, sequences, ...others };
}

const ids = [1, 2, 3, 4, 5, 6, 7];
const mask = [0, 0, 1, 1, 0, 1, 1];
const logprobs = [0, 0, ...LOGPROBS];
const DELIVERIES: readonly [string, Delivery][] = [
  ['a whole trace', delivery([{ ids, mask, logprobs }])],
  [
    'single calls',
    delivery([
      { ids: ids.slice(0, 4), mask: [0, 0, 1, 1], logprobs: logprobs.slice(0, 4), completion_id: 'a' },
      { ids, mask: [0, 0, 0, 0, 0, 1, 1], logprobs: [0, 0, 0, 0, ...logprobs.slice(4)], completion_id: 'b' },
    ]),
  ],
  [
    'rounded log-probabilities',
    delivery([{ ids, mask, logprobs: logprobs.map((value) => Number(value.toFixed(4))) }], { decimals: 4 }),
  ],
];

describe('the comparison of what another trainer gets with the ledger of the engine', () => {
  it.each(DELIVERIES)('finds no difference in %s', (_, delivered) => {
    expect(differences(delivered, result(), LEDGER)).toEqual([]);
  });

  it.each(
    DELIVERIES.flatMap(([name, delivered]) =>
      Object.entries(sabotaged(delivered)).map(([defect, broken]) => ({ name, defect, broken })),
    ),
  )('notices $defect in $name', ({ broken }) => {
    expect(differences(broken, result(), LEDGER)).not.toEqual([]);
  });

  it('notices a call that is missing or delivered twice', () => {
    const [first, second] = DELIVERIES[1]?.[1].sequences ?? [];
    if (first === undefined || second === undefined) throw new Error('there are two calls');
    expect(differences(delivery([first]), result(), LEDGER)).toEqual(['2 tokens are trained, not 4']);
    expect(differences(delivery([first, first]), result(), LEDGER)).not.toEqual([]);
  });

  it('accepts a part of the tokens where the interface reports which share it delivers', () => {
    const [first] = DELIVERIES[1]?.[1].sequences ?? [];
    expect(
      differences(delivery(first === undefined ? [] : [first], { delivered_fraction: 0.5 }), result(), LEDGER),
    ).toEqual([]);
  });

  it('requires that no token of a masked sample is trained, and that its ids are those of the session', () => {
    const none = mask.map(() => 0);
    expect(differences(delivery([{ ids, mask: none, logprobs }]), result('mask'), LEDGER)).toEqual([]);
    expect(differences(delivery([{ ids, mask, logprobs }]), result('mask'), LEDGER)).toHaveLength(1);
    expect(differences(delivery([{ ids: ids.with(3, 9), mask: none, logprobs }]), result('mask'), LEDGER)).toHaveLength(
      1,
    );
    expect(differences(delivery([]), result('mask'), LEDGER)).toHaveLength(1);
  });
});
