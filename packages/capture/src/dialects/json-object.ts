import { isRecord } from '@floe-rl/core';
import { z } from 'zod';

export type JsonObject = Record<string, unknown>;

/**
 * Schema that accepts any JSON object. It neither checks nor copies the fields, because tool schemas and call arguments are long and
 * dialects do not interpret them.
 */
export const jsonObjectSchema = z.custom<JsonObject>(isRecord, 'expected an object');
