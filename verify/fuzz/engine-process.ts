// The fuzzer's stub engine, run in a separate process. When the last message is "say I N", it replies with the text NASTY_TEXTS[I]
// repeated N times.
import { createServer, type ServerResponse } from 'node:http';
import { json } from 'node:stream/consumers';
import { z } from 'zod';
import { NASTY_TEXTS } from './inputs.ts';
import { portOf, reportPort } from './process.ts';

const requestSchema = z.looseObject({ messages: z.array(z.unknown()), stream: z.boolean().nullish() });

const PROMPT_IDS = [1, 5, 6, 7];
const RESPONSE_IDS = [11, 12, 2];
const MAX_MODEL_LEN = 131_072;

function send(response: ServerResponse, body: object): void {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

function replyText(messages: readonly unknown[]): string {
  const [, index, times] = /say (\d+) (\d+)/.exec(JSON.stringify(messages.at(-1))) ?? [];
  const text = NASTY_TEXTS[Number(index)];
  return text === undefined ? 'Hello.' : text.repeat(Number(times));
}

function complete(body: unknown, requestId: string, response: ServerResponse): void {
  const { messages, stream } = requestSchema.parse(body);
  if (messages.length === 0) {
    response.writeHead(400).end('{"error":{"message":"no messages"}}');
    return;
  }
  const content = replyText(messages);
  const head = { id: `chatcmpl-${requestId}`, created: 1, model: 'stub' };
  const logprobs = {
    content: RESPONSE_IDS.map((id) => ({ token: `token_id:${id}`, logprob: -0.5, bytes: [], top_logprobs: [] })),
  };
  const usage = { prompt_tokens: PROMPT_IDS.length, completion_tokens: RESPONSE_IDS.length, total_tokens: 7 };
  const finish = { logprobs, finish_reason: 'stop', stop_reason: null, token_ids: RESPONSE_IDS };
  if (stream !== true) {
    const choice = { index: 0, message: { role: 'assistant', content, tool_calls: [] }, ...finish };
    send(response, { ...head, object: 'chat.completion', choices: [choice], usage, prompt_token_ids: PROMPT_IDS });
    return;
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const write = (fields: object, ...choices: readonly object[]): void => {
    const chunk = {
      ...head,
      object: 'chat.completion.chunk',
      choices: choices.map((choice) => ({ index: 0, ...choice })),
      ...fields,
    };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  const first = { delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null };
  write({ prompt_token_ids: PROMPT_IDS }, first);
  write({}, { delta: { content }, ...finish });
  write({ usage });
  response.end('data: [DONE]\n\n');
}

const server = createServer(async (request, response) => {
  if (request.url === '/v1/models') {
    send(response, { data: [{ id: 'stub', max_model_len: MAX_MODEL_LEN }] });
  } else if (request.method !== 'POST') {
    response.writeHead(404).end();
  } else {
    const body = await json(request);
    if (request.url === '/tokenize') {
      send(response, { count: PROMPT_IDS.length, max_model_len: MAX_MODEL_LEN, tokens: PROMPT_IDS });
    } else {
      complete(body, String(request.headers['x-request-id']), response);
    }
  }
});
server.listen(0, '127.0.0.1', () => reportPort(portOf(server)));
