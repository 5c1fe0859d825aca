import { z } from 'zod';
import { checkedStream } from '../chat/checked-reply.ts';
import { chunkFields, deltaSchema, tokenChunkChoiceFields } from '../chat/reply-fields.ts';
import { finishReasonFrom, idsSchema } from '../chat/reply-tokens.ts';
import { type ReplyStream, ScannedPrompt, StreamReader } from '../chat/stream-reader.ts';
import type { ReplyListener } from '../engine.ts';
import { type Generated, generatedFields, generatedOf, type SentIds, SentPrompt } from './generated.ts';
import { type ParsedReply, type ReplyContext, vllmChoiceFields } from './reply.ts';
import { routedExpertsOf } from './routing.ts';

const choiceSchema = z.object({ ...tokenChunkChoiceFields, ...vllmChoiceFields });
type ForeignChoice = z.output<typeof choiceSchema>;

const chatChunkSchema = z.object({
  ...chunkFields,
  choices: z.array(choiceSchema.extend({ delta: deltaSchema })).max(1),
  prompt_token_ids: idsSchema,
});

const generatedChunkSchema = z.object({
  ...chunkFields,
  request_id: z.string().nullish(),
  choices: z.array(choiceSchema).max(1),
  prompt_token_ids: idsSchema,
});

/** The fields of a stream that only vLLM has. When several chunks have a field, the last one counts. */
class VllmFields {
  versions: ForeignChoice['weight_versions'];
  routing: ForeignChoice['routed_experts'];

  take({ choices: [choice] }: { readonly choices: readonly ForeignChoice[] }): void {
    if (choice?.weight_versions?.length) this.versions = choice.weight_versions;
    if (choice?.routed_experts) this.routing = choice.routed_experts;
  }
}

const rules = { finishReason: finishReasonFrom, endsWithoutDone: false, repeatsFinish: false };

/** Makes the reader of a streamed chat completion. Its errors have `details.lost_ids` when the stream lacks ids or log-probabilities. */
export function chatStream(context: ReplyContext, listener: ReplyListener): ReplyStream<ParsedReply> {
  const more = new VllmFields();
  const prompt = new ScannedPrompt(context.scanner, 'prompt_token_ids', context.sessionId);
  const reader = new StreamReader(
    { schema: chatChunkSchema, ...rules, takeMore: (chunk) => more.take(chunk) },
    { listener, prompt, owner: context },
  );
  return {
    push: (bytes) => reader.push(bytes),
    reply: () => {
      const checked = checkedStream({ ...reader.fields(), versions: more.versions, ends: null });
      const tokens = checked.promptIds.length + checked.responseIds.length;
      return { ...checked, routedExperts: routedExpertsOf(more.routing, tokens) };
    },
  };
}

/**
 * Makes the reader of a streamed reply of `/inference/v1/generate`. `onIds` receives all ids so far, after each read that added some and did
 * not end the reply. The errors are the same as for {@link chatStream}.
 */
export function generatedStream(
  sent: SentIds,
  context: ReplyContext,
  onIds: (ids: readonly number[]) => void,
): ReplyStream<Generated> {
  const more = new VllmFields();
  const reader = new StreamReader(
    { schema: generatedChunkSchema, ...rules, takeMore: (chunk) => more.take(chunk) },
    { listener: null, prompt: new SentPrompt(sent), owner: context, onIds },
  );
  return {
    push: (bytes) => reader.push(bytes),
    reply: () => {
      const fields = generatedFields(sent, { ...reader.fields(), versions: more.versions });
      return generatedOf(checkedStream(fields), fields.reported, more.routing);
    },
  };
}
