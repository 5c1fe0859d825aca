import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Names of the log fields that may contain a secret anywhere in floe. */
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
/** Deepest nesting of objects in which secrets are searched. floe logs no deeper object. */
const MAX_DEPTH = 4;

/**
 * Creates a logger that writes JSON lines to `destination`, by default to stderr. Fields that could contain a secret are redacted,
 * according to their name; prompt text is never logged.
 */
export function createLogger(name: string, level: string, destination?: DestinationStream): Logger {
  return pino(
    {
      name,
      level,
      // Used instead of pino's own redaction, which tries every path on every line and so costs several times as much as writing the line.
      formatters: { log: redacted },
      serializers: {
        // Fields of child loggers pass only through these serializers, one for each secret name. None of these fields is an object.
        ...Object.fromEntries([...SECRET_KEYS].map((key) => [key, () => CENSOR])),
        err: (error: Error) => redacted(pino.stdSerializers.err(error)),
      },
    },
    // Writes synchronously, so that the last lines before a crash are not lost.
    destination ?? pino.destination({ fd: 2, sync: true }),
  );
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
