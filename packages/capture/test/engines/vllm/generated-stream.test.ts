import { describe, expect, it } from 'vitest';
import { IdScanner } from '../../../src/engines/chat/reply-scan.ts';
import { generatedStream } from '../../../src/engines/vllm/stream.ts';
import { eventText } from '../scripted-server.ts';

const CHUNK = {
  request_id: 'generate-tokens-cpl_mine',
  model: 'toy',
  choices: [
    { index: 0, token_ids: [11], logprobs: { content: [{ token_id: 11, logprob: -0.5 }] }, finish_reason: 'stop' },
  ],
  prompt_token_ids: [7, 8],
  usage: { prompt_tokens: 2, completion_tokens: 1 },
};

function streamOf(...events: unknown[]) {
  const sent = { text: Buffer.from('7,8'), parts: [Int32Array.of(7, 8)], count: 2 };
  const context = {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    models: new Set(['toy']),
    scanner: new IdScanner(),
  };
  const stream = generatedStream(sent, context, () => {});
  stream.push(Buffer.from(events.map(eventText).join('')));
  return stream;
}

describe('a stream of a reply to a prompt of ids', () => {
  it('has the reply when it ends with [DONE]', () => {
    expect([...streamOf(CHUNK, '[DONE]').reply().sampled.responseIds]).toEqual([11]);
  });

  it('is rejected without [DONE], even if all its tokens have arrived', () => {
    expect(() => streamOf(CHUNK).reply()).toThrow('[DONE]');
  });
});
