import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedReply, checkedReply, type ReplyFields } from '../chat/checked-reply.ts';
import { reportedStop, tokenChoiceFields } from '../chat/reply-fields.ts';
import { type ComparedIds, compareIds, firstDifference, scanIds, scanLogprobs } from '../chat/reply-scan.ts';
import {
  finishReasonFrom,
  idsFrom,
  idsSchema,
  invalidReply,
  type JsonRange,
  logprobEntriesFrom,
  parseReplyJson,
  parseWith,
  usageSchema,
} from '../chat/reply-tokens.ts';
import type { StreamedPrompt } from '../chat/stream-reader.ts';
import type { GenerateRequest, PromptIds } from '../engine.ts';
import { assertOwnReply, type ParsedReply, type ReplyContext, vllmChoiceFields } from './reply.ts';
import { type foreignRoutingSchema, routedExpertsOf } from './routing.ts';

/** Name of the field in which a reply repeats its prompt. */
const PROMPT_FIELD = 'prompt_token_ids';

const replySchema = z.looseObject({
  request_id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.tuple([z.looseObject({ ...tokenChoiceFields, ...vllmChoiceFields })]),
  prompt_token_ids: idsSchema,
  usage: usageSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

const NO_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };

/** A request whose prompt is given as token ids. */
export type TokenRequest = GenerateRequest & { readonly prompt: PromptIds };

/**
 * The token ids that a call sends, which are its prompt and the tokens of `resumeFrom`. `text` is the JSON text of these ids without
 * brackets, `parts` are the arrays of ids, and `count` is their total number.
 */
export type SentIds = { readonly text: Buffer; readonly parts: readonly Int32Array[]; readonly count: number };

export type Generated = {
  /** The reply with an empty message, because the message is parsed later. */
  readonly sampled: ParsedReply;
  /** Whether the reply has the field `stop_reason`, even if its value is null. */
  readonly reportsStop: boolean;
};

/** The fields of a reply that are not known before the call. */
type SampledFields = Pick<ReplyFields, 'responseIds' | 'logprobs' | 'versions' | 'finishReason' | 'reported' | 'usage'>;

/** Parses a whole reply of `/inference/v1/generate` with status 200. Throws `engine_error` for a reply that must not be recorded. */
export function parseGenerated(body: Buffer, sent: SentIds, context: ReplyContext): Generated {
  const compared = compareIds(body, PROMPT_FIELD, sent.text, sent.parts);
  const sampled = scanIds(body, 'token_ids');
  const logprobs = scanLogprobs(body);
  const reply = parseWith(replySchema, parseReplyJson(body, compared, logprobs, sampled));
  assertOwnReply({ id: reply.request_id, model: reply.model }, context);
  if (!showsSentPrompt(reply.prompt_token_ids, compared, sent)) assertVerifiable(reply.usage);
  const [choice] = reply.choices;
  const fields = generatedFields(sent, {
    responseIds: idsFrom(choice.token_ids, sampled, 'token_ids'),
    logprobs: logprobEntriesFrom(choice.logprobs?.content, logprobs),
    versions: choice.weight_versions,
    finishReason: finishReasonFrom(choice.finish_reason),
    reported: reportedStop(choice),
    usage: reply.usage,
  });
  return generatedOf(checkedReply(fields), fields.reported, choice.routed_experts);
}

/** Adds the fields that are known before the call to the other fields of a reply. Its message is empty until it is parsed. */
export function generatedFields(sent: SentIds, { usage, ...fields }: SampledFields): ReplyFields {
  return {
    ...fields,
    promptIds: promptOf(sent),
    message: NO_MESSAGE,
    ends: null,
    usage: usage ?? { prompt_tokens: sent.count, completion_tokens: fields.responseIds.length },
  };
}

/** Makes the result of a reply whose fields have been checked. */
export function generatedOf(
  reply: CheckedReply,
  reported: ReplyFields['reported'],
  routing: z.output<typeof foreignRoutingSchema>,
): Generated {
  const routedExperts = routedExpertsOf(routing, reply.promptIds.length + reply.responseIds.length);
  return { sampled: { ...reply, routedExperts }, reportsStop: reported !== undefined };
}

/**
 * Returns an array with the length of the prompt. Its ids need not be right: the reply's prompt ids have already been compared with the sent
 * ids, and only their number is still compared with the usage.
 */
function promptOf({ parts, count }: SentIds): Int32Array {
  return parts.length === 1 ? (parts[0] as Int32Array) : new Int32Array(count);
}

/**
 * Compares the ids of the prompt in a stream with the sent ids. For a stream without prompt ids, only their number in the usage is compared.
 */
export class SentPrompt implements StreamedPrompt {
  readonly field = PROMPT_FIELD;
  private readonly sent: SentIds;
  private compared: ComparedIds | null = null;

  constructor(sent: SentIds) {
    this.sent = sent;
  }

  get count(): number {
    return this.sent.count;
  }

  find(data: Buffer): JsonRange | null {
    this.compared = compareIds(data, PROMPT_FIELD, this.sent.text, this.sent.parts);
    return this.compared;
  }

  take(value: number[] | number): void {
    showsSentPrompt(value, this.compared, this.sent);
  }

  ids(): Int32Array {
    return promptOf(this.sent);
  }
}

/**
 * Whether a reply repeats the prompt's ids. `compared` is the result of {@link compareIds}. Throws `engine_error` when the reply answers a
 * prompt other than the sent prompt.
 */
function showsSentPrompt(
  echoed: number[] | number | null | undefined,
  compared: ComparedIds | null,
  sent: SentIds,
): boolean {
  if (compared === null && !Array.isArray(echoed)) {
    if (echoed !== null && echoed !== undefined) throw invalidReply('prompt_token_ids is not an array of ids');
    return false;
  }
  const difference = compared === null ? firstDifference(echoed as number[], sent.parts) : compared.difference;
  if (difference === null) return true;
  throw invalidReply(`prompt_token_ids are not the ${sent.count} ids that were sent, from index ${difference} on`);
}

/** Throws `engine_error` for a reply that shows neither its prompt's ids nor their number. */
function assertVerifiable(usage: ForeignReply['usage']): void {
  if (usage !== null && usage !== undefined) return;
  const reason = 'neither prompt_token_ids nor usage is present, so that its prompt cannot be verified';
  throw invalidReply(reason, undefined, { unverifiable: true });
}
