import { canonicalJson } from '@floe-rl/core';
import { declarationOf } from '../tools/checked-arguments.ts';
import type { Turn } from '../tools/conversation.ts';
import type { AnyTool, EpisodeEnding } from '../tools/tool.ts';
import { callHints, type Hinting, hintingOf, withHints } from './call-hints.ts';
import { type BrokenCall, type CheckedCall, checkCalls, hasUnparsedCall, isBroken } from './calls.ts';
import type { Episode, EpisodeResult } from './episode.ts';
import { answersOf, type CallEpisode, type CallOutcome, runCalls } from './run-calls.ts';

/** Number of replies that are left when the agent is first reminded of its limit. */
const STEPS_LEFT = 5;
/** Share of the context window that is left when the agent is reminded of it. */
const CONTEXT_LEFT = 0.15;
/** Number of equal calls, one after the other, after which the agent is warned. */
const REPEATED_CALLS = 3;
/** Number of replies without a call, one after the other, after which an agent that must call tools has failed. */
const MAX_IDLE_REPLIES = 3;

export type LoopOptions = {
  /**
   * Whether a reply without a tool call is the final answer. Otherwise the agent is reminded to call a tool, and the episode fails after
   * `maxIdleReplies` such replies in a row.
   */
  readonly answersInText: boolean;
  /** Maximum number of replies without a call in a row, where they are no answer; default: 3. */
  readonly maxIdleReplies?: number;
  /** Name of a tool that the agent should have called before it ends its work; default: none. */
  readonly requiredTool?: string;
};

/** The parts of an episode that the loop uses. */
export type LoopEpisode = CallEpisode & Pick<Episode, 'tools' | 'hints' | 'limits' | 'left'>;

/**
 * Lets the model work with the tools of the episode: ask, check the calls, run them, give hints. The loop ends when a tool ends the episode,
 * the model answers, or a limit is reached. The caller has pushed the instruction. The score is the sum of the rewards of calls; `null` when
 * no tool has rewards.
 */
export function runLoop(episode: LoopEpisode, options: LoopOptions): Promise<EpisodeResult> {
  return new ToolLoop(episode, options).run();
}

/**
 * Starts the conversation with the system prompts of the agent and of the task, the texts of the tools, and the instruction. `prompt` is
 * `null` for none.
 */
export function pushInstruction(
  { conversation, systemPrompt, instruction, toolInstructions }: Episode,
  prompt: string | null = null,
): void {
  const texts = [prompt, systemPrompt, ...toolInstructions].filter((text) => text !== null);
  if (texts.length > 0) conversation.push({ role: 'system', content: texts.join('\n\n') });
  conversation.push({ role: 'user', content: instruction });
}

class ToolLoop {
  private readonly episode: LoopEpisode;
  private readonly options: LoopOptions;
  private readonly tools: ReadonlyMap<string, AnyTool>;
  private readonly usedTools = new Set<string>();
  private readonly rewards: { completionId: string; reward: number }[] = [];
  private idleReplies = 0;
  private lastCalls = '';
  private sameCalls = 0;
  private wasEarly = false;
  private readonly hint: Hinting;

  constructor(episode: LoopEpisode, options: LoopOptions) {
    this.episode = episode;
    this.options = options;
    this.tools = new Map(episode.tools.map((tool) => [tool.name, tool]));
    this.hint = hintingOf(episode);
  }

  async run(): Promise<EpisodeResult> {
    const { conversation, tools, left, signal } = this.episode;
    const declarations = tools.map(declarationOf);
    while (left().turns !== 0) {
      signal.throwIfAborted();
      const turn = await conversation.ask({ tools: declarations });
      const end = await this.answer(turn);
      if (end !== null) return this.result(end.isTruncated === true ? 'truncated' : 'finished', end);
      if (this.idleReplies >= (this.options.maxIdleReplies ?? MAX_IDLE_REPLIES)) {
        return this.result('failed', { reason: `${this.idleReplies} replies in a row had no tool call` });
      }
    }
    return this.result('truncated', { reason: 'no replies left' });
  }

  /** Answers a reply. Resolves with `null` when the episode continues. */
  private async answer({ message, completionId, finishReason }: Turn): Promise<EpisodeEnding | null> {
    const { episode, options } = this;
    const calls = message.tool_calls ?? [];
    if (calls.length === 0) {
      const isAnswer = options.answersInText && finishReason === 'stop' && !hasUnparsedCall(message);
      if (!isAnswer) this.remind(hasUnparsedCall(message) ? 'bad_json' : 'no_call');
      else {
        const reminder = this.reminderAtEnd();
        if (reminder === null) return { reason: 'the agent answered', answer: message.content ?? '' };
        episode.conversation.push({ role: 'user', content: reminder });
      }
      return null;
    }
    this.idleReplies = 0;
    const checked = this.withoutEarlyEnd(checkCalls(calls, this.tools));
    for (const call of checked) if (isBroken(call)) episode.count(`broken.${call.kind}`);
    const outcomes = await runCalls(checked, episode);
    const rewards = outcomes.map(({ reward }) => reward).filter((reward) => reward !== null);
    if (rewards.length > 0) {
      this.rewards.push({ completionId, reward: rewards.reduce((sum, reward) => sum + reward, 0) });
    }
    const end = outcomes.find((outcome) => outcome.end !== null)?.end ?? null;
    for (const { call, isError } of outcomes) if (!isBroken(call) && !isError) this.usedTools.add(call.tool.name);
    if (outcomes.some(({ content }) => content === null)) return end;
    const hints = end === null ? this.hintsAfter(checked, outcomes) : [];
    episode.conversation.push(...withHints(answersOf(outcomes), hints));
    return end;
  }

  /** Reminds the agent to call a tool. */
  private remind(kind: 'no_call' | 'bad_json'): void {
    const { episode } = this;
    this.idleReplies++;
    episode.count(kind === 'no_call' ? 'no_call' : 'broken.bad_json');
    const names = [...this.tools.keys()].join(', ');
    const hint = this.hint(kind, { tools: names });
    const text = [hint ?? 'Error: no tool call.', ...this.limitHints()].join('\n');
    episode.conversation.push({ role: 'user', content: text });
  }

  /** Returns a reminder for an agent that ends its work without the tool that it should have called; `null` for others, and the second time. */
  private reminderAtEnd(): string | null {
    const { requiredTool } = this.options;
    if (this.wasEarly || requiredTool === undefined || this.usedTools.has(requiredTool)) return null;
    const hint = this.hint('too_early', { tool: requiredTool });
    this.wasEarly = hint !== null;
    return hint;
  }

  /** Lets a call that would end the work too early be answered with a reminder instead. */
  private withoutEarlyEnd(calls: readonly (CheckedCall | BrokenCall)[]): readonly (CheckedCall | BrokenCall)[] {
    const isRequired = (call: CheckedCall | BrokenCall): boolean =>
      !isBroken(call) && call.tool.name === this.options.requiredTool;
    const ends = calls.some((call) => !isBroken(call) && call.tool.endsWork === true);
    const reminder = ends && !calls.some(isRequired) ? this.reminderAtEnd() : null;
    if (reminder === null) return calls;
    return calls.map((call) => {
      if (isBroken(call) || call.tool.endsWork !== true) return call;
      return { ...call, tool: { ...call.tool, run: async () => reminder } };
    });
  }

  private hintsAfter(calls: readonly (CheckedCall | BrokenCall)[], outcomes: readonly CallOutcome[]): string[] {
    const hints = callHints(calls, outcomes, [...this.tools.keys()], this.hint);
    const repeated = this.isRepeated(calls) ? this.hint('repeated_call', { count: this.sameCalls }) : null;
    return [...hints, ...(repeated === null ? [] : [repeated]), ...this.limitHints()];
  }

  private isRepeated(calls: readonly (CheckedCall | BrokenCall)[]): boolean {
    const text = canonicalJson(calls.map(({ call }) => [call.function.name, call.function.arguments]));
    this.sameCalls = text === this.lastCalls ? this.sameCalls + 1 : 1;
    this.lastCalls = text;
    return this.sameCalls >= REPEATED_CALLS;
  }

  private limitHints(): string[] {
    const { turns, contextTokens } = this.episode.left();
    const total = this.episode.limits.contextTokens;
    const hints: (string | null)[] = [];
    if (turns === 1) hints.push(this.hint('last_step'));
    else if (turns !== null && turns > 1 && turns <= STEPS_LEFT) hints.push(this.hint('steps_left', { count: turns }));
    if (contextTokens !== null && total !== null && contextTokens < total * CONTEXT_LEFT) {
      hints.push(this.hint('context_left', { percent: Math.max(0, Math.floor((100 * contextTokens) / total)) }));
    }
    return hints.filter((hint) => hint !== null);
  }

  private result(status: EpisodeResult['status'], { isTruncated: _, ...end }: EpisodeEnding): EpisodeResult {
    const hasScore = this.rewards.length > 0 || this.episode.tools.some(({ hasRewards }) => hasRewards === true);
    const score = hasScore ? this.rewards.reduce((sum, { reward }) => sum + reward, 0) : null;
    return { status, score, ...end, replyRewards: this.rewards };
  }
}
