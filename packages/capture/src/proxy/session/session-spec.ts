import type { Span } from '@floe-rl/core';
import type { AssistantMessage, CallRules } from '@floe-rl/core/schema';
import type { AttemptSpec } from './engine-request.ts';

/** The settings of a session that the proxy opens. */
export type ProxySessionSpec = AttemptSpec & {
  /** The session key, which authorizes the requests of this attempt only. A key is never reused. */
  readonly key: string;
  /** Path of a Unix socket for this session alone; `null` when the session is reached over the TCP listener only. */
  readonly socketPath: string | null;
  /** The harness's name for the model, as the model list shows it. */
  readonly modelName: string;
  /** Other model names that requests may use; `*` allows any name. Default: none. */
  readonly modelAliases?: readonly string[];
  /** Harness whose rules label the model calls of the session. Default: none, so that every call is the main agent's work. */
  readonly callRules?: CallRules | null;
  /** Maximum number of turns that the session may have, as `TurnLimit` counts them; `null` or absent for no limit. */
  readonly maxTurns?: number | null;
  /** Called once, when a request is refused because of {@link maxTurns}. Must not throw. */
  readonly onTurnLimit?: () => void;
  /** Maximum size of the record of the session's calls in bytes, as `RecordLimit` counts them. Default: no limit. */
  readonly maxRecordedBytes?: number;
  /** Called once, when a request is refused because of {@link maxRecordedBytes}. Must not throw. */
  readonly onRecordLimit?: () => void;
  /** Called after every recorded completion, with the totals of the session so far and the newest reply. Must not throw. */
  readonly onProgress?: (completionCount: number, sampledTokens: number, reply: AssistantMessage) => void;
  /** Called when a model call begins or ends, and for every streamed delta. Must not throw. */
  readonly onActivity?: () => void;
  /** Parent of the tracing spans of the session's model calls. Default: no parent. */
  readonly span?: Span;
  /** Called before each model call and each token count. It refuses the request by throwing an error. */
  readonly admit?: () => void;
};
