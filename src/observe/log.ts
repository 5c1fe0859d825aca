import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Names of fields that may hold a secret anywhere in floe. */
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
/** Deeper than any object that floe logs. */
const MAX_DEPTH = 4;

/**
 * Creates a logger that writes JSON lines to `destination`, by default stderr. Fields that could hold a secret are redacted by name;
 * prompt text is never logged.
 */
export function createLogger(name: string, level: string, destination?: DestinationStream): Logger {
  return pino(
    {
      name,
      level,
      // pino's own redaction tries every path on every line, which costs several times as much as writing the line.
      formatters: { log: redacted },
      serializers: {
        // Fields of child loggers pass only through these serializers; none of them is an object.
        ...Object.fromEntries([...SECRET_KEYS].map((key) => [key, () => CENSOR])),
        err: (error: Error) => redacted(pino.stdSerializers.err(error)),
      },
    },
    // Synchronous, so that the last lines before a crash are not lost.
    destination ?? pino.destination({ fd: 2, sync: true }),
  );
}

export const silentLogger: Logger = pino({ level: 'silent' });

/** Returns `fields` itself when it holds no secret, and otherwise a copy with secrets replaced. */
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
  // Errors are serialized and redacted by their own serializer.
  if (depth === 0 || typeof value !== 'object' || value === null || value instanceof Error) return value;
  return redacted(value, depth);
}
