import { type Logger, pino } from 'pino';

export type { Logger };

/**
 * Structured log lines on stderr, one per state change. Keys that could hold a secret are redacted by name; prompt text
 * is never logged.
 */
export function createLogger(name: string, level: string): Logger {
  return pino(
    {
      name,
      level,
      redact: { paths: ['token', 'key', '*.token', '*.key', 'authorization', '*.authorization'], censor: '[redacted]' },
    },
    // Synchronous, so that the last lines before a crash are not lost.
    pino.destination({ fd: 2, sync: true }),
  );
}

export const silentLogger: Logger = pino({ level: 'silent' });
