import type { AssistantMessage, ChatMessage, ChatTool, FinishReason, ToolChoice, Usage } from '@floe-rl/core/schema';

export type AskOptions = {
  /** Tools that the model may call; default: the tools of the last call of this conversation, at first none. */
  readonly tools?: readonly ChatTool[];
  readonly toolChoice?: ToolChoice;
  /** Maximum length of the reply in tokens; the task's limit applies as well. */
  readonly maxTokens?: number;
  /** Whether the reply is trained; default: as the conversation. A reply that is not trained is recorded, and counted in the audit. */
  readonly train?: boolean;
};

/** One reply of the model. */
export type Turn = {
  /** Id of the recorded completion; the id that the server gave where there is no record. */
  readonly completionId: string;
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  readonly usage: Usage;
};

export type ForkOptions = {
  /** Messages of the new conversation; default: the messages of this conversation. */
  readonly messages?: readonly ChatMessage[];
  /** Whether the replies of the new conversation are trained; default: as in this one. */
  readonly train?: boolean;
  /** Pool of engines that samples the replies: the pool of the task or one of its `engine.extra_pools`; default: as in this one. */
  readonly enginePool?: string;
};

/** A conversation with the model. All of an agent's calls go through conversations: loops, sub-agents and players of a game. */
export interface Conversation {
  /** Name of the agent thread, `main` for the main agent. Each thread becomes traces of its own. */
  readonly thread: string;
  readonly messages: readonly ChatMessage[];
  /** Lets the model reply to the messages, and appends the reply. Rejects with the reason of the episode's signal, or with the call's error. */
  ask(options?: AskOptions): Promise<Turn>;
  push(...messages: readonly ChatMessage[]): void;
  /** Replaces all messages, as after a summary. The next reply starts a new branch of the token graph. */
  replace(messages: readonly ChatMessage[]): void;
  /** Starts a conversation of another agent of the session. `thread` must be the name of no other conversation. */
  fork(thread: string, options?: ForkOptions): Conversation;
}
