import { z } from 'zod';

/**
 * The role of a caller, which decides which calls it may make: `admin` all of them, `trainer` those about tasks, results and engines,
 * `node` those of gateway nodes, and `viewer` only calls that change nothing.
 */
export const roleSchema = z.enum(['admin', 'trainer', 'node', 'viewer']);
export type Role = z.infer<typeof roleSchema>;
