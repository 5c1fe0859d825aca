/**
 * Every error that floe raises on purpose has one row here: its HTTP status, and whether repeating the same call can help.
 * docs/errors.md is generated from this table.
 */
export const ERROR_TABLE = {
  malformed_json: { status: 400, retryable: false, meaning: 'The body is not valid JSON, or is nested too deeply.' },
  bad_request: { status: 400, retryable: false, meaning: 'The request is not well-formed HTTP for this API.' },
  unauthorized: { status: 401, retryable: false, meaning: 'The control token or session key is missing or wrong.' },
  forbidden: { status: 403, retryable: false, meaning: 'The token is valid, but its role may not make this call.' },
  not_found: { status: 404, retryable: false, meaning: 'The route, task, session or node named is not known.' },
  method_not_allowed: { status: 405, retryable: false, meaning: 'The route exists, but not with this method.' },
  conflict: { status: 409, retryable: false, meaning: 'The id or idempotency key is taken by a different request.' },
  stale_epoch: { status: 409, retryable: false, meaning: 'The lease was lost; a newer epoch owns the session.' },
  session_closed: { status: 410, retryable: false, meaning: 'The session key belonged to an attempt that has ended.' },
  body_too_large: { status: 413, retryable: false, meaning: 'The body exceeds the limit of this listener.' },
  schema_violation: {
    status: 422,
    retryable: false,
    meaning: 'A field is missing, unknown or of the wrong type; details lists each path.',
  },
  unsupported: {
    status: 422,
    retryable: false,
    meaning: 'Well-formed, but floe cannot do it; the message names the part.',
  },
  unknown_harness: { status: 422, retryable: false, meaning: 'No adapter of that name.' },
  unknown_builder: { status: 422, retryable: false, meaning: 'No builder of that name.' },
  unknown_evaluator: { status: 422, retryable: false, meaning: 'No evaluator of that name.' },
  upgrade_required: {
    status: 426,
    retryable: false,
    meaning: 'Only plain HTTP/1.1 is spoken here; repeat the request without the upgrade.',
  },
  turn_limit: { status: 400, retryable: false, meaning: 'The session has had all the model turns of its task.' },
  overloaded: { status: 429, retryable: true, meaning: 'A limit is reached; try again after Retry-After.' },
  not_ready: { status: 503, retryable: true, meaning: 'The component is starting or shutting down.' },
  store_unavailable: { status: 503, retryable: true, meaning: 'The store cannot write; nothing was acknowledged.' },
  engine_unavailable: { status: 503, retryable: true, meaning: 'No engine is registered, healthy and free.' },
  engine_error: {
    status: 502,
    retryable: true,
    meaning: 'The engine failed, or answered something that cannot be trained on.',
  },
  engine_rejected: {
    status: 400,
    retryable: false,
    meaning: 'The engine refused the request, an overlong prompt for instance.',
  },
  runtime_unavailable: { status: 503, retryable: true, meaning: 'The sandbox back end does not work on this host.' },
  runtime_failed: { status: 500, retryable: true, meaning: 'A sandbox could not be started, or died.' },
  prepare_failed: { status: 500, retryable: false, meaning: 'A prepare action failed; details name it.' },
  workdir_missing: { status: 422, retryable: false, meaning: 'The directory to run in does not exist in the sandbox.' },
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
    meaning: 'The harness ended without one request to its proxy; `floe doctor --harness` tries it with one turn.',
  },
  no_completions: { status: 500, retryable: false, meaning: 'The harness never got a reply from the model.' },
  evaluator_failed: { status: 500, retryable: false, meaning: 'The reward could not be computed.' },
  builder_failed: {
    status: 500,
    retryable: false,
    meaning: 'A custom builder failed, or returned something that is no build result.',
  },
  audit_failed: { status: 500, retryable: false, meaning: 'The token sums of a trajectory do not hold.' },
  corrupt_record: {
    status: 500,
    retryable: false,
    meaning: 'Stored data fails its checksum, or refers to something that is not there.',
  },
  deadline_exceeded: { status: 504, retryable: true, meaning: 'A time budget ran out; details name it.' },
  cancelled: { status: 409, retryable: false, meaning: 'The task or session was cancelled.' },
  node_died: {
    status: 503,
    retryable: true,
    meaning: 'The gateway process that ran the attempt is gone; what it had recorded is kept.',
  },
  peer_unreachable: { status: 503, retryable: true, meaning: 'Another part of floe could not be reached.' },
  setup_failed: {
    status: 500,
    retryable: false,
    meaning: 'Something that this machine needs is missing; the message tells what to run.',
  },
  internal: { status: 500, retryable: true, meaning: 'A defect in floe. Please report it with the log.' },
} as const satisfies Record<string, { status: number; retryable: boolean; meaning: string }>;

export type ErrorCode = keyof typeof ERROR_TABLE;

const BRAND = Symbol.for('floe.error');

export type ErrorDetails = Readonly<Record<string, unknown>>;

/** The one error class. `message` says what happened, to which id, and what to do about it. */
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

  /** Works across two copies of the package, where `instanceof` does not. */
  static is(value: unknown): value is FloeError {
    return typeof value === 'object' && value !== null && BRAND in value;
  }
}

/** Any thrown value as a FloeError; what was not raised on purpose becomes `fallback`, with the original as cause. */
export function asFloeError(thrown: unknown, fallback: ErrorCode = 'internal'): FloeError {
  if (FloeError.is(thrown)) return thrown;
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return new FloeError(fallback, message, {}, thrown);
}
