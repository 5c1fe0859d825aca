import { afterEach, describe, expect, it } from 'vitest';
import type { GenerateReply, GenerateRequest } from '../../src/engines/engine.ts';
import {
  type Connected,
  type Json,
  recorder,
  type Stream,
  type StreamForm,
  send,
  streamForms,
  type WholeForm,
  type WholeParts,
  wholeForms,
} from './scripted-replies.ts';
import { json } from './scripted-server.ts';

let connected: Connected | null = null;

afterEach(async () => {
  await connected?.close();
  connected = null;
});

const withTools: Partial<GenerateRequest> = {
  tools: [{ type: 'function', function: { name: 'sh' } }],
  toolsText: '[{"type":"function","function":{"name":"sh"}}]',
};

async function streamed(form: StreamForm, change: (stream: Stream) => Stream): Promise<GenerateReply> {
  connected = await form.connect();
  const over = { ...withTools, listener: recorder().listener };
  expect(connected.engine.info().streaming).toBe(true);
  return connected.ask((received) => send(received, change(form.stream(received))), over);
}

type Change = (stream: Stream) => Stream;
const after =
  (choice: Json): Change =>
  (stream) => ({ ...stream, rest: [stream.chunk(choice), ...stream.rest] });
const afterFinish = (delta: Json): Change => after({ delta });
const entry = (logprob: unknown) => ({ content: [{ token: 't', logprob }] });
const call = (fields: Json) => ({ delta: { tool_calls: [fields] } });
const merged = (chunk: Json | undefined, over: Json): Json => {
  const [choice] = (chunk?.choices ?? []) as Json[];
  return { ...chunk, choices: [{ ...choice, ...over }] };
};
const withUsage = (over: Json): Change => {
  return (stream) => ({
    ...stream,
    rest: stream.rest.map((chunk) =>
      'usage' in chunk ? { ...chunk, usage: { ...(chunk.usage as Json), ...over } } : chunk,
    ),
  });
};

type Needs = 'any' | 'tokens' | 'chat' | 'owner';
const provides: Record<Needs, (form: StreamForm) => boolean> = {
  any: () => true,
  tokens: ({ tokens }) => tokens,
  chat: ({ chat }) => chat,
  owner: ({ checksOwner }) => checksOwner,
};

type Refusal = { readonly code: string; readonly message: RegExp; readonly stopsStreaming?: boolean };
const refused = (message: RegExp, over: Partial<Refusal> = {}): Refusal => ({ code: 'engine_error', message, ...over });

const refusedStreams: readonly [string, Needs, Change, Refusal][] = [
  ['has text after the finish', 'chat', afterFinish({ content: 'more' }), refused(/after the finish/)],
  ['has thinking after the finish', 'chat', afterFinish({ reasoning_content: 'hm' }), refused(/after the finish/)],
  [
    'has a tool call after the finish',
    'chat',
    after(call({ index: 0, id: 'a', function: { name: 'sh', arguments: '{}' } })),
    refused(/after the finish/),
  ],
  ['has token ids after the finish', 'tokens', after({ token_ids: [4] }), refused(/after the finish/)],
  ['has log-probabilities after the finish', 'tokens', after({ logprobs: entry(-1) }), refused(/after the finish/)],
  [
    'has another finish reason after the finish',
    'any',
    after({ finish_reason: 'length' }),
    refused(/after the finish/),
  ],
  [
    'has two choices in a chunk',
    'any',
    ({ finish, ...stream }) => ({
      ...stream,
      finish: { ...finish, choices: [...(finish.choices as Json[]), ...(finish.choices as Json[])] },
    }),
    refused(/choices/),
  ],
  [
    'has a choice with another index',
    'any',
    (stream) => ({ ...stream, finish: merged(stream.finish, { index: 1 }) }),
    refused(/index/),
  ],
  [
    'has no finish reason',
    'any',
    ({ finish: _, ...stream }) => ({ ...stream, finish: stream.chunk({}) }),
    refused(/no finish chunk/),
  ],
  [
    'has an unknown finish reason',
    'any',
    (stream) => ({ ...stream, finish: merged(stream.finish, { finish_reason: 'eos' }) }),
    refused(/finish_reason is "eos"/),
  ],
  [
    'has an error object in the middle',
    'any',
    (stream) => ({ ...stream, tokens: [{ error: { message: 'out of memory' } }] }),
    refused(/error inside: out of memory/),
  ],
  [
    'has an error object after the finish',
    'any',
    (stream) => ({ ...stream, rest: [{ error: { message: 'out of memory' } }, ...stream.rest] }),
    refused(/error inside: out of memory/),
  ],
  [
    'has a chunk that is not JSON',
    'any',
    (stream) => ({ ...stream, tokens: ['{"id": "' as unknown as Json] }),
    refused(/not JSON/),
  ],
  [
    'has no usage, though all its tokens have arrived',
    'any',
    (stream) => ({ ...stream, rest: stream.rest.filter((chunk) => !('usage' in chunk)) }),
    refused(/usage is missing/),
  ],
  [
    'has no usage, so that this engine streams no more',
    'tokens',
    (stream) => ({ ...stream, rest: stream.rest.filter((chunk) => !('usage' in chunk)) }),
    refused(/usage is missing/, { stopsStreaming: true }),
  ],
  [
    'has fewer ids than the usage counts, so that this engine streams no more',
    'tokens',
    withUsage({ completion_tokens: 4 }),
    refused(/3 ids.* 4/, { stopsStreaming: true }),
  ],
  [
    'has another number of prompt ids than the usage counts, so that this engine streams no more',
    'tokens',
    withUsage({ prompt_tokens: 3 }),
    refused(/prompt.* ids.* 3/, { stopsStreaming: true }),
  ],
  [
    'has fewer log-probabilities than ids, so that this engine streams no more',
    'tokens',
    (stream) => ({ ...stream, tokens: [...stream.tokens.slice(0, -1), merged(stream.tokens[2], { logprobs: null })] }),
    refused(/2 entries for 3/, { stopsStreaming: true }),
  ],
  [
    'has a log-probability above 0',
    'tokens',
    (stream) => ({
      ...stream,
      tokens: [merged(stream.tokens[0], { logprobs: entry(0.5) }), ...stream.tokens.slice(1)],
    }),
    refused(/logprobs?\.content\.0\.logprob is 0\.5, above 0/),
  ],
  [
    'has a log-probability of another id',
    'tokens',
    (stream) => ({
      ...stream,
      tokens: [
        merged(stream.tokens[0], { logprobs: { content: [{ token: 'token_id:77', logprob: -1 }] } }),
        ...stream.tokens.slice(1),
      ],
    }),
    refused(/content\.0 is of (token_id:|id )77/),
  ],
  [
    'has the id of another call',
    'owner',
    (stream) => ({ ...stream, finish: { ...stream.finish, id: 'cpl_other', request_id: 'cpl_other' } }),
    refused(/answers cpl_other/),
  ],
  [
    'is from another model',
    'owner',
    (stream) => ({ ...stream, finish: { ...stream.finish, model: 'other' } }),
    refused(/model is "other"/),
  ],
  [
    'was aborted before its first token',
    'tokens',
    (stream) => {
      const noTokens = withUsage({ completion_tokens: 0 })({ ...stream, tokens: [] });
      const finish = merged(stream.finish, { finish_reason: 'abort' });
      return { ...noTokens, finish, rest: noTokens.rest.filter((chunk) => !('sglext' in chunk)) };
    },
    { code: 'engine_unavailable', message: /before its first token/ },
  ],
  [
    'has a tool call without an id',
    'chat',
    (stream) => ({ ...stream, tokens: [...stream.tokens, stream.chunk(call({ index: 0, function: { name: 'sh' } }))] }),
    refused(/tool_calls\.0 has no id/),
  ],
];

const promptTwice: Change = (stream) => {
  const shown = [stream.head, ...stream.rest].filter((chunk) =>
    /prompt_token_ids|input_ids/.test(JSON.stringify(chunk)),
  );
  return { ...stream, rest: [...shown.map((chunk) => ({ ...chunk })), ...stream.rest] };
};

describe.each(streamForms)('a stream of $name', (form) => {
  it.each(refusedStreams.filter(([, needs]) => provides[needs](form)))(
    'is refused when it %s',
    async (_, __, change, refusal) => {
      const { code, message, stopsStreaming } = refusal;
      await expect(streamed(form, change)).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
      if (stopsStreaming !== undefined) expect(connected?.engine.info().streaming).toBe(!stopsStreaming);
    },
  );

  it.runIf(form.tokens)('is refused when the ids of its prompt come twice', async () => {
    await expect(streamed(form, promptTwice)).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/comes? twice/),
    });
  });

  it('is accepted when it is valid', async () => {
    const reply = await streamed(form, (stream) => stream);
    expect(reply).toMatchObject({ message: { content: 'Hello.' }, finishReason: 'stop' });
    if (form.tokens) expect([...reply.responseIds]).toEqual([11, 12, 2]);
  });

  it('is accepted with a chunk after the finish that adds nothing', async () => {
    const empty = { ...(form.chat ? { delta: { role: 'assistant', content: '' } } : {}), logprobs: null };
    expect((await streamed(form, after(empty))).message.content).toBe('Hello.');
  });

  it(`is ${form.repeatsFinish ? 'accepted' : 'refused'} when a later chunk repeats the finish reason`, async () => {
    const reply = streamed(form, after({ finish_reason: 'stop' }));
    if (form.repeatsFinish) expect((await reply).finishReason).toBe('stop');
    else await expect(reply).rejects.toMatchObject({ message: expect.stringMatching(/second finish_reason/) });
  });

  it('is accepted whatever follows [DONE]', async () => {
    const reply = await streamed(form, (stream) => ({ ...stream, end: `[DONE]\n\ndata: {"error":"late"}` }));
    expect(reply.message.content).toBe('Hello.');
  });

  it(`is ${form.endsWithoutDone ? 'accepted' : 'refused'} without [DONE]`, async () => {
    const reply = streamed(form, (stream) => ({ ...stream, end: '' }));
    if (form.endsWithoutDone) expect((await reply).message.content).toBe('Hello.');
    else
      await expect(reply).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(/\[DONE\]/) });
  });

  it.runIf(form.chat)('has the finish reason tool_calls when it has calls and was stopped', async () => {
    const piece = call({ index: 0, id: 'a', function: { name: 'sh', arguments: '{}' } });
    const reply = await streamed(form, (stream) => ({ ...stream, tokens: [...stream.tokens, stream.chunk(piece)] }));
    expect(reply.message.tool_calls).toHaveLength(1);
    expect(reply.finishReason).toBe('tool_calls');
  });

  it.runIf(form.chat)('begins a call at each piece with an id when its pieces have no index', async () => {
    const pieces = [
      { id: 'a', function: { name: 'sh', arguments: '{}' } },
      { id: 'b', function: { name: 'sh', arguments: '{"x":' } },
      { function: { arguments: '1}' } },
    ];
    const reply = await streamed(form, (stream) => ({
      ...stream,
      tokens: [...stream.tokens, ...pieces.map((piece) => stream.chunk(call(piece)))],
    }));
    expect(reply.message.tool_calls?.map(({ id, function: { arguments: text } }) => [id, text])).toEqual([
      ['a', '{}'],
      ['b', '{"x":1}'],
    ]);
  });
});

async function asked(
  form: WholeForm,
  parts: WholeParts,
  change = (reply: Json): unknown => reply,
): Promise<GenerateReply> {
  connected = await form.connect();
  return connected.ask(
    (received) => json(received.response, 200, change(form.reply(received, parts))),
    form.chat ? withTools : {},
  );
}

const message = (over: Json) => ({ message: { role: 'assistant', content: 'Hello.', ...over } });
const toolCall = { id: 'a', type: 'function', function: { name: 'sh', arguments: '{}' } };
const twice = (reply: Json) => ({ ...reply, choices: [...(reply.choices as Json[]), ...(reply.choices as Json[])] });

const refusedReplies: readonly [
  string,
  (form: WholeForm) => boolean,
  WholeParts,
  RegExp,
  ((reply: Json) => unknown)?,
][] = [
  ['has no usage', ({ name }) => !/prompts of ids/.test(name), { completionTokens: null }, /usage/],
  ['has fewer ids than the usage counts', ({ tokens }) => tokens, { completionTokens: 4 }, /3 ids.* 4/],
  ['has fewer log-probabilities than ids', ({ tokens }) => tokens, { logprobs: [-1, -1] }, /2 entries for 3/],
  ['has a log-probability above 0', ({ tokens }) => tokens, { logprobs: [0.5, -1, -1] }, /0\S* is 0\.5, above 0/],
  [
    'has no log-probability where a number belongs',
    ({ tokens }) => tokens,
    { logprobs: [-1, null, -1] },
    /1\S* is not a finite/,
  ],
  ['has no token', ({ tokens }) => tokens, { ids: [] }, /no token was sampled/],
  ['has two choices', ({ name }) => !/SGLang's replies to/.test(name), {}, /choices/, twice],
  [
    'has a choice with another index',
    ({ name }) => !/SGLang's replies to/.test(name),
    {},
    /index/,
    (reply) => merged(reply, { index: 1 }),
  ],
  ['has an unknown finish reason', () => true, { finish: 'eos' }, /finish_reason is "eos"/],
  ['is an error object', () => true, {}, /error inside: quota/, () => ({ error: { message: 'quota' } })],
  [
    'has a tool call without an id',
    ({ chat }) => chat,
    message({ tool_calls: [{ ...toolCall, id: '' }] }),
    /tool_calls\.0\S* .*id|tool_calls\.0\.id/,
  ],
];

describe.each(wholeForms)('a whole reply in the form of $name', (form) => {
  it.each(refusedReplies.filter(([, fits]) => fits(form)))(
    'is refused when it %s',
    async (_, __, parts, reason, change) => {
      await expect(asked(form, parts, change)).rejects.toMatchObject({
        code: 'engine_error',
        message: expect.stringMatching(reason),
      });
    },
  );

  it('is accepted when it is valid', async () => {
    const reply = await asked(form, {});
    expect(reply).toMatchObject({ message: { content: 'Hello.' }, finishReason: 'stop' });
    if (form.tokens) expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
  });

  it.runIf(form.chat)('has the finish reason tool_calls when it has calls and was stopped', async () => {
    const reply = await asked(form, message({ tool_calls: [toolCall] }));
    expect(reply.finishReason).toBe('tool_calls');
  });

  it.runIf(form.chat)('has no white space beside calls, like a streamed reply', async () => {
    const reply = await asked(form, message({ content: '\n\n', tool_calls: [toolCall] }));
    expect(reply.message.content).toBeNull();
  });

  it.runIf(form.chat)('has thinking from a second field when the first one is empty', async () => {
    const { message: parsed } = await asked(form, message({ reasoning: '', reasoning_content: 'hm' }));
    expect(parsed.reasoning_content).toBe('hm');
  });
});
