import { type AssistantMessage, type ChatMessage, type Content, chatMessageSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { callsOf } from '../../../../dashboard/src/views/session/calls.ts';
import { atifDocumentSchema } from '../../src/atif/document.ts';
import { atifFiles } from '../../src/atif/writer.ts';
import { ATIF_READER } from '../../src/recordings/atif.ts';
import type { Recording } from '../../src/recordings/recording.ts';
import { traceOf } from '../generation/results.ts';
import { dialogue, setRow } from '../session-sets/sets.ts';

const source = { where: 'ses-1.json', file: 'ses-1.json', modifiedMs: 0 };

/** Reads a document that was written, as JSON text. */
function readBack(trajectory: object): Recording {
  const [recording] = ATIF_READER.read(JSON.parse(JSON.stringify(trajectory)), source) ?? [];
  if (recording === undefined) throw new Error('nothing was read');
  return recording;
}

/** Returns all messages of a recording's main conversation, in their order. */
function messagesOf({ records, trajectory }: Recording): ChatMessage[] {
  const calls = callsOf(records, trajectory).filter(({ record }) => record.thread === 'main');
  return calls.flatMap(({ record, messages, known }) => [...messages.slice(known), record.message]);
}

const text = fc.string({ unit: 'grapheme', maxLength: 12 });
const argumentTexts = fc.oneof(
  fc.dictionary(text, fc.oneof(text, fc.integer(), fc.boolean())).map((value) => JSON.stringify(value)),
  fc.constantFrom('{"a": ', '[1]', '7', ''),
);
const picture: Content = [
  { type: 'text', text: 'Look:' },
  { type: 'image_url', image_url: { url: 'images/a.jpg' } },
];
const question = fc.oneof(text, fc.constant(picture)).map((content): ChatMessage => ({ role: 'user', content }));

/** A reply, and the results of its calls. */
const turn = fc
  .record({
    content: text,
    thinking: fc.option(text, { nil: undefined }),
    calls: fc.array(argumentTexts, { maxLength: 2 }),
  })
  .map(({ content, thinking, calls }): ChatMessage[] => {
    const toolCalls = calls.map((args, index) => ({
      id: `c${index}`,
      type: 'function' as const,
      function: { name: 'run', arguments: args },
    }));
    const reply: AssistantMessage = {
      role: 'assistant',
      content,
      ...(thinking === undefined ? {} : { reasoning_content: thinking }),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    };
    return [reply, ...toolCalls.map(({ id }): ChatMessage => ({ role: 'tool', tool_call_id: id, content: 'ok' }))];
  });
const last: ChatMessage = { role: 'assistant', content: 'Done.' };
const responses = fc
  .array(fc.tuple(turn, fc.array(question, { maxLength: 1 })), { maxLength: 4 })
  .map((turns): ChatMessage[] => [...turns.flatMap(([reply, asked]) => [...reply, ...asked]), last]);

describe('a session that is written in ATIF and read again', () => {
  it('has the same messages, whatever they contain', () => {
    fc.assert(
      fc.property(question, responses, (asked, response) => {
        const trace = dialogue(response, { prompt_messages: [asked] });
        const [file] = atifFiles(setRow({}, [trace]));
        const expected = [asked, ...response].map((message) => chatMessageSchema.parse(message));
        expect(messagesOf(readBack(file?.trajectory ?? {}))).toEqual(expected);
      }),
    );
  });

  it('has its ids, log-probabilities, number of tokens, reward and outcome', () => {
    const response: ChatMessage[] = [
      last,
      { role: 'user', content: 'Continue.' },
      { role: 'assistant', content: 'More.' },
    ];
    const tokens = { response_ids: [3, 4, 5, 6], loss_mask: [1, 1, 0, 1], response_logprobs: [-1, -0.5, 0, -2] };
    const row = setRow({ reward: 0.25, outcome: 'agent_timeout', task_id: 'task-7', sample_index: 3 }, [
      dialogue(response, tokens),
    ]);
    const [file] = atifFiles(row);
    const { summary, records } = readBack(file?.trajectory ?? {});
    expect(summary).toMatchObject({ task_id: 'task-7', sample_index: 3, reward: 0.25, outcome: 'agent_timeout' });
    expect(
      records.map(({ response_ids, response_logprobs, usage }) => [response_ids, response_logprobs, usage]),
    ).toEqual([
      [[3, 4], [-1, -0.5], { prompt_tokens: 2, completion_tokens: 2, cached_tokens: null }],
      [[6], [-2], { prompt_tokens: 5, completion_tokens: 1, cached_tokens: null }],
    ]);
  });

  it('has its sub-agents as threads', () => {
    const traces = [traceOf(), traceOf({ trace_id: 't2', metadata: { call_kind: 'subagent' } })];
    const [file] = atifFiles(setRow({}, traces));
    expect(readBack(file?.trajectory ?? {}).records.map(({ thread, call_kind }) => [thread, call_kind])).toEqual([
      ['main', 'main'],
      ['t2', 'subagent'],
    ]);
  });

  it('has no field that the description of the format lacks', () => {
    const row = setRow({}, [traceOf(), traceOf({ trace_id: 't2' })]);
    for (const { trajectory } of atifFiles(row)) expect(atifDocumentSchema.parse(trajectory)).toEqual(trajectory);
  });
});
