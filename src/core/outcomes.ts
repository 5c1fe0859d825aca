import type { Outcome, OutcomePolicy, TerminalStatus } from '../schema/index.ts';

type OutcomeRow = OutcomePolicy & {
  readonly status: TerminalStatus;
  /** The infrastructure's fault: a new attempt is worth trying, and the failure is never a reward of 0. */
  readonly retried: boolean;
  /** POSTRUN evaluates; otherwise the reward is null. */
  readonly evaluated: boolean;
};

/** The closed list of reasons why a session ended, each with its default policy. */
export const OUTCOMES: Readonly<Record<Outcome, OutcomeRow>> = {
  completed: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  truncated_context: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  truncated_turns: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  agent_timeout: { status: 'TIMEOUT', use: 'mask', in_baseline: true, retried: false, evaluated: true },
  agent_error: { status: 'ERROR', use: 'mask', in_baseline: true, retried: false, evaluated: true },
  env_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  verifier_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  engine_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: true, evaluated: false },
  infra_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: true, evaluated: false },
  cancelled: { status: 'CANCELLED', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  no_completions: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
};

export function policyOf(outcome: Outcome): OutcomePolicy {
  const { use, in_baseline } = OUTCOMES[outcome];
  return { use, in_baseline };
}
