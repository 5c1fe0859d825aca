import { z } from 'zod';

/** A setting: where the task's image has a program. */
export const imageProgram = z.string().regex(/^\/[^\0]+$/, 'must be an absolute path in the image');
