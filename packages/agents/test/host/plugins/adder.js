import { defineAgent, defineTool, pushInstruction, runLoop } from 'floe/plugins';

const add = defineTool({
  name: 'add',
  description: 'adds two numbers',
  effect: 'none',
  parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
  run: async ({ a, b }) => ({ content: String(a + b), reward: 0.5 }),
});

/**
 * An agent with a tool of its own and a helper that is not trained, of the engine pool `pool` of its settings. It needs neither a sandbox nor an
 * environment.
 */
export default defineAgent({
  name: 'adder',
  description: 'adds numbers and lets a helper check the sum',
  settings: { safeParse: (data) => ({ success: true, data }) },
  async run(episode) {
    pushInstruction(episode);
    const result = await runLoop({ ...episode, tools: [add] }, { answersInText: true });
    const question = `Is ${result.answer} right?`;
    const helper = episode.conversation.fork('helper', {
      messages: [{ role: 'user', content: question }],
      train: false,
      ...(episode.settings.pool === undefined ? {} : { enginePool: episode.settings.pool }),
    });
    const { message } = await helper.ask({ tools: [] });
    return { ...result, answer: `${result.answer}; helper: ${message.content}` };
  },
});
