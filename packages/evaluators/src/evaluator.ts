import type { ChatMessage, EvaluatorSpec, TerminalStatus } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';

/** One trace that the task's builder made of the session, without its token ids. */
export type TraceView = {
  readonly traceId: string;
  /** Ids of all completions in the trace, in order, whether they are trained or not. */
  readonly completionIds: readonly string[];
  readonly trainedTokens: number;
  readonly finishReason: string | null;
  /** Position of the trace in its episode; `null` when the builder makes no episodes. */
  readonly step: { readonly episode: number; readonly turn: number; readonly last: boolean } | null;
  /** Messages of the first request, in which images are replaced by references. */
  readonly promptMessages: readonly ChatMessage[];
  /** Returns each reply of the trace, followed by the messages that the next request added. */
  responseMessages(): readonly ChatMessage[];
};

/** The task and the finished conversation that an evaluator scores. All texts of the agent or its tools may be hostile. */
export type EvaluatedSession = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly instruction: string;
  /** The metadata of the task. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /**
   * The conversation of the main agent: the messages of its last model call, followed by the reply. Empty when the agent used no reply.
   */
  readonly messages: readonly ChatMessage[];
  /** Empty when the traces could not be built. */
  readonly traces: readonly TraceView[];
  /** Final answer of an agent that names one, such as a floe agent with the tool `finish`; default: none. */
  readonly answer?: string;
};

/** The evaluation of one step of a task; `null` for a step that did not run. */
export type StepEvaluation = { readonly name: string; readonly evaluation: Evaluation | null };

/** Scores and rewards that a floe agent reported for its episode. */
export type EpisodeScores = {
  /** `null` when the agent gave no score. */
  readonly score: number | null;
  readonly seatScores: Readonly<Record<string, number>>;
  /** The reason why the episode ended; absent when the agent does not state it. */
  readonly reason?: string;
  /** Reward of each reply. `stateHash` is the state of the environment at the reply; absent when the environment does not name its states. */
  readonly replyRewards: readonly {
    readonly completionId: string;
    readonly reward: number;
    readonly stateHash?: string;
    /** The player that gave the reply, in an episode with several players. */
    readonly seat?: string;
  }[];
};

export type EvaluationContext = {
  readonly spec: EvaluatorSpec;
  /** Status of the agent's run when it ended, before the evaluation. */
  readonly status: TerminalStatus;
  /**
   * The runtime in which the agent ran. All of its processes have ended. Its files, and everything else in it, may be the agent's work.
   * Commands run as the user of the agent; `asRoot()` is for files that this user must not read or change.
   */
  readonly runtime: Runtime;
  /** A second, newly prepared runtime, to which the agent had no access; `null` to evaluate in the agent's runtime. */
  readonly freshRuntime: Runtime | null;
  /**
   * Stops the fresh runtime and starts another one in its place, for an evaluator that needs several. It is present only where `freshRuntime`
   * is not `null`. Rejects with `runtime_failed` or another error of the start, or with the reason of `signal`. Default: there is one fresh
   * runtime.
   */
  readonly renewFreshRuntime?: (signal: AbortSignal) => Promise<Runtime>;
  readonly session: EvaluatedSession;
  /** Scores and rewards of a floe agent's episode; `null` or absent for the other harnesses. */
  readonly episode?: EpisodeScores | null;
  /** The evaluations of the steps of the task, in their order; default: none, for a task without steps. */
  readonly steps?: readonly StepEvaluation[];
};

/** The result of an evaluator. */
export type Evaluation = {
  /** The reward of the session; `null` when it could not be computed, which is not the same as 0. */
  readonly reward: number | null;
  readonly details: Readonly<Record<string, unknown>>;
  /** Parts of the reward and other scores, by name; `null` for a score that could not be computed. Default: none. */
  readonly components?: Readonly<Record<string, number | null>>;
  /** Rewards of single traces, by trace id. Each replaces the share of `reward` that the builder's `credit` gives to the trace. */
  readonly traceRewards?: Readonly<Record<string, number>>;
  /** Rewards of single replies, by completion id, which a trace has in its metadata. */
  readonly stepRewards?: Readonly<Record<string, number>>;
};

/** Whether the evaluation of a session uses a fresh runtime. The task decides it, or else the default of the evaluator. */
export function usesFreshRuntime(spec: EvaluatorSpec, evaluator: Evaluator): boolean {
  return spec.refresh_runtime ?? evaluator.wantsFreshRuntime?.(spec.config) ?? evaluator.freshRuntimeByDefault;
}

/** A reward function, which scores the finished run of an agent. */
export interface Evaluator {
  readonly name: string;
  /**
   * Whether sessions are evaluated in a fresh runtime when the task does not set `refresh_runtime`. True for evaluators that run tests,
   * because the agent may have changed anything in its own runtime.
   */
  readonly freshRuntimeByDefault: boolean;
  /** Replaces {@link freshRuntimeByDefault} for an evaluator whose default depends on the config. `config` has passed {@link checkConfig}. */
  wantsFreshRuntime?(config: Readonly<Record<string, unknown>>): boolean;
  /**
   * Throws `schema_violation` for an invalid config. Called at submission, so that an invalid config is rejected before any work is done.
   * When `spec` is given, also checks that the config is consistent with the rest of the spec.
   */
  checkConfig(config: Readonly<Record<string, unknown>>, spec?: EvaluatorSpec): void;
  /**
   * Computes the reward of an attempt; called once for each attempt. Rejects with `schema_violation` for an invalid config, with
   * `evaluator_failed` when the reward cannot be computed, or with the reason of `signal`.
   */
  evaluate(context: EvaluationContext, signal: AbortSignal): Promise<Evaluation>;
}

/** Finds evaluators by their names. */
export type EvaluatorLookup = {
  /** Returns an evaluator by its name. Throws `unknown_evaluator` with a message that lists the names of all evaluators. */
  get(name: string): Evaluator;
  /**
   * Checks an evaluator's spec at submission, before any work is done. Throws `unknown_evaluator` for an unknown name, and
   * `schema_violation` for an invalid configuration.
   */
  check(spec: EvaluatorSpec): void;
};

/**
 * Returns the text of the agent's final answer: its `answer`, or its last message without thinking and tool calls. Empty when there is none.
 */
export function finalText({ messages, answer }: EvaluatedSession): string {
  if (answer !== undefined) return answer;
  const last = messages.at(-1);
  return last?.role === 'assistant' ? (last.content ?? '') : '';
}
