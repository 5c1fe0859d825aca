import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { countdownScenario } from '../../../../agents/test/host/countdown-scenario.ts';
import { CLI, run } from '../../commands/machine.ts';

const PLUGINS = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins');

const scenarios = parseScenarios(
  {
    scenarios: [
      countdownScenario,
      {
        name: 'shell',
        match: { contains: 'Write' },
        rules: [
          {
            when: { assistant_turns: 0 },
            reply: [{ call: { tool: 'bash', arguments: { command: 'pwd; echo hi >made' } } }],
          },
          { reply: [{ text: 'written' }] },
        ],
      },
    ],
  },
  'the test',
);

let sim: SimServer;
let dir: string;

beforeAll(async () => {
  sim = await startSim({ scenarios });
  dir = await mkdtemp(join(tmpdir(), 'floe-agent-'));
});
afterAll(async () => {
  await sim.close();
  await rm(dir, { recursive: true, force: true });
});

/** Runs `floe agent run` against the simulated engine. */
function agent(...words: string[]): ReturnType<typeof run> {
  const model = ['--base-url', sim.url, '--model', 'floe-sim'];
  return run([process.execPath, CLI, 'agent', 'run', ...words, ...model]);
}

describe('floe agent run', () => {
  it('plays an environment of a module with a built-in agent, without a server of floe', async () => {
    const { code, output } = await agent(
      'gym',
      '--environment',
      join(PLUGINS, 'countdown.js'),
      '--seed',
      '7',
      '--json',
    );
    expect(JSON.parse(output)).toMatchObject({ agent: 'gym', seed: 7, status: 'finished', metrics: { turns: 3 } });
    expect(JSON.parse(output).score).toBeCloseTo(1);
    expect(code).toBe(0);
  });

  it('lets tools act on this machine with --local-box, and writes the result to a file', async () => {
    await writeFile(join(dir, 'instruction'), 'Write a file.');
    const { code, output } = await agent(
      ...['tool_call', '--instruction', `@${join(dir, 'instruction')}`, '--tools', 'bash'],
      ...['--local-box', dir, '--result', join(dir, 'result.json')],
    );
    expect(output).toContain('tool_call finished: the agent answered');
    expect(await readFile(join(dir, 'made'), 'utf8')).toBe('hi\n');
    const result = JSON.parse(await readFile(join(dir, 'result.json'), 'utf8'));
    expect(result).toMatchObject({ status: 'finished', answer: 'written', metrics: { 'calls.bash': 1 } });
    expect(code).toBe(0);
  });

  it.each([
    ['without a sandbox for its tools', ['tool_call', '--tools', 'bash'], /unsupported: .*bash works in a sandbox/],
    ['with an unknown agent', ['nobody'], /unknown_agent: .*no nobody; there are: .*gym/],
    ['with an unknown tool', ['tool_call', '--tools', 'think,hammer'], /unknown_tool: .*no hammer/],
    ['with an unknown environment', ['gym', '--environment', 'chess'], /unknown_environment: .*no chess/],
    ['without an environment that it needs', ['gym'], /environment: the agent gym needs one/],
    ['with broken settings', ['tool_call', '--options', '{"colour": 1}'], /agent\.settings\.options/],
    ['with settings that are no object', ['tool_call', '--options', '[1]'], /--options: \[1\] is not a JSON object/],
    ['with broken JSON', ['gym', '--environment', 'bandit', '--config', '{'], /--config: /],
    ['with a missing instruction', ['tool_call', '--instruction', '@/nowhere'], /--instruction: cannot read \/nowhere/],
    ['with a missing directory', ['tool_call', '--local-box', '/nowhere'], /there is no directory \/nowhere/],
    ['with a module that is no agent', [join(PLUGINS, 'countdown.js')], /setup_failed: .*exports no agent/],
  ])('refuses to run %s', async (_, words, message) => {
    const { code, output } = await agent(...words);
    expect(output).toMatch(message);
    expect(code === 1 || code === 2).toBe(true);
  });

  it('refuses a base URL that is missing or no URL', async () => {
    const missing = await run([process.execPath, CLI, 'agent', 'run', 'gym']);
    expect(missing.output).toMatch(/--base-url: the URL of the model is missing/);
    const wrong = await run([process.execPath, CLI, 'agent', 'run', 'tool_call', '--base-url', 'nonsense']);
    expect(wrong.output).toMatch(/"nonsense", is no HTTP URL/);
    expect([missing.code, wrong.code]).toEqual([2, 2]);
  });
});
