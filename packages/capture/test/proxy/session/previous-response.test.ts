import type { ChatMessage, ChatTool } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { withPreviousResponse } from '../../../src/proxy/session/previous-response.ts';

type Request = Parameters<typeof withPreviousResponse>[0];
type Earlier = NonNullable<ReturnType<Parameters<typeof withPreviousResponse>[1]>>;

const tool = (name: string): ChatTool => ({ type: 'function', function: { name, parameters: {} } });
const EARLIER = {
  completionId: 'cpl_7',
  message: { role: 'assistant', content: 'yes' },
  request: { messages: [{ role: 'user', content: 'one' }], tools: [tool('read')] },
} as unknown as Earlier;

function continued(over: Partial<Request>): Request {
  const messages: ChatMessage[] = [{ role: 'user', content: 'two' }];
  return withPreviousResponse(
    { previousCompletionId: 'cpl_7', messages, tools: [], ...over } as Request,
    () => EARLIER,
  );
}

describe('a request that continues an earlier reply by its id', () => {
  it('has the messages of the earlier request and the reply before its own', () => {
    expect(continued({}).messages.map(({ content }) => content)).toEqual(['one', 'yes', 'two']);
  });

  it('has the earlier tools only when it inherits them, and otherwise exactly its own', () => {
    expect(continued({ inheritsTools: true }).tools).toEqual([tool('read')]);
    expect(continued({ tools: [tool('write')] }).tools).toEqual([tool('write')]);
    expect(continued({}).tools).toEqual([]);
  });
});
