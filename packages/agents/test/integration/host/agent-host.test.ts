import { join } from 'node:path';
import { FloeError, systemClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { AgentHost } from '../../../src/host/agent-host.ts';
import type { EpisodeBackend } from '../../../src/host/agent-process.ts';
import type { EpisodeOrder } from '../../../src/host/protocol.ts';

const PLUGINS = join(import.meta.dirname, '..', '..', 'host', 'plugins');
const OBEDIENT = join(PLUGINS, 'obedient.js');

const hosts: AgentHost[] = [];
afterEach(async () => {
  for (const host of hosts.splice(0)) await host.close();
});

function hostWith(agents: Readonly<Record<string, string>>): AgentHost {
  const host = new AgentHost({
    ...{ clock: systemClock, services: {}, mcpServers: [], env: {}, processes: 1, blockedMs: 4_000 },
    modules: { agents, environments: {}, tools: {} },
  });
  hosts.push(host);
  return host;
}

function orderFor(agent: string): EpisodeOrder {
  return {
    ...{ sessionId: 's', taskId: 't', agent, options: {}, tools: null, hints: false, seed: 0, instruction: '' },
    ...{ systemPrompt: null, metadata: {}, skills: [], environment: null, workdir: null },
    endpoint: { baseUrl: 'http://127.0.0.1:1', apiKey: '' },
    limits: { turns: null, contextTokens: null },
  };
}

/** A model that replies with these words. After the last one, `atEnd` is called, and no further call is answered. */
function saying(words: readonly string[], atEnd: () => void = () => {}): EpisodeBackend {
  const rest = [...words];
  return {
    openTools: null,
    onActivity: () => {},
    ask(_, signal) {
      const content = rest.shift();
      if (rest.length === 0) setImmediate(atEnd);
      if (content === undefined) {
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
      }
      const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
      return Promise.resolve({
        completionId: content,
        message: { role: 'assistant', content },
        finishReason: 'stop',
        usage,
      });
    },
  };
}

const { signal } = new AbortController();

describe('the processes that run agents', () => {
  it('return the result of an episode with its metrics', async () => {
    const host = hostWith({ obedient: OBEDIENT });
    const end = await host.run(orderFor('obedient'), saying(['hm', 'hm', 'finish']), signal);
    expect(end).toMatchObject({
      result: { status: 'finished', score: 1, answer: 'false' },
      metrics: { hm: 2, turns: 3 },
    });
  });

  it.each([
    ['throw', 'plugin_failed', 'agent obedient: a defect'],
    ['bad result', 'plugin_failed', 'agent obedient: its result: score'],
    ['exit', 'plugin_failed', 'code of this episode, which uses agents.obedient: a process for agents ended (3)'],
    ['reject', 'plugin_failed', 'an unhandled rejection'],
    [
      'block',
      'plugin_failed',
      'code of this episode, which uses agents.obedient: code has blocked a process for agents',
    ],
  ])('blame an episode whose code does this: %s', async (word, code, message) => {
    const host = hostWith({ obedient: OBEDIENT });
    await expect(host.run(orderFor('obedient'), saying([word]), signal)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    await expect(host.run(orderFor('obedient'), saying(['finish']), signal)).resolves.toBeDefined();
  });

  it.each(['exit', 'block'])('let the other episodes of a process be retried when one does this: %s', async (word) => {
    const host = hostWith({ obedient: OBEDIENT });
    const innocent = host.run(orderFor('obedient'), saying(['hm']), signal);
    innocent.catch(() => {});
    // The innocent episode waits for the model before the other episode begins.
    await new Promise<void>((resolve) => {
      const waiting = host.run(orderFor('obedient'), saying(['hm'], resolve), signal);
      waiting.catch(() => {});
    });
    await expect(host.run(orderFor('obedient'), saying([word]), signal)).rejects.toMatchObject({
      code: 'plugin_failed',
    });
    await expect(innocent).rejects.toMatchObject({ code: 'runtime_failed' });
  });

  it('have messages of their plug-ins dropped that are not of the protocol', async () => {
    const host = hostWith({ obedient: OBEDIENT });
    await expect(host.run(orderFor('obedient'), saying(['junk', 'hm', 'finish']), signal)).resolves.toMatchObject({
      metrics: { junk: 1, hm: 1 },
    });
  });

  it('are apart for different modules', async () => {
    const host = hostWith({ obedient: OBEDIENT, other: OBEDIENT });
    const other = host.run(orderFor('other'), saying(['hm', 'finish']), signal);
    await expect(host.run(orderFor('obedient'), saying(['exit']), signal)).rejects.toMatchObject({
      code: 'plugin_failed',
    });
    await expect(other).resolves.toMatchObject({ result: { status: 'finished' } });
  });

  it('name a module that cannot be loaded, and one that exports no agent', async () => {
    const host = hostWith({ broken: join(PLUGINS, 'broken.js'), wrong: join(PLUGINS, 'countdown.js') });
    await expect(host.run(orderFor('broken'), saying([]), signal)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/^agents\.broken: .*broken\.js cannot be loaded: this module cannot be loaded/),
    });
    await expect(host.run(orderFor('wrong'), saying([]), signal)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/^agents\.wrong: .*countdown\.js exports no agent/),
    });
  });

  it('end an episode at once when its signal aborts', async () => {
    const host = hostWith({ obedient: OBEDIENT });
    const abort = new AbortController();
    const reason = new FloeError('deadline_exceeded', 'too late');
    const running = host.run(
      orderFor('obedient'),
      saying(['sleep'], () => abort.abort(reason)),
      abort.signal,
    );
    await expect(running).rejects.toBe(reason);
  });
});
