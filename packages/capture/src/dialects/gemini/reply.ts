import type { CanonicalReply, ReplyHead } from '../dialect.ts';
import { encodeThoughtSignature } from '../opaque-fields.ts';
import { argsJson } from './calls.ts';

export function encodeGenerateReply(reply: CanonicalReply): string {
  const { message } = reply;
  const writer = new PartWriter(reply.completionId);
  const parts: string[] = [];
  if (message.reasoning_content) parts.push(writer.thought(message.reasoning_content));
  if (message.content) parts.push(writer.text(message.content));
  for (const { id, function: called } of message.tool_calls ?? []) {
    parts.push(writer.call({ id, name: called.name, raw: called.arguments }));
  }
  return responseJson(reply, [...parts, ...writer.finish()], reply);
}

type CompleteCall = { readonly id: string; readonly name: string; readonly raw: string };

/**
 * Encodes the parts of a reply as JSON. The first part after thinking has a signature that repeats the thinking. If no part before the first
 * tool call has a signature, the call gets one. The signature contains the completion id, which is needed because some clients drop the id of
 * the call.
 */
export class PartWriter {
  private readonly completionId: string;
  private unsigned = '';
  private hasSignature = false;

  constructor(completionId: string) {
    this.completionId = completionId;
  }

  thought(text: string): string {
    this.unsigned += text;
    return JSON.stringify({ text, thought: true });
  }

  text(text: string): string {
    return JSON.stringify({ text, ...(this.unsigned === '' ? {} : this.signature()) });
  }

  /** Encodes a tool call. The sampled argument text is inserted into the JSON unchanged. */
  call({ id, name, raw }: CompleteCall): string {
    const head = JSON.stringify({ id, name }).slice(0, -1);
    const tail = this.hasSignature && this.unsigned === '' ? '}' : JSON.stringify(this.signature()).slice(1);
    return `{"functionCall":${head},"args":${argsJson(raw)}}${tail === '}' ? '' : ','}${tail}`;
  }

  /** Returns an empty text part with the signature when the reply ends with thinking, as Google's API does; otherwise returns no part. */
  finish(): string[] {
    return this.unsigned === '' ? [] : [this.text('')];
  }

  private signature(): { thoughtSignature: string } {
    const thoughtSignature = encodeThoughtSignature(this.completionId, this.unsigned);
    this.unsigned = '';
    this.hasSignature = true;
    return { thoughtSignature };
  }
}

/**
 * The part that is sent for a reply without content. A response without parts makes `@google/genai` drop the reply from its history. A
 * part with an empty text avoids this, and neither `@google/genai` nor Gemini CLI displays it.
 */
const EMPTY_PART = '{"text":""}';

/** Encodes one GenerateContentResponse. `end` is the complete reply when this is its last response, otherwise `null`. */
export function responseJson(head: ReplyHead, parts: readonly string[], end: CanonicalReply | null): string {
  const finish = end === null ? '' : `,"finishReason":"${finishOf(end)}"`;
  const tail = JSON.stringify({
    ...(end === null ? {} : { usageMetadata: usageOf(end) }),
    modelVersion: head.model,
    responseId: head.completionId,
  });
  const content = `{"parts":[${parts.join(',') || EMPTY_PART}],"role":"model"}`;
  return `{"candidates":[{"content":${content}${finish},"index":0}],${tail.slice(1)}`;
}

function finishOf({ finishReason }: CanonicalReply): string {
  switch (finishReason) {
    case 'stop':
    case 'tool_calls':
      return 'STOP';
    case 'length':
    case 'abort':
      return 'MAX_TOKENS';
  }
}

/** Makes the token usage of a response. Thinking is included in `candidatesTokenCount`, because engines do not count it separately. */
function usageOf({ usage }: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = usage;
  return {
    promptTokenCount: prompt_tokens,
    candidatesTokenCount: completion_tokens,
    ...(cached_tokens === null ? {} : { cachedContentTokenCount: cached_tokens }),
    totalTokenCount: prompt_tokens + completion_tokens,
  };
}
