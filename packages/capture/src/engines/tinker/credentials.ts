import { type Clock, FloeError } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import { parseWith } from '../chat/reply-tokens.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';

/** Header with the API key or with the token that the server has issued for it. */
const KEY_HEADER = 'x-api-key';

const tokenSchema = z.looseObject({ jwt: z.string().min(1) });
const claimsSchema = z.looseObject({ iat: z.number(), exp: z.number() });

/** Lifetime in milliseconds that is assumed for a token that does not state it. */
const ASSUMED_LIFETIME_MS = 60_000;

/** The headers that authenticate requests. They contain the API key, or a short-lived token that the key was exchanged for. */
export class Credentials {
  private readonly key: string | null;
  private readonly clock: Clock;
  /** Sends the API key and never a token, because only the key can be exchanged. */
  private readonly exchangeServer: EngineServer;
  private exchanges = false;
  private token: { readonly text: string; readonly renewAtMs: number } | null = null;
  private pending: Promise<void> | null = null;

  constructor(spec: EngineSpec, clock: Clock) {
    this.key = spec.api_key;
    this.clock = clock;
    this.exchangeServer = new EngineServer(spec, {
      clock,
      isOverflow: () => false,
      authHeaders: () => keyHeader(this.key),
    });
  }

  /** Returns the headers for the next request. */
  headers(): Readonly<Record<string, string>> {
    return keyHeader(this.token?.text ?? this.key);
  }

  /** Exchanges the API key for tokens from now on, because the server requires it. Rejects as {@link refresh} does. */
  async startExchanging(): Promise<void> {
    if (this.key === null) throw new FloeError('engine_error', 'the server requires an API key');
    this.exchanges = true;
    await this.refresh();
  }

  /** Renews the token when half of its lifetime has passed. Rejects with `engine_error` or `engine_unavailable` when that fails. */
  async refresh(): Promise<void> {
    if (!this.exchanges) return;
    if (this.token !== null && this.clock.monotonicMs() < this.token.renewAtMs) return;
    this.pending ??= this.exchange().finally(() => {
      this.pending = null;
    });
    await this.pending;
  }

  /** Discards the token, which the server has refused. Returns whether the API key can be exchanged for another token. */
  discard(): boolean {
    this.token = null;
    return this.exchanges;
  }

  close(): Promise<void> {
    return this.exchangeServer.close();
  }

  private async exchange(): Promise<void> {
    const reply = await this.exchangeServer.controlPost('/api/v1/auth/token', '{}');
    if (reply.status !== 200) throw this.exchangeServer.statusError(reply);
    const { jwt } = parseWith(tokenSchema, jsonOf(reply.body));
    this.token = { text: jwt, renewAtMs: this.clock.monotonicMs() + lifetimeMs(jwt) / 2 };
  }
}

function keyHeader(secret: string | null): Record<string, string> {
  return secret === null ? {} : { [KEY_HEADER]: secret };
}

/**
 * Returns the lifetime of a JSON Web Token from its issue to its expiry. Both times are the server's, so that a difference between its clock
 * and the local clock does no harm.
 */
function lifetimeMs(jwt: string): number {
  const [, payload = ''] = jwt.split('.');
  const claims = claimsSchema.safeParse(jsonOf(Buffer.from(payload, 'base64url')));
  return claims.success ? Math.max(0, claims.data.exp - claims.data.iat) * 1000 : ASSUMED_LIFETIME_MS;
}
