import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseCalls, pythonJson, ReplyTextStream, separateReasoning } from '../../src/sglang/reply-text.ts';
import { TEMPLATE_MODES } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { post } from '../sse.ts';
import { type ChatReply, chat, entryOf, postOk, promptOf, start, stream, tools, user } from './client.ts';

const vocabulary = bundledVocabulary();

describe('/v1/completions', () => {
  it('continues prompt ids and reports ids in whole replies and streams', async () => {
    const sim = await start();
    const prompt = await promptOf(sim);
    const body = { prompt, seed: 5, max_tokens: 100, logprobs: 1, return_token_ids: true };
    const reply = await postOk<ChatReply>(sim, '/v1/completions', { ...body, rid: 'a' });
    const entry = entryOf(sim, 'a');
    const choice = reply.choices[0];
    expect(entry).toMatchObject({ prompt_ids: prompt, prompt_form: 'ids', endpoint: '/v1/completions' });
    expect(choice).toMatchObject({ prompt_token_ids: prompt, token_ids: entry.response_ids, finish_reason: 'stop' });
    expect(choice?.matched_stop).toBe(vocabulary.special.imEnd);
    expect(choice?.logprobs).toMatchObject({ token_logprobs: entry.processed_logprobs });
    expect(choice?.text).toBe(vocabulary.decode(entry.response_ids, { skipSpecial: true }));
    expect(reply.metadata?.weight_versions).toEqual(entry.version_spans);
    const chunks = await stream<ChatReply>(sim, '/v1/completions', {
      ...body,
      stream_options: { include_usage: true },
    });
    const choices = chunks.flatMap((chunk) => chunk.choices);
    expect(choices[0]?.prompt_token_ids).toEqual(prompt);
    expect(choices.flatMap(({ token_ids }) => token_ids)).toEqual(entry.response_ids);
    expect(choices.map(({ text }) => text).join('')).toBe(choice?.text);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(entry.response_ids.length);
  });

  it('accepts text, limits replies to 16 tokens, and reports no ids in old releases', async () => {
    const sim = await start({ sglangAge: 'meta_info' });
    const body = { prompt: 'failing test', rid: 'a', return_token_ids: true };
    const reply = await postOk<ChatReply>(sim, '/v1/completions', body);
    expect(entryOf(sim, 'a')).toMatchObject({ prompt_form: 'text', prompt_ids: vocabulary.encode('failing test') });
    expect(entryOf(sim, 'a').params.maxTokens).toBe(16);
    expect(reply.choices[0]).not.toHaveProperty('token_ids');
    expect((await post(`${sim.url}/v1/completions`, { prompt: ['a', 'b'] })).status).toBe(400);
    expect((await post(`${sim.url}/v1/completions`, { prompt: 'a', echo: true })).status).toBe(400);
  });
});

describe('/tokenize and /detokenize', () => {
  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: give the ids of a chat's prompt under both paths`, async () => {
      const sim = await start({ templateMode, maxModelLen: 1_000 });
      await chat(sim, { rid: 'a' });
      const { prompt_ids: tokens } = entryOf(sim, 'a');
      for (const path of ['/tokenize', '/v1/tokenize']) {
        const reply = await postOk(sim, path, { messages: [user], tools });
        expect(reply).toEqual({ tokens, count: tokens.length, max_model_len: 1_000 });
      }
    });
  }

  it('leave the last assistant message open when it is to be continued', async () => {
    const sim = await start();
    const messages = [user, { role: 'assistant', content: 'I will' }];
    const { imEnd } = vocabulary.special;
    const open = await promptOf(sim, { messages, continue_final_message: true });
    expect(open.at(-1)).not.toBe(imEnd);
    expect(vocabulary.decode(open)).toMatch(/I will$/);
    const closed = await promptOf(sim, { messages });
    expect(vocabulary.decode(closed)).toMatch(/I will<\|im_end\|>\n<\|im_start\|>assistant\n$/);
  });

  it('leave turn delimiters out of the text unless requested', async () => {
    const sim = await start();
    const { imStart } = vocabulary.special;
    const tokens = [imStart, ...vocabulary.encode('user\nhi')];
    expect(await postOk(sim, '/detokenize', { tokens })).toEqual({ text: 'user\nhi' });
    const text = '<|im_start|>user\nhi';
    expect(await postOk(sim, '/v1/detokenize', { tokens, skip_special_tokens: false })).toEqual({ text });
    expect((await postOk<{ tokens: number[] }>(sim, '/tokenize', { prompt: text })).tokens).toEqual(tokens);
  });

  it('refuse neither or both of prompt and messages, and ids outside the vocabulary', async () => {
    const sim = await start();
    expect((await post(`${sim.url}/tokenize`, {})).status).toBe(400);
    expect((await post(`${sim.url}/tokenize`, { prompt: 'a', messages: [user] })).status).toBe(400);
    expect((await post(`${sim.url}/detokenize`, { tokens: [1_000_000] })).status).toBe(400);
  });

  it('return other ids under the fault tokenizer_mismatch', async () => {
    const sim = await start({ faults: [{ kind: 'tokenizer_mismatch', on_calls: [2] }] });
    const right = await promptOf(sim);
    const wrong = await promptOf(sim);
    expect(wrong).toHaveLength(right.length);
    expect(wrong).not.toEqual(right);
    expect(await promptOf(sim)).toEqual(right);
  });
});

describe('/parse_function_call and /separate_reasoning', () => {
  it('return the same calls and reasoning as a chat', async () => {
    const sim = await start({ templateMode: 'strip_thinking' });
    const reply = await chat(sim, { seed: 5, rid: 'a' });
    const text = vocabulary.decode(entryOf(sim, 'a').response_ids, { skipSpecial: true });
    const split = await postOk<{ reasoning_text: string; text: string }>(sim, '/separate_reasoning', {
      text,
      reasoning_parser: 'qwen3',
    });
    const parsed = await postOk<{ normal_text: string; calls: object[] }>(sim, '/parse_function_call', {
      text: split.text,
      tools,
      tool_call_parser: 'qwen25',
    });
    const message = reply.choices[0]?.message;
    expect(split.reasoning_text).toBe(message?.reasoning_content);
    expect(parsed.normal_text).toBe(message?.content);
    expect(parsed.calls).toEqual(
      message?.tool_calls?.map(({ index, function: call }) => ({
        tool_index: index,
        name: call.name,
        parameters: call.arguments,
      })),
    );
  });

  it('refuse parsers that the server does not have', async () => {
    const sim = await start();
    const call = await post(`${sim.url}/parse_function_call`, { text: 'a', tools, tool_call_parser: 'hermes' });
    const split = await post(`${sim.url}/separate_reasoning`, { text: 'a', reasoning_parser: 'glm45' });
    expect([call.status, split.status]).toEqual([400, 400]);
    expect(await call.text()).toContain('hermes');
    expect(await split.text()).toContain('glm45');
  });

  it('do not recognise thinking that the prompt opened', async () => {
    const sim = await start();
    const text = 'Hm.\n</think>\n\nYes.';
    const separate = (words: string): Promise<object> =>
      postOk(sim, '/separate_reasoning', { text: words, reasoning_parser: 'qwen3' });
    expect(await separate(text)).toEqual({ reasoning_text: '', text });
    expect(await separate(`<think>${text}`)).toEqual({ reasoning_text: 'Hm.\n', text: '\n\nYes.' });
    expect(await separate('<think>Hm.')).toEqual({ reasoning_text: 'Hm.', text: '' });
  });
});

const call = (json: string): string => `<tool_call>\n${json}\n</tool_call>`;
const bash = new Set(['bash']);

describe('parsing calls in text', () => {
  const cases: readonly [what: string, text: string, expected: ReturnType<typeof parseCalls>][] = [
    ['no call', 'a < b', { text: 'a < b', calls: [] }],
    [
      'two calls and text around them',
      ` one ${call('{"name": "bash", "arguments": {"a":1}}')}\n${call('{"name":"bash"}')} after`,
      {
        text: 'one',
        calls: [
          { name: 'bash', parameters: '{"a": 1}' },
          { name: 'bash', parameters: '{}' },
        ],
      },
    ],
    [
      'an invalid call next to a valid one',
      call('{"name": "bash"') + call('{"name": "bash", "arguments": {}}'),
      { text: '', calls: [{ name: 'bash', parameters: '{}' }] },
    ],
    [
      'parameters instead of arguments',
      call('{"name": "bash", "parameters": {"b": [1,2]}, "arguments": {"a":1}}'),
      { text: '', calls: [{ name: 'bash', parameters: '{"b": [1, 2]}' }] },
    ],
    ['a tool that there is not', call('{"name": "python"}'), { text: call('{"name": "python"}'), calls: [] }],
    [
      'a block that does not end',
      '<tool_call>\n{"name": "bash"}',
      { text: '<tool_call>\n{"name": "bash"}', calls: [] },
    ],
    [
      'a block in one line',
      '<tool_call>{"name": "bash"}</tool_call>',
      { text: '<tool_call>{"name": "bash"}</tool_call>', calls: [] },
    ],
  ];
  for (const [what, text, expected] of cases) {
    it(what, () => expect(parseCalls(text, bash)).toEqual(expected));
  }

  it('reformats arguments without changing their value, numbers or the order of keys', () => {
    expect(pythonJson('{"10":1.0,"2":1e5,"a":"x\\u00e9\\/, : "}')).toBe('{"10": 1.0, "2": 1e5, "a": "xé/, : "}');
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom(undefined, 1, '\t'), (value, indent) => {
        const written = pythonJson(JSON.stringify(value, null, indent));
        expect(JSON.parse(written)).toEqual(JSON.parse(JSON.stringify(value)));
        expect(written).toBe(pythonJson(JSON.stringify(value)));
      }),
    );
  });
});

describe('parsing text incrementally', () => {
  const parts = fc.array(
    fc.constantFrom(
      '<think>',
      '</think>',
      '<tool_call>\n',
      '\n</tool_call>',
      '{"name": "bash", "arguments": {"a": "b c"}}',
      '{"name": "other"}',
      '{"name": "bash"',
      ' words ',
      '<',
      '\n',
      'é',
    ),
    { maxLength: 10 },
  );

  it('shows the same message for any split of the text', () => {
    fc.assert(
      fc.property(parts, fc.array(fc.nat(40), { maxLength: 8 }), fc.boolean(), (pieces, cuts, insideThinking) => {
        const text = pieces.join('');
        expect(readInPieces(text, cuts, insideThinking)).toEqual(readInPieces(text, [], insideThinking));
      }),
    );
  });

  it('shows the thinking and the calls of the whole text', () => {
    fc.assert(
      fc.property(parts, fc.array(fc.nat(40), { maxLength: 8 }), fc.boolean(), (pieces, cuts, insideThinking) => {
        // Skips texts in which thinking begins in the middle, because only the parser of complete replies recognises such thinking.
        const text = pieces.join('');
        fc.pre(insideThinking || text.startsWith('<think>') || !text.includes('<think>'));
        fc.pre(!text.startsWith('<think><think>'));
        const split = separateReasoning(text, insideThinking);
        const whole = parseCalls(split.text, bash);
        const shown = readInPieces(text, cuts, insideThinking);
        expect(shown.reasoning).toBe(split.reasoning);
        expect(shown.calls).toEqual(whole.calls);
        if (whole.calls.length === 0) expect(shown.content).toBe(whole.text);
        else expect(shown.content.trim()).toBe(whole.text);
      }),
    );
  });
});

type Shown = { reasoning: string; content: string; calls: { name: string; parameters: string }[] };

function readInPieces(text: string, cuts: readonly number[], insideThinking: boolean): Shown {
  const stream = new ReplyTextStream({ insideThinking, separateReasoning: true, tools: bash, newCallId: String });
  const shown: Shown = { reasoning: '', content: '', calls: [] };
  const places = [0, ...[...cuts].sort((a, b) => a - b), text.length];
  for (let i = 1; i < places.length; i++) {
    const delta = stream.push(text.slice(places[i - 1], places[i]), i === places.length - 1);
    shown.reasoning += delta.reasoning ?? '';
    shown.content += delta.content ?? '';
    for (const news of delta.calls ?? []) {
      if ('name' in news) shown.calls[news.index] = { name: news.name, parameters: '' };
      else (shown.calls[news.index] as { parameters: string }).parameters += news.argumentsText;
    }
  }
  return shown;
}
