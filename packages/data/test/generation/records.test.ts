import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import {
  mainTraces,
  preferenceRecords,
  type RowSample,
  sftRecords,
  verifierRecord,
} from '../../src/generation/records.ts';
import { resultWith, traceOf } from './results.ts';

const FIELDS = { row: 3, row_fields: { repo: 'a/b' } };

function sampleOf(sample: number, reward: number | null, traces: Trace[] = [traceOf()]): RowSample {
  return { fields: FIELDS, sample, result: resultWith(traces, { reward, session_id: `ses-${sample}` }) };
}

const ids = (records: object[]) =>
  (records as { chosen: { sample: number }; rejected: { sample: number } }[]).map(({ chosen, rejected }) => [
    chosen.sample,
    rejected.sample,
  ]);

describe('mainTraces', () => {
  it('leaves out subagents, auxiliary calls and traces of which nothing is trained', () => {
    const main = traceOf();
    const result = resultWith([
      traceOf({ metadata: { call_kind: 'subagent' } }),
      traceOf({ metadata: { call_kind: 'main', auxiliary: true } }),
      traceOf({ loss_mask: [0, 0] }),
      main,
    ]);
    expect(mainTraces(result)).toEqual([main]);
    expect(mainTraces({ ...result, trajectory: null })).toEqual([]);
  });
});

describe('sftRecords', () => {
  it('have the conversation, the tools and the exact tokens of each trace', () => {
    const second = traceOf({ prompt_ids: [9], tools: [{ type: 'function', function: { name: 'bash' } }] });
    const records = sftRecords(sampleOf(1, 1, [traceOf(), second]));
    expect(records).toMatchObject([
      { ...FIELDS, sample: 1, session_id: 'ses-1', trace_index: 0, trace_count: 2, prompt_ids: [1, 2] },
      { trace_index: 1, prompt_ids: [9], response_ids: [3, 4], loss_mask: [1, 1], tools: second.tools },
    ]);
    expect(records[0]).toMatchObject({
      messages: [
        { role: 'user', content: 'Solve it.' },
        { role: 'assistant', content: 'Done.' },
      ],
      prompt_message_count: 1,
    });
    expect(records[0]).not.toHaveProperty('images');
  });

  it('have the images of their messages only', () => {
    const url = 'floe-image:1';
    const prompt: Trace['prompt_messages'] = [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }];
    const { trajectory } = resultWith([traceOf({ prompt_messages: prompt })]);
    const images = { [url]: 'data:image/png;base64,AA', 'floe-image:2': 'data:image/png;base64,BB' };
    const result = { ...resultWith([]), trajectory: { ...trajectory, images } } as SessionResult;
    expect(sftRecords({ fields: FIELDS, sample: 0, result })).toMatchObject([{ images: { [url]: images[url] } }]);
    expect(JSON.stringify(sftRecords({ fields: FIELDS, sample: 0, result }))).not.toContain('BB');
  });
});

describe('preferenceRecords', () => {
  it('pair the best accepted samples with the worst ones, each sample once', () => {
    const all = [sampleOf(0, 0), sampleOf(1, 1), sampleOf(2, 0.5), sampleOf(3, 0.9), sampleOf(4, 0)];
    const accepted = all.filter(({ result }) => (result.reward ?? 0) >= 0.5);
    expect(ids(preferenceRecords(accepted, all))).toEqual([
      [1, 0],
      [3, 4],
    ]);
  });

  it('pair no samples with equal rewards, without a reward or with a divided trajectory', () => {
    expect(preferenceRecords([sampleOf(0, 1)], [sampleOf(0, 1), sampleOf(1, 1)])).toEqual([]);
    expect(preferenceRecords([sampleOf(0, null)], [sampleOf(1, 0)])).toEqual([]);
    expect(preferenceRecords([sampleOf(0, 1)], [sampleOf(0, 1), sampleOf(1, 0, [traceOf(), traceOf()])])).toEqual([]);
    expect(preferenceRecords([], [sampleOf(1, 0), sampleOf(2, 1)])).toEqual([]);
  });

  it('state whether both samples have the same prompt', () => {
    const other = traceOf({ prompt_messages: [{ role: 'user', content: 'It is 10:31.' }] });
    const pairs = [
      preferenceRecords([sampleOf(0, 1)], [sampleOf(1, 0)]),
      preferenceRecords([sampleOf(0, 1)], [sampleOf(1, 0, [other])]),
    ];
    expect(pairs).toMatchObject([[{ ...FIELDS, same_prompt: true }], [{ same_prompt: false }]]);
  });
});

describe('verifierRecord', () => {
  it('has the text of the whole conversation, with thinking, calls and tool results', () => {
    const call = { id: 'c', type: 'function' as const, function: { name: 'bash', arguments: '{"command":"ls"}' } };
    const trace = traceOf({
      response_messages: [
        { role: 'assistant', content: null, reasoning_content: 'List first.', tool_calls: [call] },
        { role: 'tool', tool_call_id: 'c', content: [{ type: 'text', text: 'a.txt' }] },
        { role: 'assistant', content: 'Done.' },
      ],
    });
    expect(verifierRecord(sampleOf(0, 0.5, [trace]), false)).toMatchObject({
      ...FIELDS,
      label: 0,
      reward: 0.5,
      text: `[user]
Solve it.

[assistant]
[thinking]
List first.
[/thinking]
[call bash] {"command":"ls"}

[tool]
a.txt

[assistant]
Done.`,
    });
  });

  it('is null for a sample without a reward or without a trace', () => {
    expect(verifierRecord(sampleOf(0, null), false)).toBe(null);
    expect(verifierRecord(sampleOf(0, 1, []), true)).toBe(null);
    expect(verifierRecord(sampleOf(0, 1), true)).toMatchObject({ label: 1 });
  });
});
