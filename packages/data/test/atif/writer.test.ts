import type { ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { atifFiles } from '../../src/atif/writer.ts';
import { traceOf } from '../generation/results.ts';
import { dialogue, setRow } from '../session-sets/sets.ts';

const call = (id: string, text: string): ChatMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ id, type: 'function', function: { name: 'run', arguments: text } }],
});

describe('a session in ATIF', () => {
  it('has the results of tools in the step that called them, and the tokens of each reply', () => {
    const response: ChatMessage[] = [
      call('c', '{"a": 1}'),
      { role: 'tool', tool_call_id: 'c', content: 'one' },
      { role: 'assistant', content: 'Done.' },
    ];
    const tokens = { response_ids: [3, 4, 5], loss_mask: [1, 0, 1], response_logprobs: [-1, 0, -2] };
    const [file] = atifFiles(setRow({}, [dialogue(response, tokens)]));
    expect(file?.name).toBe('ses-1.json');
    expect(file?.trajectory).toMatchObject({
      schema_version: 'ATIF-v1.7',
      session_id: 'ses-1',
      steps: [
        { step_id: 1, source: 'user', message: 'Solve it.' },
        {
          step_id: 2,
          source: 'agent',
          tool_calls: [{ tool_call_id: 'c', function_name: 'run', arguments: { a: 1 } }],
          observation: { results: [{ source_call_id: 'c', content: 'one' }] },
          metrics: { prompt_tokens: 2, completion_token_ids: [3], logprobs: [-1] },
        },
        { step_id: 3, source: 'agent', message: 'Done.', metrics: { prompt_tokens: 4, completion_token_ids: [5] } },
      ],
    });
  });

  it('keeps arguments that are no JSON object, and results of calls that no step made', () => {
    const response: ChatMessage[] = [call('c', '{"a": '), { role: 'tool', tool_call_id: 'other', content: 'two' }];
    const [file] = atifFiles(setRow({}, [dialogue(response)]));
    expect(file?.trajectory).toMatchObject({
      steps: [
        {},
        { tool_calls: [{ arguments: {}, extra: { sampled_arguments: '{"a": ' } }] },
        { source: 'user', message: 'two' },
      ],
    });
  });

  it('is several files where its history was rewritten, with sub-agents in the first', () => {
    const traces = [
      traceOf({ trace_id: 't0' }),
      traceOf({ trace_id: 't1' }),
      traceOf({ trace_id: 't2', metadata: { call_kind: 'subagent' } }),
    ];
    const files = atifFiles(setRow({}, traces));
    expect(files.map(({ name }) => name)).toEqual(['ses-1.json', 'ses-1.2.json']);
    expect(files[0]?.trajectory).toMatchObject({
      continued_trajectory_ref: 'ses-1.2.json',
      subagent_trajectories: [{ trajectory_id: 't2' }],
    });
    expect(files[1]?.trajectory).not.toHaveProperty('continued_trajectory_ref');
    expect(atifFiles(setRow({ trajectory: null }))).toEqual([]);
  });
});
