import type { Role } from '@floe-rl/core/schema';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { z } from 'zod';
import type { Api, RouteName, RouteSpec } from './api.ts';

type QueryOf<R> = R extends { readonly query: infer Q extends z.ZodObject } ? z.output<Q> : undefined;
type BodyOf<R> = R extends { readonly body: infer B extends z.ZodType }
  ? z.output<B>
  : R extends { readonly rawBody: string }
    ? Buffer
    : undefined;

/** A request that was checked against its route. `id` is the path parameter, or an empty string when the path has none. */
export type Call<R extends RouteSpec> = {
  readonly id: string;
  readonly query: QueryOf<R>;
  readonly body: BodyOf<R>;
  /** The caller's role; `null` for a route that needs no token. */
  readonly role: Role | null;
  /** Aborted when the client closes the connection before it was answered. */
  readonly disconnected: AbortSignal;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
};

/**
 * Handles a request and returns the body of the reply: an object is serialised as JSON; a string, Buffer or stream is sent unchanged. May
 * throw a FloeError, which is answered with its status.
 */
export type Handler<R extends RouteSpec> = (call: Call<R>) => unknown;

export type Handlers<Names extends RouteName> = { readonly [Name in Names]: Handler<Api[Name]> };
