import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { MAX_STEPS } from '../game.ts';

/** The systems whose worlds floe can act in, as they are named in tasks. */
export type RemoteKind = 'openenv' | 'nemo_gym' | 'ors';

/** A server of worlds that the operator of the node has named. */
export type RemoteService = {
  readonly url: string;
  /** Sent as a bearer token; `null` for none. */
  readonly key: string | null;
  /** What it is, for messages. */
  readonly label: string;
};

/** Fields of the configuration of every remote environment. */
export const remoteFields = {
  service: z
    .string()
    .regex(/^[a-z0-9][a-z0-9_-]{0,63}$/)
    .describe('name of the server, as in plugins.services of the node'),
  max_steps: z.int().min(1).max(MAX_STEPS).default(100),
  connect_seconds: z.number().min(0).max(3600).default(30).describe('time in which an episode must have started'),
  step_seconds: z.number().gt(0).max(3600).default(60).describe('time limit of one request to the server'),
  max_chars: z.int().min(100).max(1_000_000).default(32_768).describe('maximum length of a text of an observation'),
};
export type RemoteFields = z.output<z.ZodObject<typeof remoteFields>>;

/** What becomes of an error in the code of a world: it ends the episode, or the agent reads it. */
export const errorsSchema = z.enum(['end', 'observe']);

const urlSchema = z.url({ protocol: /^https?$/ });

/**
 * Returns the server that the operator has configured as `KIND.NAME` in `plugins.services`, with its token `KIND.NAME.key`. A task only names
 * it. Throws `setup_failed` when there is none, or its URL is wrong.
 */
export function remoteService(
  kind: RemoteKind,
  name: string,
  services: Readonly<Record<string, string>> = {},
): RemoteService {
  const path = `plugins.services.${kind}.${name}`;
  const url = services[`${kind}.${name}`];
  if (url === undefined) {
    throw new FloeError('setup_failed', `environment.config.service: the node has no ${path}`, { path });
  }
  if (!urlSchema.safeParse(url).success) throw new FloeError('setup_failed', `${path} is no http URL`, { path });
  const key = services[`${kind}.${name}.key`] ?? null;
  return { url: url.replace(/\/+$/, ''), key, label: `the ${kind} server ${name}` };
}

/** Returns the headers that identify the node to a server. */
export function authorization({ key }: RemoteService): Record<string, string> {
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

/** The server did not answer as it must. Nothing that the agent did causes this, so the session is retried. */
export function serverFailed({ label, url }: RemoteService, problem: string, cause?: unknown): FloeError {
  return new FloeError('peer_unreachable', `${label} ${problem}`, { url }, cause);
}

/** The code of the world failed, which a retry would repeat. */
export function worldFailed({ label }: RemoteService, problem: string): FloeError {
  return new FloeError('plugin_failed', `${label}: ${problem}`, { plugin: label });
}
