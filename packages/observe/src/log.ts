import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Names of log fields whose value may be a secret. */
const SECRET_KEYS: ReadonlySet<string> = new Set([
  'token',
  'tokens',
  'key',
  'api_key',
  'authorization',
  'password',
  'secret',
  'callback_secrets',
]);
const CENSOR = '[redacted]';
/** Number of levels of nested objects in a log line that are searched for secrets. floe logs no object that is nested deeper. */
const MAX_DEPTH = 4;

/**
 * Creates a logger that writes JSON lines to `destination`, by default to stderr. Fields whose name indicates a secret are redacted. Prompt
 * text is never logged.
 */
export function createLogger(name: string, level: string, destination?: DestinationStream): Logger {
  return pino(
    {
      name,
      level,
      // `redacted` replaces pino's own redaction, which tries every path on every line and takes several times as long as writing the line.
      formatters: { log: redacted },
      serializers: {
        // pino passes the fields of a child logger only through serializers, so there is one for each secret name. Child loggers get no
        // nested objects.
        ...Object.fromEntries([...SECRET_KEYS].map((key) => [key, () => CENSOR])),
        err: (error: Error) => redacted(pino.stdSerializers.err(error)),
      },
    },
    destination ?? standardError(),
  );
}

/**
 * Opens standard error for log lines. They are written synchronously, so that the last lines before a crash are not lost. Lines that cannot
 * be written are dropped: a full disk that stores the log must not end the service.
 */
function standardError(): DestinationStream {
  const stream = pino.destination({ fd: 2, sync: true });
  stream.on('error', () => {});
  return stream;
}

export const silentLogger: Logger = pino({ level: 'silent' });

/** Returns `fields` itself when it contains no secret; otherwise a copy in which the secrets are replaced. */
function redacted<T extends object>(fields: T, depth = MAX_DEPTH): T {
  let copy: Record<string, unknown> | null = null;
  for (const [key, value] of Object.entries(fields)) {
    const shown = SECRET_KEYS.has(key) ? CENSOR : redactedValue(value, depth - 1);
    if (shown === value) continue;
    copy ??= (Array.isArray(fields) ? [...fields] : { ...fields }) as Record<string, unknown>;
    copy[key] = shown;
  }
  return (copy ?? fields) as T;
}

function redactedValue(value: unknown, depth: number): unknown {
  // An error is left as it is, because the serializer `err` redacts it.
  if (depth === 0 || typeof value !== 'object' || value === null || value instanceof Error) return value;
  return redacted(value, depth);
}
