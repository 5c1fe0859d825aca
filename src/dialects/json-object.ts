import { z } from 'zod';

/** Any JSON object, taken as it is: schemas and arguments are long, and nothing in them is a dialect's to check. */
export const jsonObjectSchema = z.custom<Record<string, unknown>>(
  (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  'expected an object',
);
