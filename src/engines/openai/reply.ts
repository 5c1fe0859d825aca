import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage, FinishReason } from '../../schema/index.ts';
import { assistantMessage, toolCalls } from '../assistant-message.ts';
import type { GenerateReply } from '../engine.ts';
import { foreignUsageSchema, parseReplyJson, refusal, shaped, usageOf } from '../record.ts';

const messageSchema = z.looseObject({
  content: z.string().nullish(),
  refusal: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z
    .array(
      z.looseObject({
        id: z.string().min(1),
        function: z.looseObject({ name: z.string().min(1), arguments: z.string() }),
      }),
    )
    .nullish(),
});

const replySchema = z.looseObject({
  choices: z.array(z.looseObject({ message: messageSchema, finish_reason: z.string() })).length(1),
  usage: foreignUsageSchema.nullish(),
});

/** What a reply says, whole or in pieces. */
export type TextReply = {
  readonly message: AssistantMessage;
  readonly finishReason: string;
  readonly usage: z.output<typeof foreignUsageSchema> | null | undefined;
};

/** Reads a 200 reply that came whole. Throws `engine_error`, naming what is wrong, and as {@link textReply} does. */
export function parseReply(body: Buffer): GenerateReply {
  const reply = shaped(replySchema, parseReplyJson(body, null));
  const [choice] = reply.choices;
  if (choice === undefined) throw refusal('choices is empty');
  return textReply({ message: messageOf(choice.message), finishReason: choice.finish_reason, usage: reply.usage });
}

/** A reply without token ids. Throws `engine_error` without usage, `engine_rejected` where the API's filter withheld the reply. */
export function textReply({ message, finishReason, usage }: TextReply): GenerateReply {
  const finish = finishOf(finishReason, message);
  if (!usage) throw refusal('usage is missing, and nothing is estimated');
  return {
    promptIds: new Int32Array(0),
    responseIds: new Int32Array(0),
    responseLogprobs: new Float32Array(0),
    versionSpans: [],
    routedExperts: null,
    logprobsMode: null,
    message,
    finishReason: finish,
    stop: null,
    usage: usageOf(usage),
  };
}

function finishOf(reason: string, message: AssistantMessage): FinishReason {
  switch (reason) {
    case 'length':
    case 'tool_calls':
      return reason;
    case 'stop':
      // Some say so of replies with calls too, where a harness would not look for them.
      return message.tool_calls === undefined ? 'stop' : 'tool_calls';
    case 'content_filter':
      throw new FloeError('engine_rejected', "the API's content filter withheld the reply", { content_filter: true });
    default:
      throw refusal(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

function messageOf(message: z.output<typeof messageSchema>): AssistantMessage {
  const reasoning = message.reasoning_content ?? message.reasoning ?? '';
  // A refusal in the model's own words is what it says.
  return assistantMessage(message.content ?? message.refusal ?? '', reasoning, toolCalls(message.tool_calls));
}
