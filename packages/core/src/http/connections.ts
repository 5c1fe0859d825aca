import type { LookupFunction } from 'node:net';
import { Agent, type buildConnector, Pool } from 'undici';

/** Connections to any number of servers. Its method `destroy` closes them. */
export type HttpAgent = Agent;
/** Connections to one server. Its method `destroy` closes them. */
export type HttpPool = Pool;

/** undici's own time limits are off, because they run on the system clock; each call has a deadline on a Clock. */
export const NO_TIME_LIMITS = { headersTimeout: 0, bodyTimeout: 0 };

type AgentOptions = {
  /** Resolves host names in place of Node.js, for example only to allowed addresses. */
  readonly lookup?: LookupFunction;
  /** Certificate authorities in PEM format. They replace the authorities that Node.js trusts. */
  readonly ca?: string;
};

type PoolOptions = {
  /** Path of the Unix socket of the server. */
  readonly socketPath?: string;
  /** Maximum number of connections; default: no limit. */
  readonly connections?: number;
  readonly connect?: buildConnector.connector;
};

/** Returns connections that calls open as they need them, to any server. */
export function httpAgent(options: AgentOptions = {}): HttpAgent {
  return new Agent({ ...NO_TIME_LIMITS, connect: options });
}

/** Returns connections to the server at `origin`. */
export function httpPool(origin: string, options: PoolOptions): HttpPool {
  return new Pool(origin, { ...NO_TIME_LIMITS, ...options });
}
