import type { Runtime } from '../runtimes/runtime.ts';
import type { EvaluatorSpec, TerminalStatus } from '../schema/index.ts';

export type EvaluationContext = {
  readonly spec: EvaluatorSpec;
  /** How the agent's run ended, before evaluation. */
  readonly status: TerminalStatus;
  /** The agent's runtime; all of its processes have ended. */
  readonly runtime: Runtime;
  /** A freshly prepared runtime when `spec.refresh_runtime` is set, else `null`. */
  readonly freshRuntime: Runtime | null;
};

/** `reward` is `null` when it could not be computed, which is not the same as 0. */
export type Evaluation = { readonly reward: number | null; readonly details: Record<string, unknown> };

/** A reward function. */
export interface Evaluator {
  readonly name: string;
  /**
   * Throws `schema_violation` for an invalid config. Called at submission, so that an invalid config is rejected before any work. When
   * `spec` is given, the config is also checked against the rest of it.
   */
  checkConfig(config: Readonly<Record<string, unknown>>, spec?: EvaluatorSpec): void;
  /**
   * Called once for each attempt. Rejects with `schema_violation` for an invalid config, with `evaluator_failed` when the reward cannot be
   * computed, or with the signal's reason.
   */
  evaluate(context: EvaluationContext, signal: AbortSignal): Promise<Evaluation>;
}
