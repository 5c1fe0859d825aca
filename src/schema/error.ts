import { z } from 'zod';

/** The body of every refusal on the control API. Codes: docs/errors.md. */
export const errorReplySchema = z.object({
  error: z.object({
    code: z.string(),
    message: z.string(),
    details: z.record(z.string(), z.unknown()),
    retryable: z.boolean(),
  }),
});
export type ErrorReply = z.infer<typeof errorReplySchema>;
