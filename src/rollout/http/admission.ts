import type { IncomingMessage } from 'node:http';
import type { TLSSocket } from 'node:tls';
import { FloeError } from '../../core/errors.ts';
import type { RolloutContext } from '../context.ts';
import { API, type RouteSpec } from './api.ts';
import { refuseAmbiguous, refuseForeignPages } from './guard.ts';
import { RateLimit } from './rate-limit.ts';
import { type Caller, checkRole, tokenCheck } from './tokens.ts';

/**
 * Decides by the head of a request whether it is served, and tells who calls; null where anybody may. Throws `bad_request`,
 * `unauthorized`, `forbidden` or `overloaded`. The route is undefined where none fits: a stranger is not told which there are.
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
  const isTokenless = config.token === null && config.tokens.length === 0;

  const identified = (request: IncomingMessage): Caller => {
    try {
      return identify(request.headers.authorization, request.socket.remoteAddress ?? '');
    } catch (thrown) {
      counters.add('unauthorized');
      throw thrown;
    }
  };
  const authorized = (request: IncomingMessage, caller: Caller, route: RouteSpec): void => {
    try {
      if (isTokenless) refuseForeignPages(request);
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
    const caller = identified(request);
    if (route === undefined) return caller;
    authorized(request, caller, route);
    if (isForNodes(route)) return caller;
    const limit = route === API.submitTask ? submits : others;
    const seconds = limit.take(caller.key);
    if (seconds === 0) return caller;
    counters.add('rate_limited');
    throw new FloeError('overloaded', 'more calls than this server takes from one caller; wait and repeat', {
      retry_after_seconds: Math.ceil(seconds),
    });
  };
}

/** Calls that only nodes make. They hold sessions, which a refused heartbeat would cost them. */
function isForNodes(route: RouteSpec): boolean {
  return route.faces?.every((face) => face === 'node') === true;
}

function refuseUncertified(request: IncomingMessage): void {
  if ((request.socket as TLSSocket).authorized === true) return;
  throw new FloeError('forbidden', 'a node must show a certificate that the client authorities of this server signed');
}
