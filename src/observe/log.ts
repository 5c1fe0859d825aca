import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Names under which secrets are held anywhere in floe. */
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
/** Deeper than anything that is logged. */
const MAX_DEPTH = 4;

/**
 * Structured log lines on stderr, one per state change. Keys that could hold a secret are redacted by name; prompt text
 * is never logged. With `destination`, lines go there.
 */
export function createLogger(name: string, level: string, destination?: DestinationStream): Logger {
  return pino(
    {
      name,
      level,
      // pino's own redaction tries every path on every line, which costs several times as much as the line.
      formatters: { log: redacted },
      serializers: {
        // What a child logger adds to its lines goes through these alone; it adds no objects.
        ...Object.fromEntries([...SECRET_KEYS].map((key) => [key, () => CENSOR])),
        err: (error: Error) => redacted(pino.stdSerializers.err(error)),
      },
    },
    // Synchronous, so that the last lines before a crash are not lost.
    destination ?? pino.destination({ fd: 2, sync: true }),
  );
}

export const silentLogger: Logger = pino({ level: 'silent' });

/** The object itself where it holds no secret, else a copy without. */
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
  // An error is made readable by its serializer, and redacted there.
  if (depth === 0 || typeof value !== 'object' || value === null || value instanceof Error) return value;
  return redacted(value, depth);
}
