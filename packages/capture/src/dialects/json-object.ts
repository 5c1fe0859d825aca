import { z } from 'zod';

export type JsonObject = Record<string, unknown>;

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Schema that accepts any JSON object. It neither checks nor copies the fields, because tool schemas and call arguments are long and
 * dialects do not interpret them.
 */
export const jsonObjectSchema = z.custom<JsonObject>(isJsonObject, 'expected an object');
