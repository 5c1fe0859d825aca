import { parseScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { playedScenarios } from '../../../floe/src/testing/played-scenarios.ts';
import { findEnvironment } from '../../src/environments/registry.ts';
import { AgentRunner, GEMRunner, type JobResult, ToolCallRunner } from '../../src/loop/runner.ts';
import { type AnyTool, defineTool } from '../../src/tools/tool.ts';
import { startSocketServer } from '../environments/remote/socket-server.ts';

const LAKE = { environment: findEnvironment('frozen_lake'), config: {}, seed: 7, mark: 'Play the lake.' };

const scripts = parseScenarios(
  {
    scenarios: [
      {
        name: 'count',
        match: { contains: 'Count' },
        rules: [{ when: { assistant_turns: 0 }, reply: [{ text: 'one' }] }, { reply: [{ text: 'two' }] }],
      },
      {
        name: 'double',
        match: { contains: 'Double' },
        rules: [
          { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'double', arguments: { number: 21 } } }] },
          { reply: [{ text: '42' }] },
        ],
      },
      { name: 'door', match: { contains: 'a closed door' }, rules: [{ reply: [{ text: 'open' }] }] },
    ],
  },
  'the test',
);

let sim: SimServer;
beforeAll(async () => {
  sim = await startSim({ scenarios: [...scripts, ...(await playedScenarios(LAKE))] });
});
afterAll(() => sim.close());

/** Counts with two requests. The second one continues the first. */
class Counter extends AgentRunner {
  async runJob(seed: number): Promise<JobResult> {
    const messages = [{ role: 'user' as const, content: `Count from ${seed}.` }];
    const first = await this.llmRequest(messages);
    const reply = first.choices[0]?.message;
    if (reply === undefined) throw new Error('the reply has no choice');
    const second = await this.llmRequest([...messages, reply, { role: 'user', content: 'Continue.' }]);
    return { status: 'Finished', score: 1, answer: `${reply.content}, ${second.choices[0]?.message.content}` };
  }
}

class Doubler extends ToolCallRunner {
  protected override tools(): readonly AnyTool[] {
    const parameters = { type: 'object', properties: { number: { type: 'number' } } };
    return [
      defineTool({
        ...{ name: 'double', description: 'doubles a number', effect: 'none', parameters },
        run: async (args) => ({ content: String(2 * (args as { number: number }).number), reward: 1 }),
      }),
    ];
  }
}

const model = { model: 'floe-sim' };

describe('a runner without an episode', () => {
  it('calls the model at its base URL, and continues its own conversation', async () => {
    const job = await new Counter(sim.url, 'key', model).runJob(7);
    expect(job).toMatchObject({ status: 'Finished', answer: 'one, two' });
  });

  it('plays the environment of its configuration', async () => {
    const config = { ...model, type: 'frozen_lake', config: LAKE.config, instruction: LAKE.mark };
    expect(await new GEMRunner(sim.url, 'key', config).runJob(LAKE.seed)).toMatchObject({
      status: 'Finished',
      score: 1,
    });
  });

  it('plays an environment at a server that its configuration names', async () => {
    const server = await startSocketServer({
      pages: { '/schema': { action: { type: 'object', properties: { message: { type: 'string' } } } } },
      onMessage: ({ type }, connection) => {
        const done = type === 'step';
        const data = { observation: { text: 'a closed door' }, reward: done ? 1 : 0, done };
        if (type !== 'close') connection.send({ type: 'observation', data });
      },
    });
    const services = { 'openenv.door': server.url };
    const config = { ...model, type: 'openenv', config: { service: 'door', actions: 'text' }, services };
    const job = await new GEMRunner(sim.url, 'key', config).runJob(0);
    await server.close();
    expect(job).toMatchObject({ status: 'Finished', score: 1 });
  });

  it('works with its tools on its instruction, and keeps its limit of replies', async () => {
    const config = { ...model, instruction: 'Double 21.' };
    const job = await new Doubler(sim.url, 'key', config).runJob(0);
    expect(job).toMatchObject({ status: 'Finished', score: 1, answer: '42' });
    const limited = await new Doubler(sim.url, 'key', { ...config, max_turns: 1 }).runJob(0);
    expect(limited).toMatchObject({ status: 'Truncated', score: 1 });
  });

  it.each([
    ['an unknown environment', { type: 'chess' }, /no environment "chess"; there are sokoban,.*openenv/],
    ['wrong settings of it', { type: 'bandit', config: { arms: 1 } }, /environment\.config\.arms/],
    [
      'a server that is not there',
      { type: 'ors', config: { service: 'x' } },
      /the node has no plugins\.services\.ors\.x/,
    ],
    [
      'services that are no texts',
      { type: 'ors', config: { service: 'x' }, services: { 'ors.x': 1 } },
      /services\.ors\.x/,
    ],
  ])('rejects with the field for %s', async (_, config, message) => {
    await expect(new GEMRunner(sim.url, 'key', { ...model, ...config }).runJob(0)).rejects.toThrow(message);
  });
});
