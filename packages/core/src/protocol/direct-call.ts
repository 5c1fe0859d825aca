import type { ChatMessage, ChatTool, ToolChoice } from '../schema/index.ts';

/** A model call of an agent that runs on the node, which needs no HTTP. */
export type DirectCall = {
  readonly thread: string;
  /** Whether the reply is trained. */
  readonly isTrained: boolean;
  /** The whole conversation, or what is new in it since the reply `previousCompletionId`. */
  readonly messages: readonly ChatMessage[];
  readonly previousCompletionId: string | null;
  /** `null` for those of the reply `previousCompletionId`. */
  readonly tools: readonly ChatTool[] | null;
  readonly toolChoice: ToolChoice | null;
  readonly maxTokens: number | null;
  /** Pool of engines that samples the reply; `null` for that of the task. */
  readonly enginePool: string | null;
};
