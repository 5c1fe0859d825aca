import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import type { ScenarioInput } from '#floe/testing/index';

/** An episode at a server, with the replies of the simulated policy, and the reward and text that must result. */
export type Play = {
  readonly name: string;
  readonly service: string;
  readonly environment: NonNullable<TaskRequestInput['environment']>;
  /** Replies of the policy in the order of its turns. */
  readonly replies: NonNullable<ScenarioInput['rules']>[number]['reply'][];
  readonly reward: number;
  /** Text that the conversation must contain. */
  readonly shows: string;
};

const call = (tool: string, args: Record<string, unknown>): Play['replies'][number] => [
  { call: { tool, arguments: args } },
];

const COUNTER_TOOLS = [
  {
    type: 'function',
    name: 'increment_counter',
    description: '',
    strict: true,
    parameters: { type: 'object', properties: { count: { type: 'integer' } }, required: ['count'] },
  },
  {
    type: 'function',
    name: 'get_counter_value',
    description: '',
    strict: true,
    parameters: { type: 'object', properties: {} },
  },
];

/** Returns a row in the form of NeMo Gym's own example data. */
function counterRow(expected: number): object {
  const input = [{ role: 'user', content: 'add 1 then add 2 then get the count' }];
  return { responses_create_params: { input, tools: COUNTER_TOOLS }, initial_count: 3, expected_count: expected };
}

const COUNTING = [
  call('increment_counter', { count: 1 }),
  call('increment_counter', { count: 2 }),
  call('get_counter_value', {}),
  [{ text: 'The count is 6.' }],
];

export const PLAYS: readonly Play[] = [
  {
    name: 'OpenEnv: the environment of its template',
    service: 'openenv.echo',
    environment: { type: 'openenv', config: { service: 'echo', max_steps: 3 }, seed: 7 },
    replies: [call('act', { message: 'hello' }), call('act', { text: 'hello' }), call('act', { message: 'bye' })],
    reward: 0.8,
    shows: 'Field required',
  },
  {
    name: 'OpenEnv: the same by the text of replies',
    service: 'openenv.echo',
    environment: { type: 'openenv', config: { service: 'echo', max_steps: 1, actions: 'text' }, seed: 7 },
    replies: [[{ text: 'a river' }]],
    reward: 0.7,
    shows: 'Echo environment ready!',
  },
  {
    name: 'NeMo Gym: tools with the state of a session',
    service: 'nemo_gym.counter',
    environment: { type: 'nemo_gym', config: { service: 'counter', row: counterRow(6) } },
    replies: COUNTING,
    reward: 1,
    shows: '{"count":6}',
  },
  {
    name: 'NeMo Gym: an episode that is graded with 0',
    service: 'nemo_gym.counter',
    environment: { type: 'nemo_gym', config: { service: 'counter', row: counterRow(7) } },
    replies: COUNTING,
    reward: 0,
    shows: '{"count":6}',
  },
  {
    name: 'NeMo Gym: in the form of Gymnasium',
    service: 'nemo_gym.multi_turn',
    environment: {
      type: 'nemo_gym',
      config: {
        service: 'multi_turn',
        flavour: 'gymnasium',
        row: {
          responses_create_params: { input: 'Name a river.' },
          verifier_metadata: {},
          follow_ups: ['Name another one.'],
          expected_answer: 'Rhine',
        },
      },
    },
    replies: [[{ text: 'The Elbe.' }], [{ text: 'The Rhine.' }]],
    reward: 1,
    shows: 'Name another one.',
  },
  {
    name: 'Open Reward Standard: a reward for each call',
    service: 'ors.number',
    environment: { type: 'ors', config: { service: 'number' }, seed: 4 },
    replies: [
      call('guess', { number: 'x' }),
      call('guess', { number: 7 }),
      call('guess', { number: 5 }),
      [{ text: '5' }],
    ],
    reward: 1,
    shows: 'lower',
  },
];

/** Returns the text in the prompt that names, for the simulated policy, the episode it plays. */
function markOf({ name }: Play): string {
  return `Play ${name}.`;
}

export function scenarioOf(play: Play): ScenarioInput {
  return {
    name: `play-${PLAYS.indexOf(play)}`,
    rules: play.replies.map((reply, index) => ({
      when: { system: { contains: markOf(play) }, assistant_turns: index },
      reply,
    })),
  };
}

export function taskOf(play: Play): TaskRequestInput {
  return {
    instruction: '',
    agent: { harness: 'floe', system_prompt: markOf(play), settings: { agent: 'gym' } },
    environment: play.environment,
    runtime: { backend: 'none' },
    evaluator: { strategy: 'environment' },
    max_attempts: 1,
  };
}

/** Returns what is wrong with the result of a play; `null` when nothing is. */
export function problemOf({ reward, shows }: Play, result: SessionResult): string | null {
  if (result.reward === null || Math.abs(result.reward - reward) > 1e-9) {
    return `reward ${result.reward} instead of ${reward}, ${result.outcome}: ${result.error?.message ?? ''}`;
  }
  const text = JSON.stringify(result.trajectory);
  return text.includes(JSON.stringify(shows).slice(1, -1)) ? null : `the conversation does not contain ${shows}`;
}
