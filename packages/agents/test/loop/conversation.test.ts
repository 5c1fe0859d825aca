import { describe, expect, it } from 'vitest';
import { mainConversation } from '../../src/loop/conversation.ts';
import { scriptedModel } from './scripted-model.ts';

const { signal } = new AbortController();
const reply = { role: 'assistant' as const, content: 'yes' };

describe('a conversation that is forked', () => {
  it('has its own messages, training and engine pool, and else those of the one before', async () => {
    const model = scriptedModel([reply, reply, reply, reply]);
    const main = mainConversation(model, signal);
    main.push({ role: 'user', content: 'Is it?' });
    await main.ask();
    const critic = main.fork('critic', { messages: [], train: false, enginePool: 'large' });
    critic.push({ role: 'user', content: 'Is it right?' });
    await critic.ask();
    await critic.fork('helper').ask();
    await main.ask({ train: false });
    expect(model.requests).toMatchObject([
      { thread: 'main', isTrained: true, enginePool: null, messages: [{}] },
      { thread: 'critic', isTrained: false, enginePool: 'large', messages: [{ content: 'Is it right?' }] },
      { thread: 'helper', isTrained: false, enginePool: 'large', messages: [{ content: 'Is it right?' }, reply] },
      { thread: 'main', isTrained: false, enginePool: null, messages: [{}, reply] },
    ]);
  });

  it('has a name of its own', () => {
    const main = mainConversation(scriptedModel([]), signal);
    main.fork('helper');
    expect(() => main.fork('helper')).toThrow(expect.objectContaining({ code: 'conflict' }));
  });
});
