import { asFloeError, type ErrorCode, type FloeError } from '../../core/errors.ts';
import { OUTCOMES } from '../../core/outcomes.ts';
import type { Outcome, SessionError } from '../../schema/index.ts';

/** Why an attempt failed: its outcome and the error that caused it. */
export type Failure = { readonly outcome: Outcome; readonly error: SessionError };

export type FailedStage = 'init' | 'agent' | 'build' | 'eval';

/** Outcome for error codes that have the same meaning in every stage. For all other codes, the stage decides. */
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
  // An agent that fails is judged by its exit code and throws nothing, so an error in this stage is floe's failure to run the agent.
  agent: 'infra_error',
  build: 'infra_error',
  eval: 'verifier_error',
};

/** Returns the failure of an attempt in whose stage `stage` this error was thrown. */
export function classify(thrown: unknown, stage: FailedStage): Failure {
  const error = asFloeError(thrown);
  return { outcome: outcomeOf(error, stage), error: sessionError(error, stage) };
}

function outcomeOf(error: FloeError, stage: FailedStage): Outcome {
  // An `internal` error is a defect of floe, so the agent is not blamed for it.
  if (error.code === 'internal') return 'infra_error';
  if (error.code === 'deadline_exceeded') return stage === 'agent' ? 'agent_timeout' : BY_STAGE[stage];
  return BY_CODE[error.code] ?? BY_STAGE[stage];
}

/**
 * Returns the failure to record when a model call failed with this error, for an agent that gave up because of it; `null` when the error
 * does not excuse the agent.
 */
export function excuseOf(error: FloeError | null): Failure | null {
  if (error === null) return null;
  const outcome = error.code === 'internal' ? 'infra_error' : BY_CODE[error.code];
  return outcome !== undefined && OUTCOMES[outcome].retried ? { outcome, error: sessionError(error, 'agent') } : null;
}

/** Converts an error to the form in a session's summary. `stage` is `null` for an error outside a stage. */
export function sessionError(error: FloeError, stage: string | null): SessionError {
  return { code: error.code, message: error.message, stage, details: { ...error.details } };
}

/** Error codes with which the server always refuses the delivery itself. */
const DELIVERY_REFUSALS: readonly ErrorCode[] = ['stale_epoch', 'cancelled', 'schema_violation', 'body_too_large'];
/**
 * Error codes that refuse a delivery only when the error's details contain a session id. Otherwise these codes concern a route, a node or
 * a process.
 */
const SESSION_REFUSALS: readonly ErrorCode[] = ['not_found', 'conflict'];

/**
 * Whether the server has refused a delivery for a reason that no retry changes. Every other error (a wrong token, an HTTP proxy on the
 * way, a node id that another process uses) concerns the connection to the server, which an operator may repair.
 */
export function isFinalRefusal({ code, details }: FloeError): boolean {
  return (
    DELIVERY_REFUSALS.includes(code) || (SESSION_REFUSALS.includes(code) && typeof details.session_id === 'string')
  );
}
