import { messageOf } from './thrown.ts';

/**
 * Every error code of floe: its HTTP status, whether repeating the same call can succeed, and its meaning. docs/errors.md is generated
 * from this table.
 */
export const ERROR_TABLE = {
  malformed_json: { status: 400, retryable: false, meaning: 'The body is not valid JSON, or is nested too deeply.' },
  bad_request: { status: 400, retryable: false, meaning: 'The request is not well-formed HTTP for this API.' },
  unauthorized: { status: 401, retryable: false, meaning: 'The control token or session key is missing or wrong.' },
  forbidden: { status: 403, retryable: false, meaning: 'The token is valid, but its role may not make this call.' },
  not_found: { status: 404, retryable: false, meaning: 'The route, task, session or node does not exist.' },
  method_not_allowed: { status: 405, retryable: false, meaning: 'The route exists, but not with this method.' },
  conflict: {
    status: 409,
    retryable: false,
    meaning: 'A different request has already used this id or idempotency key.',
  },
  stale_epoch: { status: 409, retryable: false, meaning: 'The lease was lost: a newer epoch owns the session.' },
  session_closed: { status: 410, retryable: false, meaning: 'The session key belongs to an attempt that has ended.' },
  body_too_large: {
    status: 413,
    retryable: false,
    meaning: 'The body exceeds the limit of this listener, or a filled template the limit of a task.',
  },
  schema_violation: {
    status: 422,
    retryable: false,
    meaning: 'A field is missing, unknown or of the wrong type; `details.issues` lists each path.',
  },
  unsupported: {
    status: 422,
    retryable: false,
    meaning: 'The request is well-formed, but floe does not support a part of it, which the message names.',
  },
  unknown_harness: { status: 422, retryable: false, meaning: 'There is no harness adapter of that name.' },
  unknown_builder: { status: 422, retryable: false, meaning: 'There is no builder of that name.' },
  unknown_evaluator: { status: 422, retryable: false, meaning: 'There is no evaluator of that name.' },
  unknown_agent: { status: 422, retryable: false, meaning: 'There is no floe agent of that name.' },
  unknown_tool: { status: 422, retryable: false, meaning: 'There is no tool or toolset of that name.' },
  unknown_environment: { status: 422, retryable: false, meaning: 'There is no environment of that name.' },
  upgrade_required: {
    status: 426,
    retryable: false,
    meaning: 'Only plain HTTP/1.1 is supported here; repeat the request without the upgrade.',
  },
  turn_limit: { status: 400, retryable: false, meaning: 'The session has used all model turns that its task allows.' },
  record_limit: {
    status: 400,
    retryable: false,
    meaning: "The session's recorded model calls have reached the size that its task allows.",
  },
  overloaded: { status: 429, retryable: true, meaning: 'A limit is reached; retry after the time in Retry-After.' },
  not_ready: { status: 503, retryable: true, meaning: 'The component is starting or shutting down.' },
  store_unavailable: {
    status: 503,
    retryable: true,
    meaning: 'The store cannot be written to; nothing was acknowledged.',
  },
  engine_unavailable: { status: 503, retryable: true, meaning: 'No registered engine is both healthy and free.' },
  engine_error: {
    status: 502,
    retryable: true,
    meaning: 'The engine failed, or returned a reply that cannot be trained on.',
  },
  engine_rejected: {
    status: 400,
    retryable: false,
    meaning: 'The engine rejected the request, for instance because the prompt is too long.',
  },
  runtime_unavailable: { status: 503, retryable: true, meaning: 'The sandbox runtime does not work on this host.' },
  runtime_failed: { status: 500, retryable: true, meaning: 'A sandbox could not be started, or it died.' },
  prepare_failed: { status: 500, retryable: false, meaning: 'A prepare action failed; `details` names it.' },
  workdir_missing: {
    status: 422,
    retryable: false,
    meaning: 'The working directory of a command does not exist in the sandbox.',
  },
  source_forbidden: { status: 403, retryable: false, meaning: "An upload source is outside the node's upload roots." },
  harness_missing: {
    status: 503,
    retryable: false,
    meaning: 'The harness is not installed; run `floe harness install`.',
  },
  harness_failed: { status: 500, retryable: false, meaning: 'The harness exited with an error.' },
  harness_silent: {
    status: 500,
    retryable: false,
    meaning:
      'The harness ended without sending a request to its proxy; `floe doctor --harness` tests it with one turn, and with `--custom-shell` a command of the shell harness.',
  },
  no_completions: { status: 500, retryable: false, meaning: 'The harness never received a reply from the model.' },
  evaluator_failed: { status: 500, retryable: false, meaning: 'The reward could not be computed.' },
  builder_failed: {
    status: 500,
    retryable: false,
    meaning: 'A custom builder failed, or returned an invalid result.',
  },
  plugin_failed: {
    status: 500,
    retryable: false,
    meaning: 'An agent, an environment or a tool failed because of a defect; the message names it.',
  },
  audit_failed: {
    status: 500,
    retryable: false,
    meaning: 'The audit of a trajectory failed: sampled tokens do not equal trained plus excluded tokens.',
  },
  corrupt_record: {
    status: 500,
    retryable: false,
    meaning: 'Stored data fails its checksum, or refers to data that does not exist.',
  },
  deadline_exceeded: { status: 504, retryable: true, meaning: 'A time budget was used up; `details` names it.' },
  cancelled: { status: 409, retryable: false, meaning: 'The task or session was cancelled.' },
  node_died: {
    status: 503,
    retryable: true,
    meaning: 'The gateway process that ran the attempt died; the completions that it had recorded are kept.',
  },
  peer_unreachable: { status: 503, retryable: true, meaning: 'Another part of floe could not be reached.' },
  setup_failed: {
    status: 500,
    retryable: false,
    meaning: 'The machine or the configuration lacks something that floe needs; the message says what to change.',
  },
  internal: { status: 500, retryable: true, meaning: 'A defect in floe; please report it with the log.' },
} as const satisfies Record<string, { status: number; retryable: boolean; meaning: string }>;

export type ErrorCode = keyof typeof ERROR_TABLE;

const BRAND = Symbol.for('floe.error');

type ErrorDetails = Readonly<Record<string, unknown>>;

/** The only error class that floe throws deliberately. `message` states what happened, to which object, and what to do next. */
export class FloeError extends Error {
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'FloeError';
    this.code = code;
    this.details = details;
    Object.defineProperty(this, BRAND, { value: true });
  }

  get status(): number {
    return ERROR_TABLE[this.code].status;
  }

  get retryable(): boolean {
    return ERROR_TABLE[this.code].retryable;
  }

  /** Whether a value is a FloeError. Unlike `instanceof`, this also recognizes errors of another copy of the package. */
  static is(value: unknown): value is FloeError {
    return typeof value === 'object' && value !== null && BRAND in value;
  }
}

/** Converts a thrown value to a FloeError. A value that is not one becomes the cause of a new error with the code `fallback`. */
export function asFloeError(thrown: unknown, fallback: ErrorCode = 'internal'): FloeError {
  if (FloeError.is(thrown)) return thrown;
  return new FloeError(fallback, messageOf(thrown), {}, thrown);
}
