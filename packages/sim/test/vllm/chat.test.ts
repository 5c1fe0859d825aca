import { afterEach, describe, expect, it } from 'vitest';
import { type SimOptions, type SimServer, startSim } from '../../src/index.ts';
import { TEMPLATE_MODES } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { assembled, type Choice, type Chunk, events, post } from '../sse.ts';

const vocabulary = bundledVocabulary();
const { special } = vocabulary;
const decoded = (ids: readonly number[]): string => vocabulary.decode(ids);

const tools = [{ type: 'function', function: { name: 'bash' } }];
const request = {
  messages: [{ role: 'user', content: 'Go.' }],
  tools,
  return_token_ids: true,
  logprobs: true,
  seed: 3,
  stream_options: { include_usage: true },
};
const full = [
  { think: 6 },
  { text: 'Größe: 😀.' },
  { call: { tool: 'bash', arguments: { command: 'echo "ü"; cat {a,b}' } } },
  { call: { tool: 'bash', arguments: {} } },
];

const running: SimServer[] = [];
async function start(reply: unknown[], options: SimOptions = {}): Promise<SimServer> {
  const sim = await startSim({
    scenarios: [{ name: 's', rules: [{ reply }] }] as never,
    reportVersions: 'all',
    ...options,
  });
  running.push(sim);
  return sim;
}
afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

async function plain(sim: SimServer, more: object = {}): Promise<Choice> {
  const response = await post(`${sim.url}/v1/chat/completions`, { ...request, ...more });
  const [choice] = ((await response.json()) as Chunk).choices;
  if (choice === undefined) throw new Error('the reply has no choice');
  return choice;
}

async function chunksOf(sim: SimServer, more: object = {}): Promise<Chunk[]> {
  return events(await (await post(`${sim.url}/v1/chat/completions`, { ...request, stream: true, ...more })).text());
}

describe('a streamed chat completion', () => {
  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: has every field where vLLM has it`, async () => {
      const sim = await start(full, { templateMode });
      for (const interval of [1, 4, 1000]) {
        const chunks = await chunksOf(sim, { stream_interval: interval });
        const entry = sim.ledger.entries().at(-1);
        const [first, ...rest] = chunks;
        const usage = rest.pop();
        expect(first?.prompt_token_ids).toEqual(entry?.prompt_ids);
        expect(first?.choices[0]?.delta).toEqual({ role: 'assistant', content: '' });
        expect(first?.choices[0]).not.toHaveProperty('token_ids');
        expect(usage?.choices).toEqual([]);
        const ids = rest.flatMap(({ choices }) => choices[0]?.token_ids ?? []);
        expect(ids).toEqual(entry?.response_ids);
        expect(ids.length).toBe(usage?.usage?.completion_tokens);
        for (const chunk of rest) {
          expect(chunk).not.toHaveProperty('prompt_token_ids');
          expect(chunk.choices[0]?.logprobs?.content.length).toBe(chunk.choices[0]?.token_ids?.length);
        }
        const last = rest.at(-1)?.choices[0];
        expect(last).toMatchObject({
          finish_reason: 'tool_calls',
          stop_reason: null,
          weight_versions: entry?.version_spans,
        });
        expect(last?.token_ids?.at(-1)).toBe(special.imEnd);
        for (const { choices } of rest.slice(0, -1)) {
          expect(choices[0]?.finish_reason).toBeNull();
          expect(choices[0]).not.toHaveProperty('weight_versions');
        }
      }
    });
  }

  it('sends chunks with ids and an empty delta where the parser shows no text, and none when no ids are requested', async () => {
    const sim = await start(full);
    const chunks = await chunksOf(sim);
    const swallowed = chunks.filter(({ choices }) => choices[0] && Object.keys(choices[0].delta).length === 0);
    expect(swallowed.flatMap(({ choices }) => choices[0]?.token_ids ?? [])).toContain(special.thinkOpen);
    expect(swallowed.flatMap(({ choices }) => choices[0]?.token_ids ?? [])).toContain(special.toolCallOpen);
    const quiet = await chunksOf(sim, { return_token_ids: false, logprobs: false });
    const empty = quiet.filter(({ choices }) => choices[0] && Object.keys(choices[0].delta).length === 0);
    expect(empty.map(({ choices }) => choices[0]?.finish_reason)).toEqual(['tool_calls']);
  });

  it('shows the name of a call first and then its arguments in parts', async () => {
    const sim = await start(full);
    const chunks = await chunksOf(sim);
    const parts = chunks.flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? []);
    expect(parts[0]).toEqual({
      index: 0,
      id: expect.stringMatching(/^chatcmpl-tool-/),
      type: 'function',
      function: { name: 'bash' },
    });
    const pieces = parts.filter((part) => part.function.name === undefined);
    expect(pieces.length).toBeGreaterThan(4);
    for (const piece of pieces) expect(Object.keys(piece)).toEqual(['index', 'function']);
    const calls = (await plain(sim)).message.tool_calls;
    expect(assembled(chunks).message.tool_calls.map((call) => call.function)).toEqual(
      calls.map((call) => call.function),
    );
    expect(new Set(assembled(chunks).message.tool_calls.map(({ id }) => id)).size).toBe(2);
  });
});

/** Requests a reply that `max_tokens` cuts: its last token is the `skip`th token after the first occurrence of token `id`. */
async function cutAfter(sim: SimServer, id: number, skip: number) {
  const whole = await plain(sim);
  const bound = (whole.token_ids?.indexOf(id) ?? -1) + 1 + skip;
  expect(bound).toBeGreaterThan(skip);
  const chunks = await chunksOf(sim, { max_tokens: bound });
  return { whole, cut: await plain(sim, { max_tokens: bound }), streamed: assembled(chunks), bound };
}

describe('a reply cut by its length', () => {
  it('has reasoning without content when cut inside thinking', async () => {
    const { cut, streamed, bound } = await cutAfter(await start(full), special.thinkOpen, 3);
    for (const choice of [cut, streamed]) {
      expect(choice.finish_reason).toBe('length');
      expect(choice.stop_reason).toBeNull();
      expect(choice.message).toMatchObject({ content: null });
      expect(choice.message.tool_calls ?? []).toEqual([]);
      expect(choice.message.reasoning).toBe(decoded(choice.token_ids?.slice(1) ?? []));
      expect(choice.token_ids?.length).toBe(bound);
    }
  });

  it('keeps the text before the cut inside text and inside a character', async () => {
    const sim = await start([{ text: '😀😀😀' }]);
    const length = (await plain(sim)).token_ids?.length ?? 0;
    let broken = 0;
    for (let bound = 1; bound < length; bound++) {
      const cut = await plain(sim, { max_tokens: bound });
      const streamed = assembled(await chunksOf(sim, { max_tokens: bound }));
      expect(cut.finish_reason).toBe('length');
      expect(cut.message.content).toBe(decoded(cut.token_ids ?? []));
      expect(streamed.message).toEqual({ ...streamed.message, content: cut.message.content, reasoning: null });
      expect(streamed.token_ids).toEqual(cut.token_ids);
      if (cut.message.content?.includes('\ufffd')) broken++;
    }
    expect(broken).toBeGreaterThan(0);
  });

  it('has an incomplete call as content, of which a stream has shown the beginning', async () => {
    const { cut, streamed, whole } = await cutAfter(await start(full), special.toolCallOpen, 12);
    expect(cut.finish_reason).toBe('length');
    expect(cut.message).not.toHaveProperty('tool_calls');
    expect(cut.message.content).toMatch(/😀\.\n<tool_call>\n\{"name": "bash", "arguments": \{/);
    expect(streamed.finish_reason).toBe('length');
    expect(streamed.message.content).toBe(whole.message.content);
    expect(streamed.message.tool_calls.length).toBe(1);
    const [begun] = streamed.message.tool_calls;
    const [done] = whole.message.tool_calls;
    expect(done?.function.arguments.startsWith(begun?.function.arguments ?? '-')).toBe(true);
    expect(begun?.function.arguments).not.toBe(done?.function.arguments);
    expect(streamed.token_ids).toEqual(cut.token_ids);
  });

  it('keeps a complete call before the cut with the finish reason length', async () => {
    const { cut, streamed } = await cutAfter(await start(full), special.toolCallClose, 0);
    for (const choice of [cut, streamed]) {
      expect(choice.finish_reason).toBe('length');
      expect(choice.message.tool_calls.length).toBe(1);
    }
  });
});

describe('a raw text', () => {
  const cutOff = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"';
  it.each([
    ['that is incomplete', [{ raw: cutOff }], 'bash'],
    [
      'that is not valid JSON',
      [{ text: 'Look.\n' }, { raw: '<tool_call>\n{"name": "bash", oops}\n</tool_call>' }],
      'bash',
    ],
    ['that has no name', [{ raw: '<tool_call>\n{"arguments": {}}\n</tool_call>' }], null],
    ['after a valid call', [{ call: { tool: 'bash' } }, { raw: `\n${cutOff}` }], 'bash'],
  ])('with a call %s becomes content, while a stream shows the call', async (_, reply, name) => {
    const sim = await start(reply);
    const whole = await plain(sim);
    expect(whole.message).not.toHaveProperty('tool_calls');
    expect(whole.message.content).toBe(decoded(whole.token_ids?.slice(0, -1) ?? []));
    expect(whole.finish_reason).toBe('stop');
    const streamed = assembled(await chunksOf(sim));
    expect(streamed.message.tool_calls[0]?.function.name ?? null).toBe(name);
    expect(streamed.finish_reason).toBe(name === null ? 'stop' : 'tool_calls');
    expect(streamed.token_ids).toEqual(whole.token_ids);
  });

  it.each([
    ['arguments that are not an object', '"ls -la"'],
    ['arguments that are a list', '["ls"]'],
  ])('with %s becomes a call with exactly these', async (_, text) => {
    const sim = await start([{ raw: `<tool_call>\n{"name": "bash", "arguments": ${text}}\n</tool_call>` }]);
    const whole = await plain(sim);
    expect(whole.message.tool_calls.map((call) => call.function)).toEqual([{ name: 'bash', arguments: text }]);
    expect(assembled(await chunksOf(sim)).message.tool_calls[0]?.function.arguments).toBe(text);
  });

  it('may call a tool that was not offered and be followed by text that the parser drops', async () => {
    const raw = '<tool_call>\n{"name": "teleport", "arguments": {}}\n</tool_call>\nBye.';
    const sim = await start([{ raw }]);
    const whole = await plain(sim);
    expect(whole.message).toMatchObject({ content: null, tool_calls: [{ function: { name: 'teleport' } }] });
    expect(whole.finish_reason).toBe('tool_calls');
    expect(decoded(whole.token_ids ?? [])).toBe(`${raw}<|im_end|>`);
  });
});
