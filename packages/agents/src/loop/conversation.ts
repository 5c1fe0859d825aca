import { FloeError } from '@floe-rl/core';
import type { ChatMessage, ChatTool } from '@floe-rl/core/schema';
import type { AskOptions, Conversation, ForkOptions, Turn } from '../tools/conversation.ts';
import type { Model, ModelRequest } from './model.ts';

/** Thread of the agent that has the task. */
export const MAIN_THREAD = 'main';

/** What the conversations of one episode share. */
type EpisodeParts = {
  readonly model: Model;
  readonly signal: AbortSignal;
  /** Names of the threads that exist. */
  readonly threads: Set<string>;
  /** Called with every reply. */
  readonly onTurn: (turn: Turn, thread: string) => void;
};

/** Creates the conversation of an episode's main agent. `onTurn` is called with every reply, also with the replies of forked conversations. */
export function mainConversation(
  model: Model,
  signal: AbortSignal,
  onTurn: (turn: Turn, thread: string) => void = () => {},
): Conversation {
  const parts = { model, signal, threads: new Set([MAIN_THREAD]), onTurn };
  return new ModelConversation(parts, { thread: MAIN_THREAD, isTrained: true, enginePool: null }, []);
}

/** What does not change in a conversation. */
type Facts = Pick<ModelRequest, 'thread' | 'isTrained' | 'enginePool'>;

class ModelConversation implements Conversation {
  private readonly parts: EpisodeParts;
  private readonly facts: Facts;
  private list: ChatMessage[];
  private tools: readonly ChatTool[] = [];
  private last: { readonly turn: Turn; readonly length: number; readonly tools: readonly ChatTool[] } | null = null;
  private isAsking = false;

  constructor(parts: EpisodeParts, facts: Facts, messages: readonly ChatMessage[]) {
    this.parts = parts;
    this.facts = facts;
    this.list = [...messages];
  }

  get thread(): string {
    return this.facts.thread;
  }

  get messages(): readonly ChatMessage[] {
    return this.list;
  }

  async ask(options: AskOptions = {}): Promise<Turn> {
    const { model, signal, onTurn } = this.parts;
    signal.throwIfAborted();
    if (this.isAsking) throw new FloeError('conflict', `the conversation ${this.thread} already waits for a reply`);
    this.tools = options.tools ?? this.tools;
    this.isAsking = true;
    try {
      const turn = await model.ask(this.requestOf(options), signal);
      this.list.push(turn.message);
      this.last = { turn, length: this.list.length, tools: this.tools };
      onTurn(turn, this.thread);
      return turn;
    } finally {
      this.isAsking = false;
    }
  }

  push(...messages: readonly ChatMessage[]): void {
    this.refuseWhileAsking();
    this.list.push(...messages);
  }

  replace(messages: readonly ChatMessage[]): void {
    this.refuseWhileAsking();
    this.list = [...messages];
    this.last = null;
  }

  fork(thread: string, { messages = this.list, train, enginePool }: ForkOptions = {}): Conversation {
    const { threads } = this.parts;
    if (threads.has(thread)) throw new FloeError('conflict', `there is already a conversation ${thread}`);
    threads.add(thread);
    const { facts } = this;
    const own = { thread, isTrained: train ?? facts.isTrained, enginePool: enginePool ?? facts.enginePool };
    return new ModelConversation(this.parts, own, messages);
  }

  private requestOf({ toolChoice, maxTokens, train }: AskOptions): ModelRequest {
    const { last, list, tools } = this;
    return {
      ...this.facts,
      ...(train === undefined ? {} : { isTrained: train }),
      messages: list,
      continues:
        last === null
          ? null
          : { completionId: last.turn.completionId, length: last.length, hasSameTools: last.tools === tools },
      tools,
      toolChoice: toolChoice ?? null,
      maxTokens: maxTokens ?? null,
    };
  }

  /** The reply is appended when it arrives, so that nothing may change the messages before. */
  private refuseWhileAsking(): void {
    if (this.isAsking) throw new FloeError('conflict', `the conversation ${this.thread} waits for a reply`);
  }
}
