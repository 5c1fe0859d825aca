import type { ChatMessage, ChatTool, ToolChoice } from '../schema/index.ts';

/** A model call of an agent that runs on the node, which needs no HTTP. */
export type DirectCall = {
  readonly thread: string;
  /** Whether the reply is trained. */
  readonly isTrained: boolean;
  /** The whole conversation, or only its messages after the reply `previousCompletionId`. */
  readonly messages: readonly ChatMessage[];
  readonly previousCompletionId: string | null;
  /** `null` for the tools of the reply `previousCompletionId`. */
  readonly tools: readonly ChatTool[] | null;
  readonly toolChoice: ToolChoice | null;
  readonly maxTokens: number | null;
  /** Pool of engines that samples the reply; `null` for the pool of the task. */
  readonly enginePool: string | null;
};
