import { systemClock } from '@floe-rl/core';
import { type AssistantMessage, type ChatTool, engineSpecSchema } from '@floe-rl/core/schema';
import { type SimOptions, type SimServer, startSim, TEMPLATE_MODES } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import { tokenRequest } from './scripted-tokens.ts';

let sim: SimServer;
let engine: Engine;
afterEach(async () => {
  await engine.close();
  await sim.close();
});

async function start(options: SimOptions): Promise<void> {
  // Each token takes a millisecond, so that on a machine with little load the parsers answer while the reply is sampled.
  sim = await startSim({ scaleOut: true, tokenDelayMs: 1, ...options });
  engine = await createVllmEngine(engineSpecSchema.parse({ base_url: sim.url }), { clock: systemClock });
}

const tools: ChatTool[] = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }];
const never = new AbortController().signal;

async function request(seed: number, over: Partial<GenerateRequest> = {}): Promise<GenerateRequest> {
  const asked = tokenRequest({ tools, toolsText: JSON.stringify(tools), maxTokens: null, seed, ...over });
  const ids = await engine.render({ ...asked, generationPrompt: true }, never);
  return { ...asked, prompt: { ids, json: Buffer.from(ids.join(',')) } };
}

type Shown = { readonly reasoning: string; readonly text: string; readonly deltas: number };

async function streamed(asked: GenerateRequest): Promise<{ reply: GenerateReply; shown: Shown }> {
  const shown = { reasoning: '', text: '', deltas: 0 };
  const delta = (next: ReplyDelta): void => {
    shown.deltas++;
    if (next.kind === 'reasoning') shown.reasoning += next.text;
    else if (next.kind === 'text') shown.text += next.text;
    else throw new Error(`a delta of kind ${next.kind} was shown`);
  };
  return { reply: await engine.generate({ ...asked, listener: { started: () => {}, delta } }, never), shown };
}

/** Returns a reply without the values that differ between two equal calls: the ids of tool calls and the number of cached tokens. */
function comparable(reply: GenerateReply): GenerateReply {
  const { message, usage } = reply;
  const calls = message.tool_calls?.map((call) => ({ ...call, id: 'call' }));
  return {
    ...reply,
    usage: { ...usage, cached_tokens: 0 },
    message: { ...message, ...(calls === undefined ? {} : { tool_calls: calls }) },
  };
}

function expectBeginning({ reasoning, text }: Shown, message: AssistantMessage): void {
  expect((message.reasoning_content ?? '').slice(0, reasoning.length)).toBe(reasoning);
  expect((message.content ?? '').slice(0, text.length)).toBe(text);
  if (text !== '') expect(reasoning).toBe(message.reasoning_content ?? '');
}

const words = 'Zwölf 日本語 😀 steps of ordinary work, one after the other, as they were asked for. '.repeat(4).trim();
const call = { call: { tool: 'bash', arguments: { command: 'ls "a b" é' } } };
const scenarios: readonly [string, readonly object[]][] = [
  ['text', [{ text: words }]],
  ['thinking and text', [{ think: { text: words, noise: 20 } }, { text: words }]],
  ['thinking and a call', [{ think: { text: words, noise: 20 } }, call]],
  ['thinking, text and calls', [{ think: { text: words } }, { text: words }, call, call]],
];
const scripted = (reply: readonly object[]): SimOptions['scenarios'] =>
  [{ name: 's', rules: [{ reply }] }] as unknown as SimOptions['scenarios'];

describe.each([...TEMPLATE_MODES])('a streamed reply to a prompt of ids with the %s template', (templateMode) => {
  it.each(scenarios)('is the same as a whole one of %s, and begins with what was shown', async (_, reply) => {
    await start({ templateMode, scenarios: scripted(reply) });
    for (const seed of [1, 2]) {
      const asked = await request(seed);
      const whole = await engine.generate(asked, never);
      const { reply: grown, shown } = await streamed(asked);
      expect(comparable(grown)).toEqual(comparable(whole));
      expectBeginning(shown, grown.message);
    }
  });

  it('is the same when the token limit or a stop string ends it in thinking or in text', async () => {
    await start({ templateMode, scenarios: scripted([{ think: { text: words } }, { text: words }]) });
    const cases = [30, 60, 90, 150].map((maxTokens) => ({ maxTokens }));
    const stops = ['other, as', 'steps of', 'asked for. Zw', 'for.\nnever'].map((stop) => ({ stop: [stop] }));
    for (const over of [...cases, ...stops]) {
      const asked = await request(7, over);
      const whole = await engine.generate(asked, never);
      const { reply: grown, shown } = await streamed(asked);
      expect(comparable(grown)).toEqual(comparable(whole));
      expectBeginning(shown, grown.message);
    }
  });
});

describe('what is shown of a reply to a prompt of ids', () => {
  it('is nothing when the server does not parse streams of ids', async () => {
    await start({ derenderStream: false, scenarios: scripted([{ text: words }]) });
    const { reply, shown } = await streamed(await request(1));
    expect(shown).toEqual({ reasoning: '', text: '', deltas: 0 });
    expect(reply.message.content).toContain('日本語');
    expect(engine.info().capabilities.notes).toContainEqual(
      expect.stringMatching(/^replies to prompts of ids are not streamed: /),
    );
  });

  it('is nothing when the engine is registered without streams', async () => {
    await start({ scenarios: scripted([{ text: words }]) });
    await engine.close();
    const spec = engineSpecSchema.parse({ base_url: sim.url, stream: 'off' });
    engine = await createVllmEngine(spec, { clock: systemClock });
    expect((await streamed(await request(1))).shown.deltas).toBe(0);
  });

  it('is nothing of the text when the request forces a tool call', async () => {
    await start({ scenarios: scripted([{ text: words }, call]) });
    const { reply, shown } = await streamed(await request(1, { toolChoice: 'required' }));
    expect(shown.text).toBe('');
    expect(reply.message.tool_calls).toHaveLength(1);
  });
});
