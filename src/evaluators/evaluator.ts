import type { Runtime } from '../runtimes/runtime.ts';
import type { EvaluatorSpec, TerminalStatus } from '../schema/index.ts';

export type EvaluationContext = {
  readonly spec: EvaluatorSpec;
  /** How the agent's run ended, before evaluation. */
  readonly status: TerminalStatus;
  /** The agent's runtime; no process of the agent runs in it any more. */
  readonly runtime: Runtime;
  /** A fresh prepared runtime, when `spec.refresh_runtime`. */
  readonly freshRuntime: Runtime | null;
};

/** `reward` null: it could not be computed, which is not 0. */
export type Evaluation = { readonly reward: number | null; readonly details: Record<string, unknown> };

/**
 * A reward function. Rejects with `schema_violation` for a config that it does not know, `evaluator_failed` when the
 * reward cannot be computed, or the signal's reason. Called once per attempt.
 */
export interface Evaluator {
  readonly name: string;
  /**
   * Throws `schema_violation`; called at submission, so that a bad config is refused before any work. With `spec`, what
   * the config needs of the rest of the spec is checked, too.
   */
  checkConfig(config: Readonly<Record<string, unknown>>, spec?: EvaluatorSpec): void;
  evaluate(context: EvaluationContext, signal: AbortSignal): Promise<Evaluation>;
}
