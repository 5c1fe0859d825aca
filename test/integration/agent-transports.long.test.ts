import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, parseScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CLI, run } from '../../packages/floe/test/commands/machine.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack, workingBackends } from './stack.ts';

const ADDER = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'adder.js');
const NODE = process.execPath;

const scenarios = parseScenarios(
  {
    scenarios: [
      {
        name: 'add',
        match: { contains: 'Add ' },
        rules: [
          {
            when: { assistant_turns: 0 },
            reply: [{ think: 12 }, { text: 'Step by step.' }, { call: { tool: 'add', arguments: { a: 1, b: 2 } } }],
          },
          {
            when: { assistant_turns: 1 },
            reply: [{ think: 5 }, { call: { tool: 'add', arguments: { a: 3, b: 39 } } }],
          },
          { reply: [{ text: 'It is 42.' }] },
        ],
      },
      { name: 'check', match: { contains: 'right?' }, rules: [{ reply: [{ text: 'Yes.' }] }] },
      { name: 'echo', match: { contains: 'Say ' }, rules: [{ reply: [{ text: 'Said.' }] }] },
    ],
  },
  'the test',
);

let stack: TestStack;
let second: SimServer;

beforeAll(async () => {
  stack = await startTestStack({
    scenarios,
    sim: { scaleOut: true },
    server: { plugins: ['adder'] },
    node: { plugins: { agents: { adder: ADDER } } },
  });
  const rules = [{ reply: [{ text: 'The second model says so.' }] }];
  second = await startSim({
    model: 'second-model',
    scaleOut: true,
    scenarios: parseScenarios({ scenarios: [{ name: 'second', match: { contains: 'right?' }, rules }] }, 'the test'),
  });
  await stack.client.addEngine({ base_url: second.url, pool: 'second' });
});
afterAll(async () => {
  await stack.close();
  await second.close();
});

async function resultOf(task: TaskRequestInput): Promise<SessionResult> {
  const [result] = await stack.run({ max_attempts: 1, ...task });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

/** Gives the score that the agent wrote into a file as reward. Only for agents that are trusted, as in this test. */
const GRADE = `${NODE} -e '
  const { score, reply_rewards } = JSON.parse(fs.readFileSync("result.json", "utf8"));
  fs.writeFileSync(process.env.FLOE_REWARD, JSON.stringify({ reward: score, step_rewards: reply_rewards }));'`;

type Settings = Readonly<Record<string, unknown>>;

/** A task whose agent is a command in the sandbox. */
function shellTask(command: string, mode: 'chat' | 'tokens', settings: Settings = {}): TaskRequestInput {
  return {
    ...common(mode),
    agent: { harness: 'shell', custom_shell: command, call_rules: 'floe', settings },
    evaluator: { strategy: 'script', config: { command: GRADE }, refresh_runtime: false },
  };
}

const common = (mode: 'chat' | 'tokens') => ({
  instruction: 'Add 1 and 2, then 3 and 39.',
  sampling: { seed: 11, temperature: 0.7 },
  engine: { mode },
  runtime: { backend: 'local' as const },
});

const RUN_AGENT = `${NODE} ${CLI} agent run ${ADDER} --result result.json`;

/** Ways to run the one agent file, by name. */
const WAYS: Readonly<Record<string, (mode: 'chat' | 'tokens') => Promise<SessionResult>>> = {
  direct: (mode) =>
    resultOf({
      ...common(mode),
      agent: { harness: 'floe', settings: { agent: 'adder' } },
      evaluator: { strategy: 'environment' },
    }),
  // The command in the sandbox only waits, while a program outside calls the model at the URL of the session.
  http: async (mode) => {
    const dir = join(stack.dir, `http-${mode}`);
    await mkdir(dir);
    const wait = `printf %s "$FLOE_BASE_URL" >${dir}/part; mv ${dir}/part ${dir}/url; until [ -f ${dir}/result.json ]; do sleep 0.1; done; cp ${dir}/result.json .`;
    const result = resultOf(shellTask(wait, mode));
    const url = await contentOf(join(dir, 'url'));
    const words = [
      '--base-url',
      url,
      '--api-key',
      url.split('/').at(-1) ?? '',
      '--instruction',
      common(mode).instruction,
    ];
    const { code, output } = await run([NODE, CLI, 'agent', 'run', ADDER, '--result', join(dir, 'done'), ...words]);
    expect({ code, output }).toMatchObject({ code: 0, output: expect.stringContaining('It is 42.; helper: Yes.') });
    await writeFile(join(dir, 'result.part'), await readFile(join(dir, 'done')));
    await run(['mv', join(dir, 'result.part'), join(dir, 'result.json')]);
    return result;
  },
  push: (mode) => resultOf(shellTask(`${RUN_AGENT} --base-url "$FLOE_BASE_URL"`, mode)),
  pull: (mode) => resultOf(shellTask(`${RUN_AGENT} --mailbox "$FLOE_MAILBOX"`, mode, { mailbox: true })),
};

async function contentOf(path: string): Promise<string> {
  await run(['/bin/sh', '-c', 'until [ -f "$1" ]; do sleep 0.05; done', 'sh', path]);
  return readFile(path, 'utf8');
}

/** Returns the parts of a session that a trainer gets, without the ids and times of floe. */
function trained({ reward, trajectory }: SessionResult) {
  const places = new Map<string, number>();
  const withoutIds = (value: unknown): unknown =>
    JSON.parse(
      JSON.stringify(value).replaceAll(/[a-z]+_[0-9a-z]{20,}/g, (id) => {
        if (!places.has(id)) places.set(id, places.size);
        return `id ${places.get(id)}`;
      }),
    );
  const traces = trajectory?.traces.map(({ trace_id: _, metadata: { step_rewards: steps }, ...trace }) =>
    withoutIds({ ...trace, steps, tools: trace.tools }),
  );
  return { reward, traces, audit: trajectory?.audit };
}

describe('one agent file', () => {
  it.each(['chat', 'tokens'] as const)(
    'gives equal trajectories directly, over HTTP, by push and by pull, in %s mode',
    async (mode) => {
      const results: Record<string, SessionResult> = {};
      for (const [name, way] of Object.entries(WAYS)) results[name] = await way(mode);
      const { direct } = results;
      if (direct === undefined) throw new Error('the direct way has no result');
      expect(direct).toMatchObject({ outcome: 'completed', reward: 1, error: null });
      const [trace] = direct.trajectory?.traces ?? [];
      expect(trace?.loss_mask).toContain(1);
      expect(trace?.response_logprobs.some((logprob) => logprob < 0)).toBe(true);
      for (const [name, result] of Object.entries(results)) {
        expect({ name, ...trained(result) }).toEqual({ name, ...trained(direct) });
      }
      expect(direct.trajectory?.audit.completions).toMatchObject({ recorded: 4, trained: 3 });
      const checked = checkAgainstLedger(Object.values(results), stack.sim.ledger.entries(), 'processed');
      expect(checked).toMatchObject({ sessions: 4, mismatches: [] });
    },
  );
});

describe('a conversation with engines of another pool', () => {
  const engine = { mode: 'tokens' as const, extra_pools: ['second'] };
  const options = { pool: 'second' };
  const command = `${RUN_AGENT} --options '${JSON.stringify(options)}'`;
  const direct = () => {
    const agent = { harness: 'floe', settings: { agent: 'adder', options } };
    return resultOf({ ...common('tokens'), engine, agent, evaluator: { strategy: 'environment' } });
  };

  /** Returns the number of the sessions' calls. The calls of the engine's registration do not count. */
  const callsOfSecond = () => second.ledger.entries().filter(({ request_id: id }) => id.startsWith('cpl_')).length;

  it('is recorded alike directly, by push and by pull', async () => {
    const results = [
      await direct(),
      await resultOf({ ...shellTask(`${command} --base-url "$FLOE_BASE_URL"`, 'tokens'), engine }),
      await resultOf({ ...shellTask(`${command} --mailbox "$FLOE_MAILBOX"`, 'tokens', { mailbox: true }), engine }),
    ];
    for (const result of results) expect(trained(result)).toEqual(trained(results[0] as SessionResult));
    expect(results[0]).toMatchObject({ outcome: 'completed', reward: 1 });
    expect(results[1]?.agent?.stdout_tail).toContain('helper: The second model says so.');
    expect(callsOfSecond()).toBe(3);
    const entries = [...stack.sim.ledger.entries(), ...second.ledger.entries()];
    expect(checkAgainstLedger(results, entries, 'processed')).toMatchObject({ sessions: 3, mismatches: [] });
  });

  it('is refused when the task does not list the pool', async () => {
    const before = callsOfSecond();
    const result = await resultOf(shellTask(`${command} --base-url "$FLOE_BASE_URL"`, 'tokens'));
    expect(result.agent?.stderr_tail).toContain('the task does not allow the engine pool second');
    expect(callsOfSecond()).toBe(before);
  });
});

const backends = await workingBackends();

describe.each(backends)('the mailbox in a sandbox of %s', (backend) => {
  const request = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'Say it.' }] });

  /** Runs a command with a mailbox. */
  const mail = (command: string, agent: Partial<TaskRequestInput['agent']> = {}): Promise<SessionResult> =>
    resultOf({
      instruction: request,
      agent: { harness: 'shell', custom_shell: command, settings: { mailbox: true }, ...agent },
      runtime: { backend },
    });

  const clients: readonly (readonly [string, string])[] = [
    ['shell', 'sh "$FLOE_MAILBOX/call.sh"'],
    ['Python', 'python3 "$FLOE_MAILBOX/call.py"'],
    ['Node', `${NODE} "$FLOE_MAILBOX/call.mjs"`],
  ];
  // Sandboxes with isolation see only programs below /usr.
  it.each(clients.filter(() => backend === 'local' || NODE.startsWith('/usr/')))(
    'answers the client in %s',
    async (_, client) => {
      const result = await mail(`${client} <"$FLOE_INSTRUCTION_FILE"`);
      expect(result).toMatchObject({ outcome: 'completed', agent: { turns: 1, exit_code: 0 } });
      expect(JSON.parse(result.agent?.stdout_tail ?? '')).toMatchObject({
        object: 'chat.completion',
        choices: [{ message: { role: 'assistant', content: 'Said.' }, finish_reason: 'stop' }],
      });
    },
  );

  it('answers several requests that wait at once', async () => {
    const call = 'sh "$FLOE_MAILBOX/call.sh" <"$FLOE_INSTRUCTION_FILE" >/dev/null';
    const result = await mail(`for i in 1 2 3 4 5 6 7 8; do { ${call} && echo ok; } & done; wait`);
    expect(result.agent).toMatchObject({ turns: 8, exit_code: 0 });
    expect(result.agent?.stdout_tail.split('\n').filter((line) => line === 'ok')).toHaveLength(8);
  });

  it.each([
    ['is not JSON', '{"model"', 'malformed_json', 400],
    ['is no object', '[1]', 'schema_violation', 400],
    ['has no messages', '{"model": "policy"}', 'schema_violation', 400],
    ['names another model', '{"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}', 'not_found', 404],
    [
      'has headers that are no texts',
      '{"model": "policy", "messages": [], "extra_headers": {"a": 1}}',
      'schema_violation',
      400,
    ],
  ])('answers a request that %s with an error that says so', async (_, body, code, status) => {
    const result = await mail(`printf %s '${body}' | sh "$FLOE_MAILBOX/call.sh"; echo "exit $?"`);
    expect(result.agent?.stdout_tail).toBe('exit 1\n');
    expect(JSON.parse(result.agent?.stderr_tail ?? '')).toMatchObject({ status, error: { code } });
    expect(result.outcome).toBe('no_completions');
  });

  it('ends the session as truncated when the agent asks once more than it may', async () => {
    const call = 'sh "$FLOE_MAILBOX/call.sh" <"$FLOE_INSTRUCTION_FILE"';
    const result = await mail(`${call}; ${call}; sleep 30`, { max_turns: 1 });
    expect(result).toMatchObject({ outcome: 'truncated_turns', agent: { turns: 1 } });
  });

  it('is emptied for each step of a task, and answers the requests of each', async () => {
    const call = 'sh "$FLOE_MAILBOX/call.sh" <"$FLOE_INSTRUCTION_FILE"';
    // A file that the first step leaves in the mailbox is not a request of the second step.
    const command = `ls "$FLOE_MAILBOX/requests" "$FLOE_MAILBOX/replies"; [ -e "$FLOE_MAILBOX/SESSION_END" ] && echo ended; ${call} >reply && echo answered && echo left >"$FLOE_MAILBOX/requests/left.part"`;
    const evaluator = {
      strategy: 'script',
      config: { command: 'grep -q Said. reply && echo 1 >"$FLOE_REWARD"; rm reply' },
      refresh_runtime: false,
    };
    const step = (name: string, text: string) => {
      const body = { model: 'policy', messages: [{ role: 'user', content: text }] };
      return { name, instruction: JSON.stringify(body), evaluator };
    };
    const result = await resultOf({
      instruction: '',
      agent: { harness: 'shell', custom_shell: command, settings: { mailbox: true } },
      runtime: { backend },
      steps: [step('first', 'Say one.'), step('second', 'Say two.')],
      evaluator: { strategy: 'steps' },
    });
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 1,
      reward_components: { first: 1, second: 1 },
      agent: { turns: 2 },
    });
    expect(result.agent?.stdout_tail).toMatch(/replies:\n\n.*requests:\nanswered\n$/);
    expect(result.agent?.stdout_tail).not.toContain('left');
    expect(result.trajectory?.traces).toHaveLength(2);
  });

  it.each([
    ['removes it', 'rm -rf "$FLOE_MAILBOX"; sleep 30'],
    ['writes a request with a strange name', 'echo "{}" >"$FLOE_MAILBOX/requests/a b.json"; sleep 30'],
    [
      'lets no reply be written',
      'rm -rf "$FLOE_MAILBOX/replies"; sh "$FLOE_MAILBOX/call.sh" <"$FLOE_INSTRUCTION_FILE"',
    ],
  ])('blames an agent that %s', async (_, command) => {
    const result = await mail(command);
    expect(result).toMatchObject({
      outcome: 'agent_error',
      error: { code: 'harness_failed', message: expect.stringContaining('mailbox') },
    });
  });

  it('gives the agent no way to the proxy where sandboxes have none of their own', async () => {
    const probe = `node -e 'fetch(process.env.FLOE_BASE_URL + "/v1/models").then(() => console.log("reached"), () => console.log("no way"))'`;
    const result = await mail(`${probe}; sh "$FLOE_MAILBOX/call.sh" <"$FLOE_INSTRUCTION_FILE" >/dev/null`);
    expect(result.agent?.stdout_tail).toBe(backend === 'local' ? 'reached\n' : 'no way\n');
  });
});
