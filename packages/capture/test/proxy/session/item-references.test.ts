import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { json, type ReplyParts, sendStream, vllmChunks, vllmReply } from '../../engines/scripted-server.ts';
import { Rig } from '../rig.ts';

/** The engine's reply to a request whose history has no assistant turn. */
const FIRST: ReplyParts = {
  content: '\n\nLet me look.',
  reasoning: 'Two files.\n',
  toolCalls: [
    { id: 'call_a', name: 'read', arguments: '{ "path":"a" }' },
    { id: 'call_b', name: 'patch', arguments: '{"input": "b"}' },
  ],
};
const CALLS = [
  { id: 'call_a', type: 'function', function: { name: 'read', arguments: '{ "path":"a" }' } },
  { id: 'call_b', type: 'function', function: { name: 'patch', arguments: '{"input": "b"}' } },
];
const TOOLS = [
  { type: 'function', name: 'read', parameters: { type: 'object' } },
  { type: 'custom', name: 'patch' },
];
const QUESTION = { role: 'user', content: 'one' };
/** Makes the results of a reply's two tool calls as a client sends them, with the call ids that the client received. */
const resultsOf = (output: Response['output']) => {
  const [a, b] = output.flatMap(({ call_id }) => call_id ?? []);
  return [
    { type: 'function_call_output', call_id: a, output: 'A' },
    { type: 'custom_tool_call_output', call_id: b, output: 'B' },
  ];
};
/** Makes the results of the two tool calls as the engine should receive them, with the engine's call ids. */
const canonicalResults = (ids: readonly (string | undefined)[] = ['call_a', 'call_b']) => [
  { role: 'tool', tool_call_id: ids[0], content: 'A' },
  { role: 'tool', tool_call_id: ids[1], content: 'B' },
];

let rig: Rig;
let key: string;
beforeEach(async () => {
  rig = await Rig.start();
  rig.server.onChat = (received) => {
    const messages = received.body.messages as { role: string }[];
    const parts = messages.some(({ role }) => role === 'assistant') ? {} : FIRST;
    if (received.body.stream === true) sendStream(received.response, vllmChunks(received, parts));
    else json(received.response, 200, vllmReply(received, parts));
  };
  key = rig.key();
});
afterEach(() => rig.stop());

type Response = {
  id: string;
  output: { type: string; id: string; call_id?: string }[];
  error: { message: string; param: unknown };
};

async function post(body: object, path = '/v1/responses'): Promise<{ status: number; body: string }> {
  return await rig.send({ path: `/s/${key}${path}`, body: { model: 'policy', tools: TOOLS, ...body } }).reply;
}

async function respond(body: object): Promise<Response & { status: number }> {
  const reply = await post(body);
  return { ...JSON.parse(reply.body), status: reply.status };
}

/** Requests a streamed reply and returns its output items as a client assembles them from the stream. */
async function streamed(body: object): Promise<Response['output']> {
  const { body: text } = await post({ ...body, stream: true });
  return [...text.matchAll(/^data: (.*)$/gm)]
    .map(([, data]) => JSON.parse(data ?? ''))
    .flatMap(({ type, item }) => (type === 'response.output_item.done' ? [item] : []));
}

const refs = (items: readonly { id: string }[]) => items.map(({ id }) => ({ type: 'item_reference', id }));
const asked = (index: number) => rig.server.chats[index]?.body.messages;

describe('items that a request refers to', () => {
  it.each([false, true])('are the recorded turn, after a reply with stream: %s', async (stream) => {
    const session = await rig.open({ key });
    const output = stream ? await streamed({ input: [QUESTION] }) : (await respond({ input: [QUESTION] })).output;
    expect(output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'function_call', 'custom_tool_call']);
    expect((await respond({ input: [QUESTION, ...refs(output), ...resultsOf(output)] })).status).toBe(200);
    const [first, second] = session.completions();
    const ids = first?.message.tool_calls?.map(({ id }) => id);
    expect(first?.engineCallIds).toEqual(['call_a', 'call_b']);
    expect(second?.request.messages).toEqual([QUESTION, first?.message, ...canonicalResults(ids)]);
    expect(second?.request.adjusted).toEqual([]);
    expect(asked(1)).toEqual([
      QUESTION,
      { role: 'assistant', content: '\n\nLet me look.', reasoning_content: 'Two files.\n', tool_calls: CALLS },
      ...canonicalResults(),
    ]);
  });

  it('may be of any reply of the session, and only the named ones are included', async () => {
    await rig.open({ key });
    const one = await respond({ input: [QUESTION] });
    const named = [QUESTION, ...refs(one.output.slice(2)), ...resultsOf(one.output)];
    const two = await respond({ input: named });
    await respond({ input: [...named, ...refs(two.output), { role: 'user', content: 'two' }] });
    expect(asked(2)).toEqual([
      QUESTION,
      { role: 'assistant', content: null, tool_calls: CALLS },
      ...canonicalResults(),
      { role: 'assistant', content: 'Hello.' },
      { role: 'user', content: 'two' },
    ]);
  });

  it('are combined with the previous response of the request', async () => {
    await rig.open({ key });
    const one = await respond({ input: [QUESTION] });
    const two = await respond({ input: [{ role: 'user', content: 'aside' }, ...refs(one.output.slice(1, 2))] });
    const input = [...refs(one.output), ...resultsOf(one.output)];
    expect((await respond({ input, previous_response_id: two.id })).status).toBe(200);
    expect(asked(2)).toEqual([
      { role: 'user', content: 'aside' },
      { role: 'assistant', content: '\n\nLet me look.' },
      { role: 'assistant', content: 'Hello.' },
      { role: 'assistant', content: '\n\nLet me look.', reasoning_content: 'Two files.\n', tool_calls: CALLS },
      ...canonicalResults(),
    ]);
  });

  it('are included in a count', async () => {
    const session = await rig.open({ key });
    const { output } = await respond({ input: [QUESTION] });
    const count = await post(
      { input: [QUESTION, ...refs(output), ...resultsOf(output)] },
      '/v1/responses/input_tokens',
    );
    expect(JSON.parse(count.body)).toMatchObject({ input_tokens: 7 });
    const tokenized = rig.server.received.findLast(({ path }) => path === '/tokenize');
    const message = { ...session.completions()[0]?.message, tool_calls: CALLS };
    expect(tokenized?.body.messages).toEqual([QUESTION, message, ...canonicalResults()]);
    const unknown = await post({ input: [QUESTION, ...refs([{ id: 'rs_cpl_0' }])] }, '/v1/responses/input_tokens');
    expect(unknown).toMatchObject({ status: 400, body: expect.stringContaining('input.1.id') });
  });
});

describe('items that the session did not send', () => {
  async function isRefused(id: string): Promise<void> {
    const calls = rig.server.chats.length;
    const { status, error } = await respond({ input: [QUESTION, ...refs([{ id }])] });
    expect(status).toBe(400);
    expect(error.message).toBe(`responses request: input.1.id: no item ${JSON.stringify(id)} in this session`);
    expect(rig.server.chats).toHaveLength(calls);
  }

  it('are refused with the name of the field when they belong to another session or to no reply', async () => {
    await rig.open({ key });
    const { output } = await respond({ input: [QUESTION] });
    await isRefused('rs_cpl_0');
    await isRefused(`${output[2]?.id}0`);
    key = rig.key();
    const other = await rig.open({ key, sessionId: 'ses_2' });
    for (const { id } of output) await isRefused(id);
    expect(other).toMatchObject({ completionCount: 0, failures: { refusal: { code: 'schema_violation' } } });
  });

  it('are refused when the engine aborted the reply, and before the reply is durable', async () => {
    const session = await rig.open({ key });
    const { onChat } = rig.server;
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { finish: 'abort' }));
    expect((await respond({ input: [QUESTION] })).status).toBe(502);
    expect(session.completionCount).toBe(1);
    await isRefused(`msg_${session.completions()[0]?.completionId}`);
    rig.server.onChat = onChat;
    rig.journal.hold = true;
    const held = respond({ input: [{ role: 'user', content: 'two' }] });
    await rig.journal.waiting();
    const [entry] = rig.journal.held;
    await isRefused(`msg_${entry?.completion.completionId}`);
    entry?.commit();
    const { output } = await held;
    rig.journal.hold = false;
    expect((await respond({ input: [QUESTION, ...refs(output)] })).status).toBe(200);
  });
});
