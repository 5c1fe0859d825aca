import { asFloeError, type ErrorCode, type FloeError } from '@floe-rl/core';
import { OUTCOMES } from '@floe-rl/core/protocol';
import type { Outcome, SessionError } from '@floe-rl/core/schema';

/** Why an attempt failed: its outcome and the error that caused it. */
export type Failure = { readonly outcome: Outcome; readonly error: SessionError };

export type FailedStage = 'init' | 'agent' | 'build' | 'eval';

/** Outcomes of error codes that have the same meaning in every stage. For all other codes the stage determines the outcome. */
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
  plugin_failed: 'env_error',
  unknown_agent: 'env_error',
  unknown_tool: 'env_error',
  unknown_environment: 'env_error',
  engine_unavailable: 'engine_error',
  engine_error: 'engine_error',
};

const BY_STAGE: Record<FailedStage, Outcome> = {
  init: 'env_error',
  // A failure of the agent is detected by its exit code and throws no error. An error in this stage therefore means that floe failed to run
  // the agent.
  agent: 'infra_error',
  build: 'infra_error',
  eval: 'verifier_error',
};

/** Returns the failure of an attempt from the error that was thrown in the stage `stage`. */
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
 * Returns the failure to record for an agent whose run ended after a model call had failed with this error; `null` when the error does not
 * excuse the agent.
 */
export function excuseOf(error: FloeError | null): Failure | null {
  if (error === null) return null;
  const outcome = outcomeOfCall(error);
  return outcome !== undefined && OUTCOMES[outcome].retried ? { outcome, error: sessionError(error, 'agent') } : null;
}

function outcomeOfCall({ code, details }: FloeError): Outcome | undefined {
  if (code === 'internal') return 'infra_error';
  // Paused engines may reject new calls with an error code that otherwise means that the agent makes too many calls.
  return details.paused === true ? 'engine_error' : BY_CODE[code];
}

/**
 * Maximum number of characters of an error's message in a session's summary. The message can contain output of the agent, and the summary
 * is stored in a database row.
 */
const MAX_MESSAGE_CHARS = 4_000;

/** Converts an error to the form that the summary of a session contains. `stage` is `null` for an error outside a stage. */
export function sessionError(error: FloeError, stage: string | null): SessionError {
  return { code: error.code, message: error.message.slice(0, MAX_MESSAGE_CHARS), stage, details: { ...error.details } };
}

/** Error codes that always mean that the server has finally refused the delivered result. */
const DELIVERY_REFUSALS: readonly ErrorCode[] = ['stale_epoch', 'cancelled', 'schema_violation', 'body_too_large'];
/**
 * Error codes that mean a refusal of the delivered result only when the details of the error contain a session id. Otherwise these codes
 * concern a route, a node or a process.
 */
const SESSION_REFUSALS: readonly ErrorCode[] = ['not_found', 'conflict'];

/**
 * Whether the server has refused a delivered result for a reason that no retry can change. Every other error concerns the connection to the
 * server, and an operator may repair it. Examples are a wrong token, an HTTP proxy in between, and a node id that another process uses.
 */
export function isFinalRefusal({ code, details }: FloeError): boolean {
  return (
    DELIVERY_REFUSALS.includes(code) || (SESSION_REFUSALS.includes(code) && typeof details.session_id === 'string')
  );
}
