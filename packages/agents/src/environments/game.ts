import { createHash } from 'node:crypto';
import { canonicalJson } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, Content, ContentPart } from '@floe-rl/core/schema';
import { z } from 'zod';
import {
  type ActionForm,
  type ActionFormat,
  actionFormatSchema,
  type ReadReply,
  readReply,
  replyOf,
  toolOf,
} from './action.ts';
import {
  defineEnvironment,
  type Environment,
  type EnvironmentDefinition,
  type Observation,
  type StepResult,
} from './environment.ts';

/** Maximum for the `max_steps` of a game. */
export const MAX_STEPS = 10_000;

/** Returns the fields that the configuration of every game has. */
export function gameFields(maxSteps: number) {
  return {
    action_format: actionFormatSchema,
    max_steps: z.int().min(1).max(MAX_STEPS).default(maxSteps),
    invalid_action_reward: z.number().default(0),
  };
}

type GameSettings = {
  readonly action_format: ActionFormat;
  readonly max_steps: number;
  readonly invalid_action_reward: number;
};

/** What a valid action did. */
export type Move = {
  readonly reward: number;
  /** Whether the game is over. */
  readonly isOver: boolean;
  /** Whether the player has reached the goal; it becomes the metric `success`. */
  readonly isWon: boolean;
  /** What happened, as the agent reads it. */
  readonly note: string;
  /** Rewards by player, in a game for several. */
  readonly seatRewards?: Readonly<Record<string, number>>;
};

/** The state and the rules of one episode. Its methods throw nothing. */
export type Game<Action> = {
  /** The rules and the goal, as the introduction of each player begins. */
  readonly rules: string;
  /** The actions that are possible now, as an observation lists them after an invalid one. */
  validActions(): string;
  /** The state, as the player sees it: a text, or an image. */
  view(): string | ContentPart;
  /** The value that is the same for equal states. */
  state(): unknown;
  /** Name of the player who acts next; absent in a game for one. */
  seat?(): string;
  /**
   * Plays an action. Returns a text that says what is wrong when the action is not possible in this state. `step` is the number of the
   * steps before it, invalid ones included.
   */
  play(action: Action, step: number): Move | string;
};

export type GameDefinition<Config extends GameSettings, Action extends string | number> = {
  readonly name: string;
  readonly description: string;
  readonly config: z.ZodType<Config>;
  form(config: Config): ActionForm<Action>;
  /** Starts an episode. Returns `null` when no episode can be made for the seed. */
  start(config: Config, seed: number): Game<Action> | null;
  /** Returns the actions of perfect play and the sum of its rewards. */
  solve(config: Config, seed: number): { readonly actions: readonly Action[]; readonly score: number };
};

/** Defines the environment of a game with single actions: reads the actions, counts the steps, and answers what cannot be read. */
export function defineGame<Config extends GameSettings, Action extends string | number>(
  game: GameDefinition<Config, Action>,
): EnvironmentDefinition<Config> {
  const { name, description, config } = game;
  return defineEnvironment<Config>({
    name,
    description,
    config,
    create: (settings) => new GameEnvironment(game, settings),
    perfectPlay(settings, seed) {
      const { actions, score } = game.solve(settings, seed);
      const form = game.form(settings);
      return { replies: actions.map((action, i) => replyOf(form, settings.action_format, action, i)), score };
    },
  });
}

/** Returns a short text that is the same for equal states. */
export function hashOf(state: unknown): string {
  return createHash('sha256').update(canonicalJson(state)).digest('hex').slice(0, 16);
}

type Episode<Action> = {
  readonly game: Game<Action>;
  /** Players who have been given the rules. */
  readonly introduced: Set<string>;
  steps: number;
  invalidActions: number;
  end: 'terminated' | 'truncated' | null;
};

/** Returns the state as the player sees it. Games in which everything is hidden show nothing at the start. */
function viewOf(game: Game<never>): ChatMessage[] {
  const view = game.view();
  return view === '' ? [] : [{ role: 'user', content: typeof view === 'string' ? view : [view] }];
}

/** Returns a note and the state after it. */
function noted(note: string, view: string | ContentPart, closing: string): Content {
  if (typeof view === 'string') return `${note}\n\n${view}${closing}`.trim();
  return [{ type: 'text', text: `${note}${closing}` }, view];
}

class GameEnvironment<Config extends GameSettings, Action extends string | number> implements Environment {
  private readonly definition: GameDefinition<Config, Action>;
  private readonly config: Config;
  private readonly form: ActionForm<Action>;
  private episode: Episode<Action> | null = null;

  constructor(definition: GameDefinition<Config, Action>, config: Config) {
    this.definition = definition;
    this.config = config;
    this.form = definition.form(config);
  }

  async reset(seed: number): Promise<Observation | null> {
    const game = this.definition.start(this.config, seed);
    this.episode = game === null ? null : { game, introduced: new Set(), steps: 0, invalidActions: 0, end: null };
    if (this.episode === null) return null;
    const messages = viewOf(this.episode.game);
    const tools = this.config.action_format === 'tool' ? [toolOf(this.form)] : [];
    return { ...this.position(this.episode), ...this.introduction(this.episode), messages, tools };
  }

  async step(reply: AssistantMessage): Promise<StepResult> {
    const { episode } = this;
    if (episode === null) throw new Error('step was called before reset');
    const read = readReply(this.form, this.config.action_format, reply);
    if (episode.end !== null) return this.afterEnd(episode, read);
    const { game } = episode;
    const actor = game.seat?.();
    const move = read.action === null ? read.problem : game.play(read.action, episode.steps);
    episode.steps++;
    if (typeof move === 'string') episode.invalidActions++;
    const isOver = typeof move !== 'string' && move.isOver;
    const isLast = !isOver && episode.steps >= this.config.max_steps;
    if (isOver || isLast) episode.end = isOver ? 'terminated' : 'truncated';
    return { ...this.position(episode), ...this.messages(episode, read, move, actor), ...this.outcome(episode, move) };
  }

  async close(): Promise<void> {
    this.episode = null;
  }

  private outcome({ invalidActions, end }: Episode<Action>, move: Move | string) {
    const metrics = { success: typeof move !== 'string' && move.isWon ? 1 : 0, invalid_actions: invalidActions };
    const ending = { terminated: end === 'terminated', truncated: end === 'truncated', metrics };
    if (typeof move === 'string') return { ...ending, reward: this.config.invalid_action_reward };
    return { ...ending, reward: move.reward, ...(move.seatRewards && { seatRewards: move.seatRewards }) };
  }

  private messages(episode: Episode<Action>, read: ReadReply<Action>, move: Move | string, actor: string | undefined) {
    const { game, end } = episode;
    const note = typeof move === 'string' ? `${move}\nValid actions: ${game.validActions()}` : move.note;
    const closing = end === 'truncated' ? '\n\nNo steps are left.' : '';
    if (end !== null || actor === game.seat?.()) {
      return { messages: read.answer(noted(note, game.view(), closing)) };
    }
    const messages = viewOf(game);
    return { ...this.introduction(episode), messages, answers: read.answer(note) };
  }

  /** Returns the rules for the next player, unless that player has read them. */
  private introduction({ game, introduced }: Episode<Action>): { introduction?: string } {
    const seat = game.seat?.() ?? '';
    if (introduced.has(seat)) return {};
    introduced.add(seat);
    return { introduction: `${game.rules}\n${this.instruction()}` };
  }

  private instruction(): string {
    const { max_steps, action_format } = this.config;
    const how =
      action_format === 'tool'
        ? `Act by calling the tool ${this.form.tool} once in each reply.`
        : `End each reply with your action, the ${this.form.parameter}, as <answer>${this.form.parameter}</answer>.`;
    return `${how} There are at most ${max_steps} steps; an invalid action uses one, too.`;
  }

  private position({ game }: Episode<Action>): { stateHash: string; seat?: string } {
    const seat = game.seat?.();
    return { stateHash: hashOf(game.state()), ...(seat !== undefined && { seat }) };
  }

  private afterEnd(episode: Episode<Action>, read: ReadReply<Action>): StepResult {
    return {
      ...this.position(episode),
      messages: read.answer('The episode has ended.'),
      reward: 0,
      terminated: episode.end === 'terminated',
      truncated: episode.end === 'truncated',
    };
  }
}
