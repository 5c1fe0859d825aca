import { asFloeError, type ErrorCode, type FloeError } from '../../core/errors.ts';
import { OUTCOMES } from '../../core/outcomes.ts';
import type { Outcome, SessionError } from '../../schema/index.ts';
import type { Failure } from './attempt.ts';

export type FailedStage = 'init' | 'agent' | 'build' | 'eval';

/** Errors whose outcome is the same wherever they arise; the rest depends on the stage. */
const BY_CODE: Partial<Record<ErrorCode, Outcome>> = {
  cancelled: 'cancelled',
  not_ready: 'infra_error',
  runtime_unavailable: 'infra_error',
  runtime_failed: 'infra_error',
  harness_missing: 'infra_error',
  store_unavailable: 'infra_error',
  setup_failed: 'infra_error',
  prepare_failed: 'env_error',
  workdir_missing: 'env_error',
  source_forbidden: 'env_error',
  schema_violation: 'env_error',
  unsupported: 'env_error',
  unknown_harness: 'env_error',
  unknown_builder: 'env_error',
  builder_failed: 'env_error',
  engine_unavailable: 'engine_error',
  engine_error: 'engine_error',
};

const BY_STAGE: Record<FailedStage, Outcome> = {
  init: 'env_error',
  // Judged by how it ended, an agent throws nothing: this is floe's own trouble in running it.
  agent: 'infra_error',
  build: 'infra_error',
  eval: 'verifier_error',
};

/** The outcome that an error in a stage stands for. */
export function classify(thrown: unknown, stage: FailedStage): Failure {
  const error = asFloeError(thrown);
  return { outcome: outcomeOf(error, stage), error: describe(error, stage) };
}

function outcomeOf(error: FloeError, stage: FailedStage): Outcome {
  // A defect of ours is never the agent's fault.
  if (error.code === 'internal') return 'infra_error';
  if (error.code === 'deadline_exceeded') return stage === 'agent' ? 'agent_timeout' : BY_STAGE[stage];
  return BY_CODE[error.code] ?? BY_STAGE[stage];
}

/** What a failed model call stands for when the agent cannot be blamed for giving up over it; null when it can. */
export function blameless(error: FloeError | null): Failure | null {
  if (error === null) return null;
  const outcome = error.code === 'internal' ? 'infra_error' : BY_CODE[error.code];
  return outcome !== undefined && OUTCOMES[outcome].retried ? { outcome, error: describe(error, 'agent') } : null;
}

export function describe(error: FloeError, stage: string | null): SessionError {
  return { code: error.code, message: error.message, stage, details: { ...error.details } };
}
