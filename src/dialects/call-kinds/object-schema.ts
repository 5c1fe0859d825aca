import { z } from 'zod';

/** As much of a JSON Schema as tells which object is asked for. */
export const objectSchema = z.looseObject({ properties: z.record(z.string(), z.unknown()) });
