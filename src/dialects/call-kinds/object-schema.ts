import { z } from 'zod';
import { jsonObjectSchema } from '../json-object.ts';

/** As much of a JSON Schema as tells which object is asked for. */
export const objectSchema = z.looseObject({ properties: jsonObjectSchema });
