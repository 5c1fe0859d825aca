import type { FastifyReply, FastifyRequest } from 'fastify';
import type { z } from 'zod';
import type { Role } from '../config.ts';
import type { Api, RouteName, RouteSpec } from './api.ts';

type QueryOf<R> = R extends { readonly query: infer Q extends z.ZodObject } ? z.output<Q> : undefined;
type BodyOf<R> = R extends { readonly body: infer B extends z.ZodType }
  ? z.output<B>
  : R extends { readonly rawBody: string }
    ? Buffer
    : undefined;

/** A checked request. `id` is empty where the path has none. */
export type Call<R extends RouteSpec> = {
  readonly id: string;
  readonly query: QueryOf<R>;
  readonly body: BodyOf<R>;
  /** Of the caller; null where anybody may call. */
  readonly role: Role | null;
  /** Aborts when the client hangs up before it was answered. */
  readonly gone: AbortSignal;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
};

/** Returns what is sent: an object is serialised, a Buffer or stream goes out as it is. May throw a FloeError. */
export type Handler<R extends RouteSpec> = (call: Call<R>) => unknown;

export type Handlers<Names extends RouteName> = { readonly [Name in Names]: Handler<Api[Name]> };
