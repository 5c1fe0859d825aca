import { afterEach, describe, expect, it } from 'vitest';
import { type SimOptions, type SimServer, startSim } from '../src/index.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';
import { type Chunk, post } from './sse.ts';

const vocabulary = bundledVocabulary();
const scenarios = [
  {
    name: 'eyes',
    rules: [
      { when: { images: { min: 2 } }, reply: [{ text: 'Several.' }] },
      { when: { images: 1 }, reply: [{ text: 'One.' }] },
      { reply: [{ text: 'None.' }] },
    ],
  },
];
const red = `data:image/png;base64,${Buffer.from('red').toString('base64')}`;
const green = `data:image/png;base64,${Buffer.from('green').toString('base64')}`;
const image = (url: string) => ({ type: 'image_url', image_url: { url } });
const text = { type: 'text', text: 'Look.' };

const running: SimServer[] = [];
async function start(options: SimOptions = {}): Promise<SimServer> {
  const sim = await startSim({ scenarios, ...options });
  running.push(sim);
  return sim;
}
afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

async function complete(sim: SimServer, messages: object[]): Promise<{ prompt: string; content: string | null }> {
  const response = await post(`${sim.url}/v1/chat/completions`, { messages, return_token_ids: true });
  const reply = (await response.json()) as Chunk;
  expect(response.status).toBe(200);
  return {
    prompt: vocabulary.decode(reply.prompt_token_ids ?? []),
    content: reply.choices[0]?.message.content ?? null,
  };
}

describe('an image', () => {
  it('is rendered in its place as the same sequence of placeholders each time', async () => {
    const sim = await start();
    const one = await complete(sim, [{ role: 'user', content: [text, image(red), text] }]);
    expect(one.prompt).toMatch(
      /user\nLook\.\n<\|vision_start\|>(<\|image_pad\|>){4,131}<\|vision_end\|>\nLook\.<\|im_end\|>/,
    );
    expect(await complete(sim, [{ role: 'user', content: [text, image(red), text] }])).toEqual(one);
    const other = await complete(sim, [{ role: 'user', content: [text, image(green), text] }]);
    expect(other.prompt).not.toBe(one.prompt);
  });

  it('counts for the conditions of rules in user and tool messages', async () => {
    const sim = await start();
    const user = { role: 'user', content: [image(red)] };
    const shot = { role: 'tool', tool_call_id: 'x', content: [text, image('https://example.com/a.png')] };
    expect((await complete(sim, [{ role: 'user', content: 'Hi.' }])).content).toBe('None.');
    expect((await complete(sim, [user])).content).toBe('One.');
    expect((await complete(sim, [{ role: 'user', content: 'Hi.' }, shot])).content).toBe('One.');
    expect((await complete(sim, [user, shot, shot])).content).toBe('Several.');
    expect((await complete(sim, [{ role: 'user', content: [{ type: 'image_url', image_url: red }] }])).content).toBe(
      'One.',
    );
  });

  it('is tokenized to the ids of the prompt', async () => {
    const sim = await start();
    const messages = [{ role: 'user', content: [image(red)] }];
    const { prompt } = await complete(sim, messages);
    const tokenized = (await (await post(`${sim.url}/tokenize`, { messages })).json()) as { tokens: number[] };
    expect(vocabulary.decode(tokenized.tokens)).toBe(prompt);
  });

  it.each([
    ['a file', image('file:///etc/passwd')],
    ['data that is not an image', image('data:text/html;base64,aGk=')],
    ['data that is not base64', image('data:image/png;base64,<>')],
    ['no data', image('data:image/png;base64,')],
    ['no URL at all', { type: 'image_url' }],
    ['a sound', { type: 'input_audio' }],
  ])("that is %s is refused with the message's name", async (_, part) => {
    const sim = await start();
    const response = await post(`${sim.url}/v1/chat/completions`, { messages: [{ role: 'user', content: [part] }] });
    expect(response.status).toBe(400);
    expect(((await response.json()) as Chunk).error?.message).toContain('messages.0.content');
  });

  it('is refused when the model has no vision', async () => {
    const sim = await start({ vision: false });
    const response = await post(`${sim.url}/v1/chat/completions`, {
      messages: [{ role: 'user', content: [image(red)] }],
    });
    expect(response.status).toBe(400);
    expect(((await response.json()) as Chunk).error?.message).toContain('image_url parts are not supported');
  });
});
