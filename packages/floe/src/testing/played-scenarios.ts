import { createHash } from 'node:crypto';
import {
  type Environment,
  type EnvironmentDefinition,
  type Observation,
  parseEnvironmentConfig,
} from '@floe-rl/agents';
import { type AssistantMessage, contentText } from '@floe-rl/core/schema';
import type { ScenarioInput } from '@floe-rl/sim';

export type PlayedEpisode = {
  readonly environment: EnvironmentDefinition;
  readonly config: unknown;
  readonly seed: number;
  /** The simulated policy recognises the episode by this text, which the task has as `agent.system_prompt`. It occurs in no other task. */
  readonly mark: string;
  /** Probability that the policy plays the whole episode perfectly; default: 1. */
  readonly successRate?: number;
};

/** Reply of the policy at a turn that it fails. */
const GIVE_UP = 'I give up.';
/** Number of hexadecimal digits of the mark's digest in the names of scenarios. */
const DIGEST_DIGITS = 16;
/** Largest logit of a choice of the simulated policy. */
const MAX_LOGIT = 30;

/** The replies of one player, and the text that the player sees first. */
type Part = { readonly first: string; readonly replies: AssistantMessage[] };

/**
 * Returns scenarios in which the simulated policy plays an episode perfectly, by tool calls or text as the environment expects. After a turn
 * that the policy fails, it continues with the replies of the perfect play. Throws an Error for an environment without perfect play or without
 * an episode for the seed.
 */
export async function playedScenarios(episode: PlayedEpisode): Promise<ScenarioInput[]> {
  const { environment: definition, seed, mark, successRate = 1 } = episode;
  const config = parseEnvironmentConfig(definition, episode.config);
  const play = definition.perfectPlay?.(config, seed);
  if (play === undefined) throw new Error(`the environment ${definition.name} has no perfect play`);
  const environment = definition.create(config, { signal: new AbortController().signal });
  try {
    const parts = await partsOf(environment, seed, play.replies);
    const rate = successRate ** (1 / play.replies.length);
    const name = `${definition.name}-${createHash('sha256').update(mark).digest('hex').slice(0, DIGEST_DIGITS)}`;
    return [...parts].map(([seat, part]) => scenarioOf(`${name}-${seat}`, mark, part, rate));
  } finally {
    await environment.close();
  }
}

/** Plays the episode, and returns the replies of each player. */
async function partsOf(
  environment: Environment,
  seed: number,
  replies: readonly AssistantMessage[],
): Promise<ReadonlyMap<string, Part>> {
  const parts = new Map<string, Part>();
  let observation: Observation | null = await environment.reset(seed);
  if (observation === null) throw new Error(`the environment has no episode for the seed ${seed}`);
  for (const reply of replies) {
    const { seat = 'main', messages, introduction = '' } = observation;
    const user = messages.find(({ role }) => role === 'user');
    const part = parts.get(seat) ?? { first: `${introduction}\n\n${contentText(user?.content)}`.trim(), replies: [] };
    part.replies.push(reply);
    parts.set(seat, part);
    observation = await environment.step(reply);
  }
  return parts;
}

function scenarioOf(name: string, mark: string, { first, replies }: Part, rate: number): ScenarioInput {
  const when = (assistant_turns: number) => ({ system: { contains: mark }, assistant_turns });
  return {
    name,
    match: { contains: first },
    rules: [
      ...replies.map((reply, turn) => ({ when: when(turn), reply: replyOf(reply, rate, `${name}-${turn}`) })),
      { when: { system: { contains: mark } }, reply: [{ text: GIVE_UP }] },
    ],
  };
}

type ReplyInput = ScenarioInput['rules'][number]['reply'];

function replyOf({ content, tool_calls: calls = [] }: AssistantMessage, rate: number, id: string): ReplyInput {
  const right = [
    ...(content ? [{ text: content }] : []),
    ...calls.map(({ function: { name, arguments: args } }) => ({ call: { tool: name, arguments: JSON.parse(args) } })),
  ];
  if (rate >= 1) return right;
  const logit = Math.max(-MAX_LOGIT, Math.min(MAX_LOGIT, Math.log(rate / (1 - rate))));
  const options = [
    { logit, reply: right },
    { logit: 0, reply: [{ text: GIVE_UP }] },
  ];
  return [{ choice: { id, options } }];
}
