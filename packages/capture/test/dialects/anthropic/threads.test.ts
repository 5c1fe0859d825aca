import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { anthropic } from '../../../src/dialects/anthropic/dialect.ts';
import { type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';

const continuing = { thread: { type: 'continue', previous_message_id: 'cpl_7' } };
const results = [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c1', content: 'sun' }] }];

const parse = (over: object): CanonicalRequest =>
  anthropic.parseRequest({ model: 'm', max_tokens: 100, messages: results, ...over }, plainContext());

describe('a message thread', () => {
  it('starts with an ordinary request', () => {
    const messages = [{ role: 'user', content: 'hi' }];
    expect(parse({ messages, thread: { type: 'create' } })).toEqual(parse({ messages }));
  });

  it('is continued from a completion and inherits its tools', () => {
    expect(parse(continuing)).toMatchObject({
      previousCompletionId: 'cpl_7',
      inheritsTools: true,
      tools: [],
      messages: [{ role: 'tool', tool_call_id: 'c1', content: 'sun' }],
      adjusted: [],
    });
  });

  it('may force a tool of an earlier request', () => {
    const forced = parse({ ...continuing, tool_choice: { type: 'tool', name: 'bash' } });
    expect(forced.toolChoice).toEqual({ type: 'function', function: { name: 'bash' } });
    expect(forced.adjusted).toEqual([]);
  });

  it('uses tools and system text when the request contains them', () => {
    const request = parse({ ...continuing, system: 'Be brief.', tools: [{ name: 'bash', input_schema: {} }] });
    expect(request.inheritsTools).toBeUndefined();
    expect(request.tools).toHaveLength(1);
    expect(request.messages[0]).toEqual({ role: 'system', content: 'Be brief.' });
  });

  it('keeps images after their results and merges later system text', () => {
    const png = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } };
    const content = [{ type: 'tool_result', tool_use_id: 'c1', content: [png] }];
    const { messages } = parse({
      ...continuing,
      messages: [
        { role: 'user', content },
        { role: 'system', content: 'Later.' },
      ],
    });
    expect(messages).toEqual([
      { role: 'tool', tool_call_id: 'c1', content: '' },
      {
        role: 'user',
        content: [
          { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
          { type: 'text', text: 'Later.' },
        ],
      },
    ]);
  });

  it.each([[{ type: 'continue' }], [{ type: 'fork' }], ['create']])('is refused in any other form: %j', (thread) => {
    expect(() => parse({ thread })).toThrow(/thread/);
  });

  it('is reported as lost with the code on which clients send the whole conversation', () => {
    const error = new FloeError('schema_violation', 'x', { unknown_response: 'cpl_7' });
    const { status, body } = anthropic.encodeError(error);
    expect(status).toBe(404);
    expect(JSON.parse(body)).toEqual({
      type: 'error',
      error: {
        type: 'not_found_error',
        message: 'thread.previous_message_id: there is no response cpl_7 in this session',
        details: { error_code: 'thread_not_found' },
      },
    });
  });
});
