import { describe, expect, it } from 'vitest';
import { TEMPLATE_MODES } from '../../src/sim/template.ts';
import { postJson, simStarter, TOOLS, USER } from './running.ts';
import { post } from './sse.ts';

const start = simStarter();

type Block = { type: string; text?: string; thinking?: string; id?: string; name?: string; input?: object };
type Message = {
  type: string;
  content: Block[];
  stop_reason: string;
  usage: { input_tokens: number; output_tokens: number };
};
type Item = {
  type: string;
  content?: { text: string }[];
  call_id?: string;
  name?: string;
  arguments?: string;
};
type Response = { status: string; output: Item[]; usage: { input_tokens: number } };

const anthropicTools = [{ name: 'bash', input_schema: { type: 'object' } }];
const responsesTools = [{ type: 'function', name: 'bash', parameters: { type: 'object' } }];

/** No key or text of a reply tells an id or a logprob. */
function untold(text: string): void {
  expect(text).not.toMatch(/token_ids|token_id:|"logprob"|weight_version|routed_experts/);
}

describe('/v1/messages', () => {
  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: says what the chat says for the same prompt, without ids`, async () => {
      const sim = await start({ templateMode });
      const first = await postJson<Message>(`${sim.url}/v1/messages`, {
        model: 'floe-sim',
        max_tokens: 200,
        system: 'Be brief.',
        messages: [{ role: 'user', content: [{ type: 'text', text: 'Go.' }] }],
        tools: anthropicTools,
      });
      untold(JSON.stringify(first.body));
      expect(first.body.content.map(({ type }) => type)).toEqual(['thinking', 'text', 'tool_use']);
      expect(first.body.stop_reason).toBe('tool_use');
      const call = first.body.content[2];
      expect(call).toMatchObject({ name: 'bash', input: { command: 'ls' } });
      const answered = await postJson<Message>(`${sim.url}/v1/messages`, {
        model: 'floe-sim',
        max_tokens: 200,
        system: 'Be brief.',
        messages: [
          { role: 'user', content: 'Go.' },
          { role: 'assistant', content: first.body.content },
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: call?.id, content: 'a.txt' }] },
        ],
        tools: anthropicTools,
      });
      expect(answered.body.stop_reason).toBe('end_turn');
      expect(answered.body.content.at(-1)?.text).toContain('All done, thank you.');
      const [one, two] = sim.ledger.entries();
      expect(one).toMatchObject({ endpoint: '/v1/messages', prompt_form: 'messages' });
      expect(answered.body.usage).toEqual({
        input_tokens: two?.prompt_ids.length,
        output_tokens: two?.response_ids.length,
      });
      // Echoed as it came, the turn renders to what was sampled.
      const soFar = [...(one?.prompt_ids ?? []), ...(one?.response_ids ?? [])];
      expect(two?.prompt_ids.slice(0, soFar.length)).toEqual(soFar);
    });
  }

  it('streams and counts', async () => {
    const sim = await start();
    const asked = { model: 'floe-sim', max_tokens: 200, messages: [USER], tools: anthropicTools };
    const text = await (await post(`${sim.url}/v1/messages`, { ...asked, stream: true })).text();
    untold(text);
    const types = [...text.matchAll(/^event: (.*)$/gm)].map(([, type]) => type);
    expect(types[0]).toBe('message_start');
    expect(types.slice(-2)).toEqual(['message_delta', 'message_stop']);
    expect(types.filter((type) => type === 'content_block_start')).toHaveLength(3);
    expect(text).toContain(String.raw`{"type":"input_json_delta","partial_json":"{\"command\":\"ls\"}"}`);
    const count = await postJson<object>(`${sim.url}/v1/messages/count_tokens`, { ...asked, max_tokens: undefined });
    expect(count.body).toEqual({ input_tokens: sim.ledger.entries()[0]?.prompt_ids.length });
  });

  it('says how it ended, breaks as it is told, and refuses what is no request', async () => {
    const sim = await start();
    const asked = { model: 'floe-sim', max_tokens: 3, messages: [USER] };
    const cut = await postJson<Message>(`${sim.url}/v1/messages`, asked);
    expect(cut.body.stop_reason).toBe('max_tokens');
    const stopped = await postJson<Message>(`${sim.url}/v1/messages`, {
      ...asked,
      max_tokens: 100,
      stop_sequences: ['to call'],
    });
    expect(stopped.body).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'to call' });
    sim.setFaults([{ kind: 'reset_mid' }]);
    for (const stream of [false, true]) {
      await expect(
        post(`${sim.url}/v1/messages`, { ...asked, stream }).then((reply) => reply.text()),
      ).rejects.toThrow();
    }
    sim.setFaults([{ kind: 'http_503' }]);
    expect((await postJson(`${sim.url}/v1/messages`, asked)).status).toBe(503);
    sim.setFaults([]);
    for (const wrong of [{ max_tokens: 0 }, { messages: [] }, { messages: [{ role: 'tool', content: 'x' }] }]) {
      expect((await postJson(`${sim.url}/v1/messages`, { ...asked, ...wrong })).status).toBe(400);
    }
    expect((await postJson(`${sim.url}/v1/messages`, { ...asked, model: 'other' })).status).toBe(404);
  });
});

describe('/v1/responses', () => {
  it('says what the chat says for the same conversation, without ids', async () => {
    const sim = await start();
    const input = [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Go.' }] }];
    const first = await postJson<Response>(`${sim.url}/v1/responses`, {
      model: 'floe-sim',
      instructions: 'Be brief.',
      input,
      tools: responsesTools,
    });
    untold(JSON.stringify(first.body).replaceAll('"logprobs":null', ''));
    expect(first.body.status).toBe('completed');
    expect(first.body.output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'function_call']);
    const call = first.body.output[2];
    expect(call).toMatchObject({ name: 'bash', arguments: '{"command":"ls"}' });
    const result = { type: 'function_call_output', call_id: call?.call_id, output: 'a.txt' };
    const second = await postJson<Response>(`${sim.url}/v1/responses`, {
      instructions: 'Be brief.',
      input: [...input, ...first.body.output, result],
      tools: responsesTools,
    });
    expect(second.body.output.at(-1)?.content?.[0]?.text).toContain('All done, thank you.');
    const [one, two] = sim.ledger.entries();
    expect(one).toMatchObject({ endpoint: '/v1/responses' });
    const soFar = [...(one?.prompt_ids ?? []), ...(one?.response_ids ?? [])];
    expect(two?.prompt_ids.slice(0, soFar.length)).toEqual(soFar);
  });

  it('says when it was cut, and refuses streams and wrong input', async () => {
    const sim = await start();
    const cut = await postJson<Response>(`${sim.url}/v1/responses`, { input: 'Go.', max_output_tokens: 2 });
    expect(cut.body).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
    for (const wrong of [{ input: [] }, { input: 5 }, { stream: true }, { input: [{ type: 'image' }] }]) {
      expect((await postJson(`${sim.url}/v1/responses`, { input: 'Go.', ...wrong })).status).toBe(400);
    }
  });
});

describe('the oracle', () => {
  it.each(TEMPLATE_MODES)('%s: recomputes the ledger of every route', async (templateMode) => {
    const sim = await start({ templateMode, scaleOut: true });
    const sampling = { temperature: 0.7, top_p: 0.9, seed: 2 };
    const chat = { messages: [USER], tools: TOOLS, ...sampling };
    const rendered = await postJson<object>(`${sim.url}/v1/chat/completions/render`, chat);
    const prompt = (rendered.body as { token_ids: number[] }).token_ids;
    const calls: Record<string, object> = {
      '/v1/chat/completions': { ...chat, tool_choice: 'required' },
      '/v1/completions': { prompt, max_tokens: 100, ...sampling },
      '/inference/v1/generate': rendered.body,
      '/v1/messages': { model: 'floe-sim', max_tokens: 100, messages: [USER], tools: anthropicTools },
      '/v1/responses': { input: 'Go.', tools: responsesTools },
    };
    for (const [path, body] of Object.entries(calls)) {
      expect((await postJson(`${sim.url}${path}`, body)).status).toBe(200);
    }
    const entries = sim.ledger.entries();
    expect(entries.map(({ endpoint }) => endpoint)).toEqual(Object.keys(calls));
    for (const entry of entries) {
      const { raw, processed } = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
      expect(raw).toHaveLength(entry.raw_logprobs.length);
      for (const [i, logprob] of raw.entries()) expect(entry.raw_logprobs[i]).toBeCloseTo(logprob, 9);
      for (const [i, logprob] of processed.entries()) expect(entry.processed_logprobs[i]).toBeCloseTo(logprob, 9);
    }
  });
});
