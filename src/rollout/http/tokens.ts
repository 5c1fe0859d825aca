import { createHash, timingSafeEqual } from 'node:crypto';
import { FloeError } from '../../core/errors.ts';
import type { Role, RolloutConfig } from '../config.ts';
import type { RouteSpec } from './api.ts';

/** Who calls. `key` tells callers apart, for rate limits: it holds nothing of the token. */
export type Caller = { readonly role: Role; readonly key: string };

/** Tells the caller by `Authorization: Bearer`. Throws `unauthorized`. */
export type TokenCheck = (authorization: string | undefined, address: string) => Caller;

/** Compares digests, so the time taken tells nothing about a token or its length. Without any token everybody is an admin. */
export function tokenCheck(config: Pick<RolloutConfig, 'token' | 'tokens'>): TokenCheck {
  const admin = config.token === null ? [] : [{ token: config.token, role: 'admin' as const }];
  const known = [...admin, ...config.tokens].map(({ token, role }, index) => ({
    digest: sha256(token),
    caller: { role, key: `token ${index}` },
  }));
  if (known.length === 0) return (_, address) => ({ role: 'admin', key: `address ${address}` });
  return (authorization) => {
    const given = /^bearer +(\S+) *$/i.exec(authorization ?? '')?.[1];
    const digest = sha256(given ?? '');
    // All of them are compared, whichever it is.
    const matches = known.filter((one) => timingSafeEqual(one.digest, digest));
    const [found] = matches;
    if (given === undefined || found === undefined) {
      throw new FloeError('unauthorized', 'send the control token as `Authorization: Bearer <token>`');
    }
    return found.caller;
  };
}

/** Throws `forbidden` unless the caller's role may make the call. */
export function checkRole(caller: Caller, route: Pick<RouteSpec, 'method' | 'path' | 'roles'>): void {
  if (caller.role === 'admin' || route.roles.includes(caller.role)) return;
  const roles = [...route.roles, 'admin'].join(' or ');
  throw new FloeError('forbidden', `${route.method} ${route.path} takes a token of ${roles}, not of ${caller.role}`, {
    role: caller.role,
  });
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
