import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Names under which secrets are held anywhere in floe. */
const SECRET_KEYS = ['token', 'tokens', 'key', 'api_key', 'authorization', 'password', 'secret', 'callback_secrets'];
/** Deeper than anything that is logged. */
const MAX_DEPTH = 4;

const SECRET_PATHS = Array.from({ length: MAX_DEPTH }, (_, depth) => '*.'.repeat(depth)).flatMap((above) =>
  SECRET_KEYS.map((key) => above + key),
);

/**
 * Structured log lines on stderr, one per state change. Keys that could hold a secret are redacted by name; prompt text
 * is never logged. With `destination`, lines go there.
 */
export function createLogger(name: string, level: string, destination?: DestinationStream): Logger {
  return pino(
    { name, level, redact: { paths: SECRET_PATHS, censor: '[redacted]' } },
    // Synchronous, so that the last lines before a crash are not lost.
    destination ?? pino.destination({ fd: 2, sync: true }),
  );
}

export const silentLogger: Logger = pino({ level: 'silent' });
