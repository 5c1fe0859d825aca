import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { VirtualClock } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { plainContext } from '../../../src/dialects/dialect.ts';
import { openaiChat } from '../../../src/dialects/openai_chat/dialect.ts';
import { StreamWriter } from '../../../src/proxy/http/delivery.ts';
import { StreamedReply } from '../../../src/proxy/session/call.ts';
import { chatBody } from '../rig.ts';

/** The part of an HTTP response that a StreamWriter uses. It simulates a slow client, which reads only when the test requests it. */
class SlowClient extends EventEmitter {
  headersSent = false;
  writableEnded = false;
  destroyed = false;
  writableNeedDrain = false;
  text = '';
  writes = 0;

  writeHead(): void {
    this.headersSent = true;
  }

  write(text: string): void {
    this.text += text;
    this.writes++;
  }

  end(text: string): void {
    this.text += text;
    this.writableEnded = true;
  }

  get content(): string {
    const chunks = this.text.split('\n\n').filter((line) => line.startsWith('data: {'));
    return chunks.map((line) => JSON.parse(line.slice('data: '.length)).choices[0]?.delta.content ?? '').join('');
  }
}

function writerFor(client: SlowClient): StreamWriter {
  const request = openaiChat.parseRequest(chatBody({ stream: true }), plainContext());
  const parts = { completionId: 'cpl_1', index: 0, arrivedMs: 0, timestampMs: 0, dialect: openaiChat, request };
  return new StreamWriter(client as unknown as ServerResponse, parts, new VirtualClock(), 10_000);
}

const message = (content: string): AssistantMessage => ({ role: 'assistant', content });

describe('a client that does not read', () => {
  it('causes no further buffering, receives the missed deltas when it reads, and the rest at the end', () => {
    const client = new SlowClient();
    const writer = writerFor(client);
    writer.writeDeltas(message('one '), 4);
    expect(client.content).toBe('one ');
    client.writableNeedDrain = true;
    for (let i = 0; i < 1_000; i++) writer.writeDeltas(message(`one two ${'x'.repeat(i)}`), 4);
    expect(client).toMatchObject({ content: 'one ', writes: 1 });
    client.writableNeedDrain = false;
    writer.writeDeltas(message('one two three '), 4);
    expect(client).toMatchObject({ content: 'one two three ', writes: 2 });
    client.writableNeedDrain = true;
    const usage = { prompt_tokens: 4, completion_tokens: 4, cached_tokens: null };
    writer.finish({
      completionId: 'cpl_1',
      model: 'policy',
      createdMs: 0,
      promptTokens: 4,
      message: message('one two three four'),
      finishReason: 'stop',
      stopText: null,
      usage,
    });
    expect(client.content).toBe('one two three four');
    expect(client.text.endsWith('data: [DONE]\n\n')).toBe(true);
  });

  it('receives nothing once its response has ended', () => {
    const client = new SlowClient();
    const writer = writerFor(client);
    client.writableEnded = true;
    writer.writeDeltas(message('late'), 4);
    expect(client.text).toBe('');
  });
});

describe('a streamed reply', () => {
  it('notifies its readers once for many deltas of one turn of the event loop', async () => {
    const reply = new StreamedReply('cpl_1');
    const seen: (string | null | undefined)[] = [];
    const news = new Promise<void>((resolve) => {
      reply.onDeltas(() => {
        seen.push(reply.message?.content);
        resolve();
      });
    });
    expect(reply.message).toBeNull();
    for (const text of ['a', 'b', 'c']) reply.delta({ kind: 'text', text });
    await news;
    expect(seen).toEqual(['abc']);
  });
});
