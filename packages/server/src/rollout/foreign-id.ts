import { z } from 'zod';

/**
 * Id that a client of another system's API may choose: a text of up to 256 characters, because it becomes a part of URLs. It has no NUL,
 * which PostgreSQL cannot store, and no segment `.` or `..`, which the server refuses in a path.
 */
export const foreignIdSchema = z
  .string()
  .min(1)
  .max(256)
  .refine((id) => !id.includes('\0') && !id.split(/[\\/]/).some((segment) => segment === '.' || segment === '..'), {
    error: 'must not contain NUL or a path segment . or ..',
  });
