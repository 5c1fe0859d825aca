import { asFloeError, type ErrorCode, type FloeError } from '../../core/errors.ts';
import { OUTCOMES } from '../../core/outcomes.ts';
import type { Outcome, SessionError } from '../../schema/index.ts';

/** Why an attempt did not complete. */
export type Failure = { readonly outcome: Outcome; readonly error: SessionError };

export type FailedStage = 'init' | 'agent' | 'build' | 'eval';

/** Outcome of error codes that mean the same in every stage. The outcome of other codes depends on the stage. */
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
  // A failed agent is judged by its exit and throws nothing, so an error here is floe's own failure to run it.
  agent: 'infra_error',
  build: 'infra_error',
  eval: 'verifier_error',
};

/** The failure that an error in a stage means. */
export function classify(thrown: unknown, stage: FailedStage): Failure {
  const error = asFloeError(thrown);
  return { outcome: outcomeOf(error, stage), error: sessionError(error, stage) };
}

function outcomeOf(error: FloeError, stage: FailedStage): Outcome {
  // A defect of floe is never the agent's fault.
  if (error.code === 'internal') return 'infra_error';
  if (error.code === 'deadline_exceeded') return stage === 'agent' ? 'agent_timeout' : BY_STAGE[stage];
  return BY_CODE[error.code] ?? BY_STAGE[stage];
}

/** The failure that the error of a model call means when it excuses the agent for giving up; `null` when it does not. */
export function excuseOf(error: FloeError | null): Failure | null {
  if (error === null) return null;
  const outcome = error.code === 'internal' ? 'infra_error' : BY_CODE[error.code];
  return outcome !== undefined && OUTCOMES[outcome].retried ? { outcome, error: sessionError(error, 'agent') } : null;
}

/** An error as a session's summary reports it; `stage` `null` when it has none. */
export function sessionError(error: FloeError, stage: string | null): SessionError {
  return { code: error.code, message: error.message, stage, details: { ...error.details } };
}

/** Error codes by which the server refuses a delivery itself. */
const DELIVERY_REFUSALS: readonly ErrorCode[] = ['stale_epoch', 'cancelled', 'schema_violation', 'body_too_large'];
/** Error codes that refuse a delivery only when the details name its session; otherwise they concern a route, node or process. */
const SESSION_REFUSALS: readonly ErrorCode[] = ['not_found', 'conflict'];

/**
 * Whether the server has refused a delivery for a reason that no retry changes. Every other error (a wrong token, a proxy in between, a
 * node id that was taken over) concerns the connection to the server, which an operator may repair.
 */
export function isFinalRefusal({ code, details }: FloeError): boolean {
  return (
    DELIVERY_REFUSALS.includes(code) || (SESSION_REFUSALS.includes(code) && typeof details.session_id === 'string')
  );
}
