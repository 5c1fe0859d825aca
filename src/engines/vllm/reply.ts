import { z } from 'zod';
import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import type { IdScanner } from '../id-scan.ts';
import {
  foreignUsageSchema,
  idsOf,
  idsSchema,
  logprobsSchema,
  type ParsedReply,
  parseReplyJson,
  recordable,
  refuseForeignId,
  shaped,
  stopReasonSchema,
  versionsSchema,
} from '../record.ts';

const messageSchema = z.looseObject({
  content: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z
    .array(z.looseObject({ id: z.string(), function: z.looseObject({ name: z.string(), arguments: z.string() }) }))
    .nullish(),
});
type ForeignMessage = z.output<typeof messageSchema>;

const choiceSchema = z.looseObject({
  message: messageSchema,
  finish_reason: z.string(),
  stop_reason: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: logprobsSchema,
  weight_versions: versionsSchema,
});
type ForeignChoice = z.output<typeof choiceSchema>;

const replySchema = z.looseObject({
  id: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  prompt_token_ids: idsSchema,
  usage: foreignUsageSchema,
});

/** Reads a 200 reply of vLLM that came whole. Throws `engine_error`, naming what is wrong, for everything that cannot be trained on. */
export function parseReply(
  body: Buffer,
  call: { readonly completionId: string; readonly sessionId: string },
  scanner: IdScanner,
): ParsedReply {
  const scanned = scanner.scan(body, 'prompt_token_ids', call.sessionId);
  const reply = shaped(replySchema, parseReplyJson(body, scanned));
  refuseForeignId(reply.id, call.completionId);
  const choice = reply.choices[0] as ForeignChoice;
  return recordable({
    promptIds: idsOf(reply.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids'),
    responseIds: idsOf(choice.token_ids, null, 'token_ids'),
    logprobs: choice.logprobs?.content,
    versions: choice.weight_versions,
    message: messageOf(choice.message),
    finishReason: choice.finish_reason,
    stopReason: choice.stop_reason,
    usage: reply.usage,
  });
}

function messageOf(message: ForeignMessage): AssistantMessage {
  const reasoning = message.reasoning ?? message.reasoning_content ?? '';
  const calls = (message.tool_calls ?? []).map(
    (call): ToolCall => ({
      id: call.id,
      type: 'function',
      function: { name: call.function.name, arguments: call.function.arguments },
    }),
  );
  const content = message.content ?? '';
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}
