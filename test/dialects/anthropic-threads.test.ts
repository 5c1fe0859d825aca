import { describe, expect, test } from 'vitest';
import { FloeError } from '../../src/core/errors.ts';
import { anthropic } from '../../src/dialects/anthropic/dialect.ts';
import { type CanonicalRequest, plainContext } from '../../src/dialects/dialect.ts';

const continuing = { thread: { type: 'continue', previous_message_id: 'cpl_7' } };
const results = [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c1', content: 'sun' }] }];

const parse = (over: object): CanonicalRequest =>
  anthropic.parseRequest({ model: 'm', max_tokens: 100, messages: results, ...over }, plainContext());

describe('a message thread', () => {
  test('begins with a request like any other', () => {
    const messages = [{ role: 'user', content: 'hi' }];
    expect(parse({ messages, thread: { type: 'create' } })).toEqual(parse({ messages }));
  });

  test('is continued from a completion, with its tools', () => {
    expect(parse(continuing)).toMatchObject({
      previousCompletionId: 'cpl_7',
      inheritsTools: true,
      tools: [],
      messages: [{ role: 'tool', tool_call_id: 'c1', content: 'sun' }],
      adjusted: [],
    });
  });

  test('may force a tool that an earlier request had', () => {
    const forced = parse({ ...continuing, tool_choice: { type: 'tool', name: 'bash' } });
    expect(forced.toolChoice).toEqual({ type: 'function', function: { name: 'bash' } });
    expect(forced.adjusted).toEqual([]);
  });

  test('takes tools and system text where a request has them all the same', () => {
    const request = parse({ ...continuing, system: 'Be brief.', tools: [{ name: 'bash', input_schema: {} }] });
    expect(request.inheritsTools).toBeUndefined();
    expect(request.tools).toHaveLength(1);
    expect(request.messages[0]).toEqual({ role: 'system', content: 'Be brief.' });
  });

  test('keeps images of results behind them, and folds system text that comes later', () => {
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

  test.each([[{ type: 'continue' }], [{ type: 'fork' }], ['create']])('of another form is refused: %j', (thread) => {
    expect(() => parse({ thread })).toThrow(/thread/);
  });

  test('that is lost is told by the code for which clients send the whole conversation', () => {
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
