import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { ENVIRONMENTS, REMOTE_ENVIRONMENTS } from '@floe-rl/agents';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { chatTool, toolOf, wordForm } from '../../../../agents/src/environments/action.ts';
import { guessNumber } from '../../../../agents/src/environments/games/guess-number.ts';
import { SHOP_CHAT_TOOLS } from '../../../../agents/src/environments/games/shop/tools.ts';
import { startSocketServer } from '../../../../agents/test/environments/remote/socket-server.ts';
import { replyFrom } from '../../../src/commands/env-play.ts';
import { CLI } from '../../commands/machine.ts';

type Exit = { readonly code: number | null; readonly stdout: string; readonly stderr: string };

/** Runs `floe env` with a standard input. */
async function env(input: string, ...words: string[]): Promise<Exit> {
  const child = spawn(process.execPath, [CLI, 'env', ...words], { env: { ...process.env, NO_COLOR: '1' } });
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  return { code, stdout, stderr };
}

const NAMES = ENVIRONMENTS.map(({ name }) => name);
const REMOTE = REMOTE_ENVIRONMENTS.map(({ name }) => name);

describe('floe env list', () => {
  it('lists the environments, and with --json the schemas of their configurations', async () => {
    const { stdout } = await env('', 'list');
    expect(
      stdout
        .trim()
        .split('\n')
        .slice(1)
        .map((line) => line.split(' ')[0]),
    ).toEqual([...NAMES, ...REMOTE]);
    const listed = JSON.parse((await env('', 'list', '--json')).stdout) as {
      name: string;
      config: { properties: object };
    }[];
    expect(listed.map(({ name }) => name)).toEqual([...NAMES, ...REMOTE]);
    expect(listed[0]?.config.properties).toHaveProperty('dim_room');
  });
});

describe('floe env check', () => {
  it('checks all environments, and ends with a summary', async () => {
    const { code, stdout } = await env('', 'check', '--seeds', '4');
    expect(stdout.trim().split('\n').at(-1)).toBe('8 environments, 8 passed, 0 failed');
    expect(stdout).toMatch(/^shop +4 +1 /m);
    expect(code).toBe(0);
  });

  it('exits with 1 and names the problem when an environment fails', async () => {
    const config = JSON.stringify({ success_reward: -1 });
    const { code, stdout } = await env('', 'check', 'guess_number', 'wordle', '--config', config, '--seeds', '3');
    expect(stdout).toContain('problem guess_number: random: random play gets');
    expect(stdout.trim().split('\n').at(-1)).toBe('2 environments, 0 passed, 2 failed');
    expect(code).toBe(1);
  });

  it('checks an environment in a module', async () => {
    const path = join(mkdtempSync(join(tmpdir(), 'floe-env-')), 'lazy-door.mjs');
    const module = `export default {
      name: 'door',
      description: '',
      config: { safeParse: (data) => ({ success: true, data }) },
      create: () => ({
        reset: async () => ({ messages: [{ role: 'user', content: 'A door.' }] }),
        step: async ({ tool_calls = [] }) => ({
          messages: [...tool_calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'No.' })), { role: 'user', content: 'It opens.' }],
          reward: 1, terminated: true, truncated: false,
        }),
        close: async () => {},
      }),
    };`;
    writeFileSync(path, module);
    const { code, stdout } = await env('', 'check', path);
    expect(stdout).toContain('problem lazy-door: idle: seed 0: empty replies get 1');
    expect(code).toBe(1);
    const absent = await env('', 'check', './absent.mjs');
    expect(absent.stderr).toContain('environments.absent: ./absent.mjs cannot be loaded');
    const played = await env('open\n', 'play', path);
    expect(played.stdout).toBe('A door.\n\nIt opens.\n\nscore 1 (terminated)\n');
  });

  it('checks a Python environment of a node', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'floe-env-'));
    const source = [
      'class Door:',
      '    def reset(self, seed):',
      '        self.left = 3',
      '        return f"guess {seed % 3}", {}',
      '    def step(self, action):',
      '        self.left -= 1',
      '        return "no", 0.0, self.left <= 0, False, {}',
    ];
    writeFileSync(join(dir, 'door.py'), `${source.join('\n')}\n`);
    const python = { door: { kind: 'environment', target: 'door:Door', path: dir } };
    const config = join(dir, 'node.json');
    writeFileSync(config, JSON.stringify({ node: { plugins: { python } } }));
    const { code, stdout } = await env('', 'check', 'door', '--node-config', config, '--seeds', '3');
    expect(stdout).toMatch(/^door +3 .* passed\n1 environments, 1 passed, 0 failed\n$/m);
    expect(code).toBe(0);
  });

  it('refuses environments at servers', async () => {
    const { code, stderr } = await env('', 'check', 'openenv');
    expect(stderr).toContain('unknown_environment: no environment "openenv"');
    expect(code).toBe(2);
  });

  it('prints one JSON object', async () => {
    const { stdout } = await env('', 'check', 'bandit', '--seeds', '2', '--config', '{"arms": 3}', '--json');
    expect(JSON.parse(stdout)).toMatchObject({
      environments: [{ name: 'bandit', episodes: 2, malformed: 1_000, problems: [] }],
      passed: 1,
      failed: 0,
    });
  });

  it.each<[string, readonly string[], string]>([
    ['an unknown name', ['check', 'chess'], 'unknown_environment: no environment "chess"; there are sokoban,'],
    ['a wrong field', ['check', 'bandit', '--config', '{"arms": 1}'], 'environment.config.arms: Too small'],
    ['broken JSON', ['check', '--config', '{'], 'bad_request: --config: '],
    ['no seed', ['check', '--seeds', '0'], '--seeds: 0 is not an integer of at least 1'],
    [
      'a wrong field of a game',
      ['play', 'wordle', '--config', '{"x": 1}'],
      'environment.config: Unrecognized key: "x"',
    ],
    ['a wrong seed', ['play', 'wordle', '--seed', 'a'], '--seed: a is not an integer'],
  ])('and floe env play refuse %s', async (_, words, message) => {
    const { code, stderr } = await env('', ...words);
    expect(stderr).toContain(message);
    expect(code).toBe(2);
  });
});

describe('floe env play', () => {
  it('plays the lines of a pipe until the episode ends, and prints the score', async () => {
    const config = guessNumber.config.parse({});
    const [reply] = guessNumber.perfectPlay?.(config, 5).replies ?? [];
    const { number } = JSON.parse(reply?.tool_calls?.[0]?.function.arguments ?? '{}') as { number: number };
    const { code, stdout, stderr } = await env(
      `jump\n0\nguess ${number}\nmore\n`,
      'play',
      'guess_number',
      '--seed',
      '5',
    );
    expect(stdout).toContain('number: Invalid input: expected number, received string');
    expect(stdout).toContain('number: Too small');
    expect(stdout).toContain(`Yes, it is ${number}.`);
    expect(stdout.trim().split('\n').at(-1)).toBe('score 1 (terminated)');
    expect(stderr).toContain('guess NUMBER');
    expect(code).toBe(0);
  });

  it('prints the score of each player', async () => {
    const { stdout } = await env('1\n4\n2\n5\n3\n', 'play', 'tic_tac_toe', '--config', '{"opponent": "self"}');
    expect(stdout).toContain('(to o)\nYou play tic-tac-toe as o.');
    expect(stdout.trim().split('\n').at(-1)).toBe('score 1, x 1, o 0 (terminated)');
  });

  it('ends with the input', async () => {
    const { code, stdout } = await env('', 'play', 'shop');
    expect(stdout.trim().split('\n').at(-1)).toBe('score 0 (not ended)');
    expect(code).toBe(0);
  });
});

describe('floe env with the servers of a node', () => {
  const COUNTDOWN = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'countdown.js');

  /** Writes the config file of a node. */
  function configFile(plugins: object): string {
    const path = join(mkdtempSync(join(tmpdir(), 'floe-env-')), 'floe.yaml');
    writeFileSync(path, JSON.stringify({ node: { plugins } }));
    return path;
  }

  it('lists servers of the command line and of the config file, and modules of the latter', async () => {
    const config = configFile({
      services: { 'openenv.echo': 'http://127.0.0.1:1', 'openenv.echo.key': 'k3y' },
      environments: { countdown: COUNTDOWN },
    });
    const words = ['--node-config', config, '--service', 'openenv.door=http://127.0.0.1:2'];
    const { stdout } = await env('', 'list', ...words);
    expect(stdout).toMatch(/^openenv +echo, door /m);
    expect(stdout).toMatch(/^countdown /m);
    expect(stdout).not.toContain('k3y');
    const listed = JSON.parse((await env('', 'list', '--json', ...words)).stdout) as { services?: string[] }[];
    expect(listed.map(({ services }) => services).filter((services) => services !== undefined)).toEqual([
      ['echo', 'door'],
      [],
      [],
    ]);
  });

  it('plays at a server', async () => {
    const server = await startSocketServer({
      pages: { '/schema': { action: { type: 'object', properties: { message: { type: 'string' } } } } },
      onMessage: ({ type, data }, connection) => {
        const { message = '' } = (data ?? {}) as { message?: string };
        const done = message === 'open';
        const observation = { text: type === 'reset' ? 'a closed door' : `you ${message}` };
        if (type !== 'close')
          connection.send({ type: 'observation', data: { observation, reward: done ? 1 : 0, done } });
      },
    });
    const words = ['play', 'openenv', '--config', '{"service": "door"}'];
    const played = await env('knock\nopen\n', ...words, '--service', `openenv.door=${server.url}`);
    expect(played.stdout).toContain('a closed door');
    expect(played.stdout.trim().split('\n').at(-1)).toBe('score 1 (terminated)');
    const services = { 'openenv.door': server.url };
    expect((await env('open\n', ...words, '--node-config', configFile({ services }))).code).toBe(0);
    await server.close();
  });

  it.each([
    [
      'a server that is not configured',
      ['--service', 'openenv.other=http://127.0.0.1:1'],
      /no plugins.services.openenv.door/,
    ],
    ['a service without a value', ['--service', 'openenv.door'], /--service: openenv.door is not NAME=VALUE/],
  ])('refuses %s', async (_, words, message) => {
    const { code, stderr } = await env('', 'play', 'openenv', '--config', '{"service": "door"}', ...words);
    expect(stderr).toMatch(message);
    expect(code).toBeGreaterThan(0);
  });
});

describe('replyFrom', () => {
  const word = toolOf(wordForm({ tool: 'guess', description: '', parameter: 'word' }, 5));
  const none = chatTool('wait', 'Waits.', z.strictObject({}));

  it.each([
    ['guess horse', [word], 'guess', '{"word":"horse"}'],
    ['horse', [word], 'guess', '{"word":"horse"}'],
    ['guess {"word": "horse"}', [word], 'guess', '{"word": "horse"}'],
    ['wait', [word, none], 'wait', '{}'],
    ['update_address {"order_id": "W1"}', SHOP_CHAT_TOOLS, 'update_address', '{"order_id": "W1"}'],
    ['reply_to_customer Good morning', SHOP_CHAT_TOOLS, 'reply_to_customer', '{"text":"Good morning"}'],
    ['dance now', SHOP_CHAT_TOOLS, 'dance', '{}'],
  ])('makes of %j the right call', (line, tools, name, args) => {
    expect(replyFrom(line, tools, 3).tool_calls).toEqual([
      { id: 'call_3', type: 'function', function: { name, arguments: args } },
    ]);
  });

  it('makes a text of a line where there are no tools', () => {
    expect(replyFrom('<answer>up</answer>', [], 0)).toEqual({ role: 'assistant', content: '<answer>up</answer>' });
  });
});
