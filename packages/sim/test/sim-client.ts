import { afterEach } from 'vitest';
import { type SimOptions, type SimServer, startSim } from '../src/index.ts';

/** A scenario in which the policy first thinks and calls a tool, and replies with text after the tool's result. */
const CALLER = {
  name: 'caller',
  rules: [
    {
      when: { last_role: 'tool' as const },
      reply: [{ think: 4 }, { text: 'All done, thank you.' }],
    },
    {
      when: { tools: ['bash'] },
      reply: [
        { think: 8 },
        {
          choice: {
            id: 'words',
            options: [
              { logit: 1, reply: [{ text: 'Let me look.' }] },
              { logit: 0, reply: [{ text: 'I will look.' }] },
            ],
          },
        },
        { call: { tool: 'bash', arguments: { command: 'ls' } } },
      ],
    },
    { reply: [{ think: 4 }, { text: 'Nothing to call here.' }] },
  ],
};

export const TOOLS = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }];
export const USER = { role: 'user', content: 'Go.' };

/** Returns a function that starts simulated engines. They are closed after each test. */
export function simStarter(defaults: SimOptions = {}): (options?: SimOptions) => Promise<SimServer> {
  const running: SimServer[] = [];
  afterEach(async () => {
    for (const sim of running.splice(0)) await sim.close();
  });
  return async (options = {}) => {
    const sim = await startSim({ scenarios: [CALLER], ...defaults, ...options });
    running.push(sim);
    return sim;
  };
}

/** Posts a JSON body. Returns the parsed reply, whatever its status is. */
export async function postJson<T>(
  url: string,
  body: unknown,
  headers: Record<string, string> = {},
): Promise<{ status: number; body: T }> {
  const response = await fetch(url, { method: 'POST', body: JSON.stringify(body), headers });
  const text = await response.text();
  return { status: response.status, body: (text === '' ? null : JSON.parse(text)) as T };
}
