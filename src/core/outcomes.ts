import type {
  Outcome,
  OutcomePolicy,
  SessionSummary,
  TaskRequest,
  TerminalStatus,
  UnusableReason,
} from '../schema/index.ts';

type OutcomeRow = OutcomePolicy & {
  readonly status: TerminalStatus;
  /** The infrastructure's fault: a new attempt is worth trying, and the failure is never a reward of 0. */
  readonly retried: boolean;
  /** POSTRUN evaluates; otherwise the reward is null. */
  readonly evaluated: boolean;
};

/** What a task changes of the policies. */
export type OutcomeOverrides = TaskRequest['outcome_policy'];

type JudgedFields = Pick<SessionSummary, 'outcome' | 'policy' | 'trainable_tokens' | 'reward'>;

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

/** What an outcome means for training, with what a task changes of it. */
export function policyOf(outcome: Outcome, overrides: OutcomeOverrides = {}): OutcomePolicy {
  const own = OUTCOMES[outcome];
  const changed = overrides[outcome];
  return { use: changed?.use ?? own.use, in_baseline: changed?.in_baseline ?? own.in_baseline };
}

/** How many new attempts an outcome is worth; the task's `max_attempts` bounds all together, and infinity leaves it to that. */
export function retriesAfter(outcome: Outcome, overrides: OutcomeOverrides): number {
  return overrides[outcome]?.retries ?? (OUTCOMES[outcome].retried ? Number.POSITIVE_INFINITY : 0);
}

/** Why a finished sample is of no use to a trainer; null: it is usable. */
export function unusableReason(
  { outcome, policy, trainable_tokens: tokens, reward }: JudgedFields,
  hasEvaluator: boolean,
): UnusableReason | null {
  if (policy.use !== 'train') return outcome;
  if (tokens === 0) return 'no_tokens';
  return hasEvaluator && reward === null ? 'no_reward' : null;
}
