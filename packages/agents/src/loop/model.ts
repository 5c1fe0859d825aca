import type { ChatMessage, ChatTool, ToolChoice } from '@floe-rl/core/schema';
import type { Turn } from '../tools/conversation.ts';

/** One call of the model. */
export type ModelRequest = {
  readonly thread: string;
  /** Whether the reply is trained. */
  readonly isTrained: boolean;
  /** All messages of the conversation. */
  readonly messages: readonly ChatMessage[];
  /** The reply at which the conversation stood before its new messages; `null` for a first call, and after the messages were replaced. */
  readonly continues: Continuation | null;
  readonly tools: readonly ChatTool[];
  readonly toolChoice: ToolChoice | null;
  readonly maxTokens: number | null;
  /** Pool of engines that samples the reply; `null` for the pool of the task. Models other than floe's proxy ignore it. */
  readonly enginePool: string | null;
};

type Continuation = {
  readonly completionId: string;
  /** Number of messages up to and including that reply. */
  readonly length: number;
  /** Whether that call had the same tools. */
  readonly hasSameTools: boolean;
};

/** A way to reach the model: floe's proxy without HTTP, an OpenAI-compatible URL, or a mailbox. */
export interface Model {
  /** Rejects with the call's error, or with the reason of `signal`. */
  ask(request: ModelRequest, signal: AbortSignal): Promise<Turn>;
}
