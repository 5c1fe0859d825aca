import { z } from 'zod';
import { checkedStream } from '../chat/checked-reply.ts';
import { chunkFields, deltaSchema, tokenChunkChoiceFields } from '../chat/reply-fields.ts';
import type { IdScanner } from '../chat/reply-scan.ts';
import { finishReasonFrom, idsSchema } from '../chat/reply-tokens.ts';
import { type ReplyStream, ScannedPrompt, StreamReader } from '../chat/stream-reader.ts';
import type { ReplyListener } from '../engine.ts';
import { type ChatReplyOptions, listedIds, metadataSchema, sameIds, sglextSchema } from './chat-reply.ts';
import { type ChatReply, ownReply, type ReplyCall, versionOf } from './reply.ts';

const chunkSchema = z.object({
  ...chunkFields,
  choices: z.array(z.object({ ...tokenChunkChoiceFields, delta: deltaSchema })).max(1),
  prompt_token_ids: idsSchema,
  sglext: sglextSchema.nullish(),
  metadata: metadataSchema.nullish(),
});
type ForeignChunk = z.output<typeof chunkSchema>;

/** The fields of a stream that only SGLang has. When several chunks have a field, the last one counts. */
class SglangFields {
  /** All sampled token ids as the field `sglext` lists them; `null` before it has arrived. */
  ids: readonly number[] | null = null;
  experts: string | null = null;
  metadata: ForeignChunk['metadata'];

  take({ sglext, metadata }: ForeignChunk): void {
    if (metadata) this.metadata = metadata;
    if (!sglext) return;
    if (sglext.routed_experts) this.experts = sglext.routed_experts;
    this.ids = listedIds(sglext) ?? this.ids;
  }
}

/**
 * Makes the reader of a streamed chat completion. Depending on the release, either every chunk has token ids, or one of the last chunks has
 * all of them. Errors have `details.lost_ids` when the stream lacks ids or log-probabilities.
 */
export function chatStream(
  call: ReplyCall,
  scanner: IdScanner,
  listener: ReplyListener,
  { promptKey, ends, model }: ChatReplyOptions,
): ReplyStream<ChatReply> {
  const more = new SglangFields();
  const reader = new StreamReader(
    {
      schema: chunkSchema,
      ...{ finishReason: finishReasonFrom, endsWithoutDone: false, repeatsFinish: false },
      promptOf: (chunk) => chunk.sglext?.input_ids,
      takeMore: (chunk) => more.take(chunk),
    },
    {
      listener,
      prompt: new ScannedPrompt(scanner, promptKey, call.sessionId),
      owner: { completionId: call.completionId, models: new Set([model]) },
    },
  );
  return {
    push: (bytes) => reader.push(bytes),
    reply: () => {
      const fields = reader.fields();
      const own = fields.responseIds.length === 0 ? null : fields.responseIds;
      const responseIds = Int32Array.from(sameIds(own, more.ids, 'the ids of its chunks') ?? []);
      const checked = checkedStream({ ...fields, responseIds, versions: more.metadata?.weight_versions, ends });
      return ownReply(checked, { endVersion: versionOf(more.metadata?.weight_version), experts: more.experts });
    },
  };
}
