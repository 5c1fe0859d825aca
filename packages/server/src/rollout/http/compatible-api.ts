import type { RouteSpec } from './api.ts';
import type { Handler } from './handler.ts';

/**
 * An API that follows the rules of another system, such as NVIDIA's Polar, so that clients of that system can use floe. It consists of
 * routes by name, and of the paths at which the main listener serves them.
 */
export type CompatibleApi = {
  readonly routes: Readonly<Record<string, RouteSpec>>;
  readonly handlers: Readonly<Record<string, Handler<RouteSpec>>>;
  /**
   * Paths below which the routes are served. An empty text means the root of the server, where a route of this API replaces floe's own
   * route of the same method and path.
   */
  readonly prefixes: readonly string[];
};

/** Joins the routes of an API that is compatible with another system, such as Polar, with the handlers of the same names. */
export function compatibleApi<const Routes extends Readonly<Record<string, RouteSpec>>>(
  routes: Routes,
  handlers: { readonly [Name in keyof Routes]: Handler<Routes[Name]> },
  prefixes: readonly string[],
): CompatibleApi {
  return { routes, handlers: handlers as unknown as CompatibleApi['handlers'], prefixes };
}

/** A path, with the route that is served at this path and the handler that answers its requests. */
export type MountedRoute = { readonly path: string; readonly spec: RouteSpec; readonly handler: Handler<RouteSpec> };

/** Path below which floe's own API is also served when a compatible API replaces some of floe's routes at the root. */
const OWN_PREFIX = '/floe';

/**
 * Returns all routes of a listener. `own` are floe's own routes. When a compatible API replaces at least one of them at the root, all of
 * floe's own routes are also served below {@link OWN_PREFIX}.
 */
export function mountRoutes(
  own: readonly Omit<MountedRoute, 'path'>[],
  compatible: readonly CompatibleApi[],
): MountedRoute[] {
  const foreign = compatible.flatMap((api) => api.prefixes.flatMap((prefix) => routesBelow(prefix, api)));
  const taken = new Set(foreign.map(keyOf));
  const atRoot = own.map((route) => ({ ...route, path: route.spec.path }));
  const kept = atRoot.filter((route) => !taken.has(keyOf(route)));
  const moved = kept.length === own.length ? [] : atRoot.map((route) => ({ ...route, path: OWN_PREFIX + route.path }));
  return [...kept, ...moved, ...foreign];
}

function routesBelow(prefix: string, { routes, handlers }: CompatibleApi): MountedRoute[] {
  return Object.entries(routes).flatMap(([name, spec]) => {
    const handler = handlers[name];
    return handler === undefined ? [] : [{ path: prefix + spec.path, spec, handler }];
  });
}

function keyOf({ spec, path }: MountedRoute): string {
  return `${spec.method} ${path}`;
}
