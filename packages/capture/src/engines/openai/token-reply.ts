import { z } from 'zod';
import type { IdScanner } from '../chat/reply-scan.ts';
import {
  assertReplyModel,
  idsFrom,
  idsSchema,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  usageSchema,
} from '../chat/reply-tokens.ts';
import { checkedReply, type ParsedReply, stopReasonSchema } from '../vllm/reply.ts';
import { assistantMessageOf, finishReasonOf, messageSchema } from './reply.ts';

const replySchema = z.looseObject({
  model: z.string().nullish(),
  choices: z.tuple([
    z.looseObject({
      message: messageSchema,
      finish_reason: z.string(),
      stop_reason: stopReasonSchema,
      matched_stop: stopReasonSchema,
      prompt_token_ids: idsSchema,
      token_ids: idsSchema,
      logprobs: logprobsSchema,
    }),
  ]),
  prompt_token_ids: idsSchema,
  usage: usageSchema,
});

type TokenReplyContext = {
  readonly sessionId: string;
  /** The model names that replies may carry; `null` when any name is accepted. */
  readonly models: ReadonlySet<string> | null;
  readonly scanner: IdScanner;
  /** Whether the request has stop strings. */
  readonly hasStops: boolean;
};

/**
 * Parses a chat completion of status 200 with token ids and log-probabilities, as servers made from vLLM or SGLang write them. Resolves with
 * the model's name in the reply too. Throws `engine_error` for a reply that must not be trained on, and `engine_rejected` when the API's
 * content filter withheld the reply.
 */
export function parseTokenReply(
  body: Buffer,
  { sessionId, models, scanner, hasStops }: TokenReplyContext,
): { readonly reply: ParsedReply; readonly model: string | null } {
  const scanned = scanner.scan(body, 'prompt_token_ids', sessionId);
  const json = parseWith(replySchema, parseReplyJson(body, scanned));
  if (models !== null) assertReplyModel(json.model, models);
  const [choice] = json.choices;
  const message = assistantMessageOf(choice.message);
  const stopReason = choice.stop_reason ?? choice.matched_stop;
  const reply = checkedReply({
    promptIds: idsFrom(json.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids'),
    responseIds: idsFrom(choice.token_ids, null, 'token_ids'),
    logprobs: choice.logprobs?.content,
    versions: null,
    message,
    finishReason: finishReasonOf(choice.finish_reason, message),
    stopReason,
    usage: json.usage,
  });
  // Without a stop reason, the last id is taken for an end token. With stop strings, it may be the end of one of them.
  const isUnknown = hasStops && (stopReason === null || stopReason === undefined);
  return { reply: isUnknown ? { ...reply, stop: null } : reply, model: json.model ?? null };
}
