import { FloeError } from '@floe-rl/core';
import {
  type AssistantMessage,
  type ChatMessage,
  type ChatTool,
  type Content,
  type ContentPart,
  contentText,
} from '@floe-rl/core/schema';
import type { Environment, Observation, StepResult } from '../environments/environment.ts';
import type { Conversation } from '../tools/conversation.ts';
import { MAIN_THREAD } from './conversation.ts';
import type { Episode, EpisodeResult, ReplyReward } from './episode.ts';

/**
 * The part of earlier steps that the model sees. `append`: the whole conversation, which becomes one trace. With the other two, each prompt
 * stands for itself, so that each step becomes a trace. `step` repeats the last steps with the replies of the model; `step_concat` repeats
 * only what the model observed in them. Both begin with the instruction and the rules, and end with the current observation. Only the images
 * of the current observation are shown; images of earlier steps are the text `[image]`.
 */
export const HISTORIES = ['append', 'step', 'step_concat'] as const;
export type History = (typeof HISTORIES)[number];

export type PlayOptions = {
  readonly history: History;
  /** Number of earlier steps that a prompt repeats which stands for itself. */
  readonly summarySteps: number;
  /** Maximum length of a reply in tokens; `null` for the limit of the task. */
  readonly maxTokensPerStep: number | null;
  /** Maximum number of replies; `null` for the limit of the task. */
  readonly maxSteps?: number | null;
};

/** What a player saw and did. */
type Step = { readonly observation: string; readonly action: string };

/**
 * Plays one episode of the environment: each reply of the model is an action. In an environment for several players each player is a
 * conversation of its own. The score is the sum of the rewards.
 */
export function playEnvironment(episode: Episode, options: PlayOptions): Promise<EpisodeResult> {
  const { environment } = episode;
  if (environment === null) throw new FloeError('schema_violation', 'environment: the task of this agent needs one');
  return new Play(episode, environment, options).run();
}

class Play {
  private readonly episode: Episode;
  private readonly environment: Environment;
  private readonly options: PlayOptions;
  private readonly seats = new Map<string, Conversation>();
  private readonly seatScores: Record<string, number> = {};
  private readonly rewards: ReplyReward[] = [];
  /** Earlier steps of each player, for prompts that stand for themselves. */
  private readonly steps = new Map<Conversation, Step[]>();
  /** What each player must know in every step. */
  private readonly introductions = new Map<Conversation, string>();
  private tools: readonly ChatTool[] = [];
  private score = 0;

  constructor(episode: Episode, environment: Environment, options: PlayOptions) {
    this.episode = episode;
    this.environment = environment;
    this.options = options;
  }

  async run(): Promise<EpisodeResult> {
    const { episode, environment } = this;
    let observation: Observation | null = await environment.reset(episode.seed);
    if (observation === null) return { status: 'no_data', score: null, reason: 'no episode for this seed' };
    let replies = 0;
    const limits = [episode.limits.turns, this.options.maxSteps ?? null].filter((limit) => limit !== null);
    const mostReplies = Math.min(...limits, Number.POSITIVE_INFINITY);
    while (replies < mostReplies) {
      this.tools = observation.tools ?? this.tools;
      const player = this.conversationOf(observation.seat);
      this.show(player, observation);
      const { completionId, message } = await this.ask(player);
      replies++;
      const step: StepResult = await environment.step(message);
      this.record(step, completionId, observation);
      this.remember(player, observation, message);
      player.push(...(step.answers ?? []));
      if (step.terminated) return this.result('finished', 'the environment ended the episode');
      if (step.truncated) return this.result('truncated', 'the environment stopped the episode');
      observation = step;
    }
    return this.result('truncated', 'no replies left');
  }

  private ask(player: Conversation): ReturnType<Conversation['ask']> {
    const { maxTokensPerStep } = this.options;
    return player.ask({ tools: this.tools, ...(maxTokensPerStep === null ? {} : { maxTokens: maxTokensPerStep }) });
  }

  /** Returns the conversation of a player; the first player is the main agent. */
  private conversationOf(seat = MAIN_THREAD): Conversation {
    const known = this.seats.get(seat);
    if (known !== undefined) return known;
    const { conversation } = this.episode;
    const player = this.seats.size === 0 ? conversation : conversation.fork(seat, { messages: [] });
    this.seats.set(seat, player);
    return player;
  }

  private show(player: Conversation, { messages, introduction }: Observation): void {
    if (introduction !== undefined) this.introductions.set(player, introduction);
    if (this.options.history === 'append') {
      const first = player.messages.length === 0 ? this.instruction() : [];
      player.push(...first, ...introduced(introduction, messages));
      return;
    }
    const rules = this.introductions.get(player);
    const earlier = this.summary(this.steps.get(player) ?? []);
    const before = [rules ?? '', ...earlier].filter((text) => text !== '').join('\n\n');
    player.replace([...this.instruction(), { role: 'user', content: observed(before, messages) }]);
  }

  private instruction(): ChatMessage[] {
    const { systemPrompt, instruction, toolInstructions } = this.episode;
    const texts = [systemPrompt ?? '', ...toolInstructions, instruction].filter((text) => text !== '');
    return texts.length === 0 ? [] : [{ role: 'system', content: texts.join('\n\n') }];
  }

  private summary(steps: readonly Step[]): string[] {
    const { summarySteps, history } = this.options;
    const last = summarySteps === 0 ? [] : steps.slice(-summarySteps);
    if (last.length === 0) return [];
    if (history === 'step_concat') return last.map(({ observation }) => observation);
    const first = steps.length - last.length + 1;
    return [
      `Earlier steps (${steps.length}):`,
      ...last.map(({ action, observation }, index) => `Step ${first + index}:\n${observation}\nYour reply: ${action}`),
    ];
  }

  private record(step: StepResult, completionId: string, before: Observation): void {
    const { stateHash, seat } = before;
    this.score += step.reward;
    this.rewards.push({
      completionId,
      reward: step.reward,
      ...(stateHash === undefined ? {} : { stateHash }),
      ...(seat === undefined ? {} : { seat }),
    });
    for (const [seat, reward] of Object.entries(step.seatRewards ?? {})) {
      this.seatScores[seat] = (this.seatScores[seat] ?? 0) + reward;
    }
    for (const [name, value] of Object.entries(step.metrics ?? {})) this.episode.measure(`env.${name}`, value);
  }

  private remember(player: Conversation, { messages }: Observation, message: AssistantMessage): void {
    if (this.options.history === 'append') return;
    const calls = (message.tool_calls ?? []).map(({ function: { name, arguments: args } }) => `${name} ${args}`);
    const action = [message.content ?? '', ...calls].filter((text) => text !== '').join(' ');
    const observation = messages
      .map(({ content }) => contentText(content, { separator: '\n', image: '[image]' }))
      .join('\n');
    this.steps.set(player, [...(this.steps.get(player) ?? []), { observation, action }]);
  }

  private result(status: EpisodeResult['status'], reason: string): EpisodeResult {
    const { score, rewards: replyRewards, seatScores } = this;
    const hasSeats = Object.keys(seatScores).length > 0;
    return { status, score, reason, replyRewards, ...(hasSeats ? { seatScores } : {}) };
  }
}

/** Puts an introduction before the first message, as part of it where it is one of the user, because some chat templates allow no two user messages. */
function introduced(introduction: string | undefined, messages: readonly ChatMessage[]): readonly ChatMessage[] {
  if (introduction === undefined) return messages;
  const [first, ...others] = messages;
  if (first?.role !== 'user') return [{ role: 'user', content: introduction }, ...messages];
  const content =
    typeof first.content === 'string'
      ? `${introduction}\n\n${first.content}`.trim()
      : [textPart(introduction), ...first.content];
  return [{ ...first, content }, ...others];
}

/** Returns the content of a prompt: a text, and the current observation with its images. */
function observed(before: string, messages: readonly ChatMessage[]): Content {
  const contents = messages.map(({ content }) => content ?? '');
  if (contents.every((content) => typeof content === 'string')) {
    return [before, ...contents].filter((text) => text !== '').join('\n\n');
  }
  const parts = contents.flatMap((content) => (typeof content === 'string' ? [textPart(content)] : content));
  return [textPart(before), ...parts].filter((part) => part.type !== 'text' || part.text !== '');
}

function textPart(text: string): ContentPart {
  return { type: 'text', text };
}
