import { isDeepStrictEqual } from 'node:util';
import { messageOf, seededRandom } from '@floe-rl/core';
import { type AssistantMessage, type ChatMessage, type ChatTool, chatMessageSchema } from '@floe-rl/core/schema';
import type {
  Environment,
  EnvironmentDefinition,
  EnvironmentServices,
  Observation,
  PerfectPlay,
  StepResult,
} from './environment.ts';
import { malformedReply, randomReply } from './random-play.ts';
import { parseEnvironmentConfig } from './registry.ts';

/** What `floe env check` found out about an environment. */
export type EnvironmentCheck = {
  readonly name: string;
  /** Number of seeds that have an episode. */
  readonly episodes: number;
  /** Mean scores. `perfect` is `null` when the environment has no perfect play. */
  readonly perfect: number | null;
  readonly random: number | null;
  readonly idle: number | null;
  /** Mean number of replies of perfect play. */
  readonly turns: number | null;
  readonly malformed: number;
  /** What is wrong, in words; at most one entry for each check. Empty when the environment has passed. */
  readonly problems: readonly string[];
};

export type CheckOptions = {
  readonly seeds: number;
  /** Number of malformed replies. */
  readonly malformed: number;
} & EnvironmentServices;

/** Maximum number of replies of an episode. An environment must end by itself before. */
const MAX_REPLIES = 20_000;
/** Largest difference between scores that are equal. */
const TOLERANCE = 1e-6;
/** Maximum number of characters of the answers to one malformed reply. */
const MAX_ANSWER_CHARS = 200_000;

/** Chooses the next reply; `null` ends the play. */
type Player = (tools: readonly ChatTool[], index: number) => AssistantMessage | null;

type Play = { readonly observations: readonly Observation[]; readonly score: number; readonly hasEnded: boolean };

const idle: Player = () => ({ role: 'assistant', content: '' });

function randomPlayer(seed: number): Player {
  const random = seededRandom(seed);
  return (tools, index) => randomReply(tools, random, index);
}

function programmed({ replies }: PerfectPlay): Player {
  return (_, index) => replies[index] ?? null;
}

/**
 * Checks an environment without a model. Perfect play gets its score, random play less on average, and idle play nothing. Equal seeds give
 * equal observations, also beside another episode. Malformed replies are answered.
 */
export async function checkEnvironment(
  definition: EnvironmentDefinition,
  config: unknown,
  options: CheckOptions,
): Promise<EnvironmentCheck> {
  const check = new Check(definition, parseEnvironmentConfig(definition, config), options);
  return check.run();
}

class Check {
  private readonly definition: EnvironmentDefinition;
  private readonly config: unknown;
  private readonly options: CheckOptions;
  /** The first problem of each check. */
  private readonly problems = new Map<string, string>();
  private readonly scores = {
    perfect: [] as number[],
    random: [] as number[],
    idle: [] as number[],
    turns: [] as number[],
  };

  constructor(definition: EnvironmentDefinition, config: unknown, options: CheckOptions) {
    this.definition = definition;
    this.config = config;
    this.options = options;
  }

  async run(): Promise<EnvironmentCheck> {
    for (let seed = 0; seed < this.options.seeds; seed++) {
      this.options.signal.throwIfAborted();
      await this.attempt(seed, () => this.checkSeed(seed));
      if (this.problems.has('end')) break;
    }
    await this.attempt(0, () => this.checkMalformed());
    const { perfect, random, idle, turns } = this.scores;
    const [best, chance] = [meanOf(perfect), meanOf(random)];
    if (idle.length === 0) this.report('episodes', 'no seed has an episode');
    if (best !== null && chance !== null && chance >= best - TOLERANCE) {
      this.report('random', `random play gets ${chance}, and perfect play ${best}`);
    }
    return {
      name: this.definition.name,
      episodes: idle.length,
      perfect: best,
      random: chance,
      idle: meanOf(idle),
      turns: meanOf(turns),
      malformed: this.options.malformed,
      problems: [...this.problems.values()],
    };
  }

  private report(check: string, problem: string): void {
    if (!this.problems.has(check)) this.problems.set(check, `${check}: ${problem}`);
  }

  /** Runs a check. An environment that throws has failed it. */
  private async attempt(seed: number, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (thrown) {
      if (this.options.signal.aborted) throw thrown;
      this.report('errors', `seed ${seed}: ${messageOf(thrown)}`);
    }
  }

  private create(): Environment {
    return this.definition.create(this.config, this.options);
  }

  private async checkSeed(seed: number): Promise<void> {
    const idlePlay = await this.play(seed, idle);
    if (idlePlay === null) return;
    this.scores.idle.push(idlePlay.score);
    if (idlePlay.score > TOLERANCE) this.report('idle', `seed ${seed}: empty replies get ${idlePlay.score}`);
    if (!idlePlay.hasEnded)
      return this.report('end', `seed ${seed}: the episode does not end in ${MAX_REPLIES} replies`);
    const random = await this.play(seed, randomPlayer(seed));
    if (random !== null) this.scores.random.push(random.score);
    const perfect = this.definition.perfectPlay?.(this.config, seed) ?? null;
    if (perfect !== null) await this.checkPerfect(seed, perfect, random?.score ?? 0);
    await this.checkRepeats(seed, perfect === null ? randomPlayer : () => programmed(perfect));
  }

  private async checkPerfect(seed: number, perfect: PerfectPlay, randomScore: number): Promise<void> {
    const play = await this.play(seed, programmed(perfect));
    if (play === null) return;
    this.scores.perfect.push(play.score);
    this.scores.turns.push(perfect.replies.length);
    if (Math.abs(play.score - perfect.score) > TOLERANCE) {
      this.report('perfect', `seed ${seed}: perfect play gets ${play.score} instead of ${perfect.score}`);
    }
    if (!play.hasEnded && perfect.replies.length > 0)
      this.report('perfect', `seed ${seed}: perfect play does not end it`);
    if (randomScore > perfect.score + TOLERANCE) {
      this.report('perfect', `seed ${seed}: random play gets ${randomScore}, more than ${perfect.score}`);
    }
  }

  /** Plays an episode alone, in an environment that was used before, and beside another episode, and compares the observations. */
  private async checkRepeats(seed: number, player: (seed: number) => Player): Promise<void> {
    const first = await this.play(seed, player(seed));
    const environment = this.create();
    try {
      await playIn(environment, seed + 1, randomPlayer(seed));
      const repeated = await playIn(environment, seed, player(seed));
      if (!isDeepStrictEqual(repeated, first))
        this.report('same seed', `seed ${seed}: a repeat has other observations`);
    } finally {
      await environment.close();
    }
    const beside = await this.playBeside(seed, player(seed), randomPlayer(seed));
    if (!isDeepStrictEqual(beside, first)) {
      this.report('two at once', `seed ${seed}: another episode at the same time changes the observations`);
    }
  }

  private async play(seed: number, player: Player): Promise<Play | null> {
    const environment = this.create();
    try {
      return await playIn(environment, seed, player);
    } finally {
      await environment.close();
      await environment.close();
    }
  }

  /** Plays an episode in turns with an episode of another seed, which is started after it and moves before it. */
  private async playBeside(seed: number, player: Player, other: Player): Promise<Play | null> {
    const environments = [this.create(), this.create()] as const;
    const plays = [new RunningPlay(player), new RunningPlay(other)] as const;
    try {
      await plays[0].start(environments[0], seed);
      await plays[1].start(environments[1], seed + 1);
      while (!plays[0].isOver) {
        await plays[1].next();
        await plays[0].next();
      }
      return plays[0].result();
    } finally {
      for (const environment of environments) await environment.close();
    }
  }

  private async checkMalformed(): Promise<void> {
    const random = seededRandom(1);
    const environment = this.create();
    let [seed, tools, isOver]: [number, readonly ChatTool[], boolean] = [0, [], true];
    try {
      for (let i = 0; i < this.options.malformed; i++) {
        this.options.signal.throwIfAborted();
        if (isOver) {
          const observation = await firstEpisode(environment, seed, this.options.seeds);
          if (observation === null) return;
          tools = observation.tools ?? [];
          seed = (seed + 1) % this.options.seeds;
        }
        const reply = malformedReply(tools, random);
        const result = await environment.step(reply);
        const problem = problemOf(reply, result);
        if (problem !== null) this.report('malformed', `reply ${i}: ${problem}`);
        tools = result.tools ?? tools;
        // Every tenth ended episode gets one more reply, which must be answered, too.
        isOver = (result.terminated || result.truncated) && i % 10 !== 0;
      }
    } finally {
      await environment.close();
    }
  }
}

/** Resets an environment to the first seed that has an episode, from `seed` on. */
async function firstEpisode(environment: Environment, seed: number, seeds: number): Promise<Observation | null> {
  for (let i = 0; i < seeds; i++) {
    const observation = await environment.reset((seed + i) % seeds);
    if (observation !== null) return observation;
  }
  return null;
}

async function playIn(environment: Environment, seed: number, player: Player): Promise<Play | null> {
  const play = new RunningPlay(player);
  await play.start(environment, seed);
  while (!play.isOver) await play.next();
  return play.result();
}

/** An episode that is played reply by reply. */
class RunningPlay {
  isOver = true;
  private readonly player: Player;
  private environment: Environment | null = null;
  private readonly observations: Observation[] = [];
  private tools: readonly ChatTool[] = [];
  private score = 0;
  private hasEnded = false;

  constructor(player: Player) {
    this.player = player;
  }

  async start(environment: Environment, seed: number): Promise<void> {
    const observation = await environment.reset(seed);
    if (observation === null) return;
    this.environment = environment;
    this.isOver = false;
    this.add(observation);
  }

  async next(): Promise<void> {
    const index = this.observations.length - 1;
    const reply = this.isOver || index >= MAX_REPLIES ? null : this.player(this.tools, index);
    if (reply === null || this.environment === null) {
      this.isOver = true;
      return;
    }
    const result = await this.environment.step(reply);
    this.add(result);
    this.score += result.reward;
    this.hasEnded = result.terminated || result.truncated;
    this.isOver = this.hasEnded;
  }

  /** Returns the play; `null` when the seed has no episode. */
  result(): Play | null {
    if (this.environment === null) return null;
    return { observations: this.observations, score: this.score, hasEnded: this.hasEnded };
  }

  private add(observation: Observation): void {
    this.observations.push(observation);
    this.tools = observation.tools ?? this.tools;
  }
}

/** Returns what is wrong with the result of a reply; `null` when nothing is. */
function problemOf(
  reply: AssistantMessage,
  { messages, answers = [], reward, terminated, truncated }: StepResult,
): string | null {
  const all: ChatMessage[] = [...answers, ...messages];
  const ids = all.flatMap((message) => (message.role === 'tool' ? [message.tool_call_id] : []));
  const wanted = (reply.tool_calls ?? []).map(({ id }) => id);
  if (!isDeepStrictEqual(ids, wanted)) return `${wanted.length} tool calls have ${ids.length} answers, or others`;
  if (!Number.isFinite(reward)) return `its reward is ${reward}`;
  if (terminated && truncated) return 'the episode is terminated and truncated';
  if (all.length === 0) return 'it has no answer';
  if (!all.every((message) => chatMessageSchema.safeParse(message).success)) return 'an answer is not a message';
  const texts = all.map(({ content }) => JSON.stringify(content)).join('');
  if (texts.length > MAX_ANSWER_CHARS) return `its answers have ${texts.length} characters`;
  // JSON.stringify writes only lone surrogates as escapes.
  return /(?<!\\)(\\\\)*\\ud[89a-f]/.test(texts) ? 'an answer is not valid Unicode' : null;
}

function meanOf(numbers: readonly number[]): number | null {
  return numbers.length === 0 ? null : numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}
