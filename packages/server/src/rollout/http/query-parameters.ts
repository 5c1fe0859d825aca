import { z } from 'zod';

/**
 * Longest time in seconds for which a client may ask the server to hold its request. A longer time has no advantage, and proxies between
 * client and server may time the request out.
 */
const MAX_WAIT_SECONDS = 60;

export const digits = (min: number, max: number) =>
  z
    .string()
    .regex(/^[0-9]{1,15}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().min(min).max(max));

export const count = (min: number, max: number, fallback: number) => digits(min, max).default(fallback);

/**
 * Default time in seconds for which the server waits until every node has applied a change of the engines. Nodes receive a change
 * immediately, and this time suffices to probe an engine that responds.
 */
export const ENGINE_WAIT_SECONDS = 15;

export const seconds = z
  .string()
  .regex(/^[0-9]{1,3}(\.[0-9]{1,6})?$/, 'must be a number of seconds')
  .transform(Number)
  .pipe(z.number().max(MAX_WAIT_SECONDS));

export const waitSeconds = seconds.default(0);

export const flag = z
  .enum(['true', 'false', '1', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');
