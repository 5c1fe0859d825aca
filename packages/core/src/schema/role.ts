import { z } from 'zod';

/**
 * The role of a caller decides which calls it may make. `admin`: all calls. `trainer`: calls about tasks, results and engines. `node`: the
 * calls of gateway nodes. `viewer`: only calls that change nothing.
 */
export const roleSchema = z.enum(['admin', 'trainer', 'node', 'viewer']);
export type Role = z.infer<typeof roleSchema>;
