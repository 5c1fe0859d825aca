import { z } from 'zod';

/** The body of every error reply of the control API. docs/errors.md lists the error codes. */
export const errorReplySchema = z.object({
  error: z.object({
    code: z.string(),
    message: z.string(),
    details: z.record(z.string(), z.unknown()),
    retryable: z.boolean(),
  }),
});
export type ErrorReply = z.infer<typeof errorReplySchema>;
