import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { TLSSocket } from 'node:tls';
import { type Clock, FloeError } from '@floe-rl/core';
import type { Role } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { RolloutConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import { API, type RouteSpec } from './api.ts';
import { refuseAmbiguous, refuseForeignPages, refuseWebPages } from './guard.ts';

/**
 * Maximum number of callers that have a token bucket for their request rate. When there are more, the least recently seen caller is
 * forgotten, and later starts with a full bucket.
 */
const MAX_CALLERS = 10_000;

/** Header in which Polar's clients send the token of the control plane (`src/polar/rollout/server.py` at 01bc72d). */
const POLAR_TOKEN_HEADER = 'x-polar-control-token';

/** The caller of a request. `key` distinguishes callers for the rate limits, and contains no part of a token. */
export type Caller = { readonly role: Role; readonly key: string };

/**
 * Returns a function that decides from the head of a request whether the request is served. That function returns the caller, or `null` for
 * a route that needs no token. It throws `bad_request`, `unauthorized`, `forbidden` or `overloaded`. Its argument `route` is `undefined`
 * when no route matches the request. Such a request also needs a token, so that clients without a token cannot find out which routes exist.
 */
export function admission(
  context: RolloutContext,
): (request: IncomingMessage, route: RouteSpec | undefined) => Caller | null {
  const { config, counters, clock } = context;
  const identify = tokenCheck(config);
  const submits = new RateLimit(
    clock,
    config.submits_per_second,
    config.submits_per_second * config.rate_burst_seconds,
  );
  const others = new RateLimit(clock, config.reads_per_second, config.reads_per_second * config.rate_burst_seconds);
  const hasNoTokens = config.token === null && config.tokens.length === 0;

  const authenticate = (request: IncomingMessage, route: RouteSpec | undefined): Caller => {
    const address = request.socket.remoteAddress ?? '';
    const token = route?.compatible === undefined ? bearerToken(request) : compatibleToken(request);
    try {
      if (token === null && route?.compatible?.anonymous === true && !hasNoTokens) {
        refuseWebPages(request);
        return { role: 'viewer', key: `address ${address}` };
      }
      return identify(token, address);
    } catch (thrown) {
      counters.add('unauthorized');
      throw thrown;
    }
  };
  const authorize = (request: IncomingMessage, caller: Caller, route: RouteSpec): void => {
    try {
      if (hasNoTokens) refuseForeignPages(request);
      checkRole(caller, route);
      if (config.tls?.client_ca != null && isForNodes(route)) refuseUncertified(request);
    } catch (thrown) {
      counters.add('forbidden');
      throw thrown;
    }
  };
  return (request, route) => {
    refuseAmbiguous(request);
    if (route?.open === true) return null;
    const caller = authenticate(request, route);
    if (route === undefined) return caller;
    authorize(request, caller, route);
    if (isForNodes(route)) return caller;
    const submitsTask = route.path === API.submitTask.path || route.path === API.repeatTask.path;
    const limit = submitsTask ? submits : others;
    const waitSeconds = limit.take(caller.key);
    if (waitSeconds === 0) return caller;
    counters.add('rate_limited');
    throw new FloeError('overloaded', 'this caller exceeds its request rate; wait and retry', {
      retry_after_seconds: Math.ceil(waitSeconds),
    });
  };
}

/** Whether only nodes make this call. Such a call has no rate limit, because a refused heartbeat could cost a node its leases. */
function isForNodes(route: RouteSpec): boolean {
  return route.faces?.every((face) => face === 'node') === true;
}

function refuseUncertified(request: IncomingMessage): void {
  if ((request.socket as TLSSocket).authorized === true) return;
  throw new FloeError(
    'forbidden',
    'a node must present a certificate signed by one of the client authorities of this server',
  );
}

/** Returns the token in the header `Authorization: Bearer`; `null` when there is none. */
function bearerToken({ headers }: IncomingMessage): string | null {
  return /^bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1] ?? null;
}

/**
 * Returns the token of a client that was written for another system; `null` when the request has none. The client may send its token in the
 * header of Polar's control token. It may also send it as the password of Basic authentication, which HTTP libraries take from the user part
 * of a URL.
 */
function compatibleToken(request: IncomingMessage): string | null {
  const { authorization = '', [POLAR_TOKEN_HEADER]: header } = request.headers;
  const basic = /^basic +(\S+) *$/i.exec(authorization)?.[1];
  if (basic !== undefined) {
    const [, ...password] = Buffer.from(basic, 'base64').toString('utf8').split(':');
    return password.join(':') || null;
  }
  return bearerToken(request) ?? (typeof header === 'string' && header !== '' ? header : null);
}

/**
 * Identifies the caller by its token, or by its address when no tokens are configured. Throws `unauthorized` for a missing or unknown
 * token.
 */
type TokenCheck = (token: string | null, address: string) => Caller;

/**
 * Returns a function that identifies callers by their token. It compares digests of equal length, so that the time taken reveals nothing
 * about a token. Without any configured token every caller is an admin.
 */
function tokenCheck(config: Pick<RolloutConfig, 'token' | 'tokens'>): TokenCheck {
  const admin = config.token === null ? [] : [{ token: config.token, role: 'admin' as const }];
  const known = [...admin, ...config.tokens].map(({ token, role }, index) => ({
    digest: sha256(token),
    caller: { role, key: `token ${index}` },
  }));
  if (known.length === 0) return (_, address) => ({ role: 'admin', key: `address ${address}` });
  return (token) => {
    const digest = sha256(token ?? '');
    // The token is compared with every configured one even after a match, so that the duration of the check does not reveal which one
    // matches.
    const [match] = known.filter((one) => timingSafeEqual(one.digest, digest));
    if (token === null || match === undefined) {
      throw new FloeError('unauthorized', 'send the control token as `Authorization: Bearer <token>`');
    }
    return match.caller;
  };
}

/** Throws `forbidden` unless the caller's role may make the call. */
function checkRole(caller: Caller, route: Pick<RouteSpec, 'method' | 'path' | 'roles'>): void {
  if (caller.role === 'admin' || route.roles.includes(caller.role)) return;
  const roles = [...route.roles, 'admin'].join(' or ');
  throw new FloeError(
    'forbidden',
    `${route.method} ${route.path} requires a token of ${roles}, not of ${caller.role}`,
    {
      role: caller.role,
    },
  );
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

type Bucket = { readonly tokens: number; readonly atMs: number };

/**
 * Limits the rate of requests with a token bucket for each caller: `perSecond` requests on average, and up to `burst` of them together.
 */
export class RateLimit {
  private readonly clock: Clock;
  private readonly perSecond: number;
  private readonly burst: number;
  private readonly buckets = new LRUCache<string, Bucket>({ max: MAX_CALLERS });

  constructor(clock: Clock, perSecond: number, burst: number) {
    this.clock = clock;
    this.perSecond = perSecond;
    this.burst = Math.max(1, burst);
  }

  /**
   * Takes one request from the caller's bucket and returns 0. When the bucket is empty, returns the seconds until the caller may retry.
   */
  take(caller: string): number {
    const nowMs = this.clock.monotonicMs();
    const bucket = this.buckets.get(caller) ?? { tokens: this.burst, atMs: nowMs };
    const refilled = bucket.tokens + ((nowMs - bucket.atMs) / 1000) * this.perSecond;
    const tokens = Math.min(this.burst, refilled);
    const isAllowed = tokens >= 1;
    this.buckets.set(caller, { tokens: isAllowed ? tokens - 1 : tokens, atMs: nowMs });
    return isAllowed ? 0 : (1 - tokens) / this.perSecond;
  }
}
