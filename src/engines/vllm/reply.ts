import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage, FinishReason, StopCause, ToolCall, Usage, VersionSpan } from '../../schema/index.ts';
import type { GenerateReply } from '../engine.ts';
import type { IdScanner, ScannedIds } from '../id-scan.ts';

/** Log-probabilities are float32 sums; a certain token can come out this far above 0. */
const LOGPROB_ROUNDING = 1e-3;

/** How vLLM writes an id where OpenAI's API has the token's text. */
const TOKEN_ID = 'token_id:';

/** Stands in for an id array that was read from the bytes; a number is no valid value of that field. */
const SCANNED_MARK = -1;

const idsSchema = z
  .union([
    z.array(
      z
        .int()
        .min(0)
        .max(2 ** 31 - 1),
    ),
    z.literal(SCANNED_MARK),
  ])
  .nullish();

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
  stop_reason: z.union([z.int(), z.string()]).nullish(),
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: z.looseObject({ content: z.array(z.unknown()).nullish() }).nullish(),
  weight_versions: z
    .array(z.looseObject({ version: z.union([z.string(), z.int()]).nullable(), start: z.int(), end: z.int() }))
    .nullish(),
});
type ForeignChoice = z.output<typeof choiceSchema>;

const replySchema = z.looseObject({
  id: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  prompt_token_ids: idsSchema,
  usage: z.looseObject({
    prompt_tokens: z.int().min(0),
    completion_tokens: z.int().min(0),
    prompt_tokens_details: z.looseObject({ cached_tokens: z.int().nullish() }).nullish(),
  }),
});

const errorBodySchema = z.looseObject({ error: z.unknown() });

/** vLLM's reply without what only the adapter knows: the version that it was sampled with, unless the spans tell. */
export type ParsedReply = Omit<GenerateReply, 'versionSpans'> & {
  readonly versionSpans: readonly VersionSpan[] | null;
};

/** Reads a 200 reply of vLLM. Throws `engine_error`, naming what is wrong, for everything that cannot be trained on. */
export function parseReply(
  body: Buffer,
  call: { readonly completionId: string; readonly sessionId: string },
  scanner: IdScanner,
): ParsedReply {
  const scanned = scanner.scan(body, 'prompt_token_ids', call.sessionId);
  const reply = parseBody(body, scanned);
  refuseForeignId(reply.id, call.completionId);
  const choice = reply.choices[0] as ForeignChoice;
  const promptIds = idsOf(reply.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids');
  const responseIds = idsOf(choice.token_ids, null, 'token_ids');
  const finishReason = finishOf(choice.finish_reason);
  const usage: Usage = {
    prompt_tokens: reply.usage.prompt_tokens,
    completion_tokens: reply.usage.completion_tokens,
    cached_tokens: reply.usage.prompt_tokens_details?.cached_tokens ?? null,
  };
  refuseCount('prompt_token_ids', promptIds.length, 'usage.prompt_tokens', usage.prompt_tokens);
  refuseCount('token_ids', responseIds.length, 'usage.completion_tokens', usage.completion_tokens);
  if (responseIds.length === 0) throw refusal('token_ids is empty: nothing was sampled');
  return {
    promptIds,
    responseIds,
    responseLogprobs: logprobsOf(choice, responseIds),
    versionSpans: spansOf(choice, responseIds.length),
    message: messageOf(choice.message),
    finishReason,
    stop: stopOf(choice, finishReason, responseIds),
    usage,
  };
}

function refusal(what: string, cause?: unknown): FloeError {
  return new FloeError('engine_error', `the engine's reply cannot be recorded: ${what}`, {}, cause);
}

function parseBody(body: Buffer, scanned: ScannedIds | null): z.output<typeof replySchema> {
  const text =
    scanned === null
      ? body.toString('utf8')
      : body.toString('utf8', 0, scanned.start) + SCANNED_MARK + body.toString('utf8', scanned.end);
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw refusal('it is not JSON', cause);
  }
  if (isErrorBody(json)) {
    throw refusal(`status 200 with an error inside: ${errorMessage(json) ?? 'without a message'}`);
  }
  const parsed = replySchema.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw refusal(issue ? `${issue.path.map(String).join('.') || 'body'}: ${issue.message}` : 'wrong shape');
}

/** By hand: a schema that does not match makes an error object, which every good reply would pay for. */
function isErrorBody(json: unknown): boolean {
  if (typeof json !== 'object' || json === null) return false;
  return 'error' in json || ('object' in json && json.object === 'error');
}

const messageBodySchema = z.looseObject({ message: z.string() });

/** The message of an error body in either of the shapes that vLLM has used. */
export function errorMessage(json: unknown): string | null {
  const nested = errorBodySchema.safeParse(json);
  const holder = messageBodySchema.safeParse(nested.success && nested.data.error ? nested.data.error : json);
  if (holder.success) return holder.data.message;
  return nested.success && typeof nested.data.error === 'string' ? nested.data.error : null;
}

/** The id echoes the request id that was sent. One that is another floe call's means that replies were mixed up. */
function refuseForeignId(id: string | null | undefined, completionId: string): void {
  if (!id || id.endsWith(completionId)) return;
  const prefix = completionId.slice(0, completionId.indexOf('_') + 1);
  if (prefix !== '' && id.replace(/^chatcmpl-/, '').startsWith(prefix)) {
    throw refusal(`it answers ${id}, not ${completionId}`);
  }
}

function idsOf(value: number[] | number | null | undefined, scanned: ScannedIds | null, field: string): Int32Array {
  if (value === null || value === undefined) {
    throw refusal(`${field} is missing; the server does not honour return_token_ids`);
  }
  if (typeof value !== 'number') return Int32Array.from(value);
  if (scanned === null) throw refusal(`${field} is not an array of ids`);
  return scanned.ids;
}

function refuseCount(field: string, count: number, usageField: string, usage: number): void {
  if (count !== usage) throw refusal(`${field} has ${count} ids, but ${usageField} is ${usage}`);
}

function finishOf(reason: string): FinishReason {
  switch (reason) {
    case 'stop':
    case 'length':
    case 'tool_calls':
    case 'abort':
      return reason;
    default:
      throw refusal(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

/** Checked by hand: one schema object per token costs more than everything else in a reply. */
function logprobsOf(choice: ForeignChoice, ids: Int32Array): Float32Array {
  const count = ids.length;
  const content = choice.logprobs?.content;
  if (content === null || content === undefined) throw refusal('logprobs.content is missing');
  if (content.length !== count) throw refusal(`logprobs.content has ${content.length} entries for ${count} token_ids`);
  const logprobs = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const entry = content[i] as { logprob?: unknown; token?: unknown } | null;
    const value = typeof entry === 'object' && entry !== null ? entry.logprob : undefined;
    if (typeof value !== 'number' || !Number.isFinite(value)) {
      throw refusal(`logprobs.content.${i}.logprob is not a finite number`);
    }
    if (value > LOGPROB_ROUNDING) throw refusal(`logprobs.content.${i}.logprob is ${value}, above 0`);
    const token = entry?.token;
    // Servers that do not honour return_tokens_as_token_ids send the token's text, which proves nothing.
    if (typeof token === 'string' && token.startsWith(TOKEN_ID) && token !== `${TOKEN_ID}${ids[i]}`) {
      throw refusal(`logprobs.content.${i} is of ${token}, but token_ids.${i} is ${ids[i]}`);
    }
    logprobs[i] = value;
  }
  return logprobs;
}

function spansOf(choice: ForeignChoice, count: number): VersionSpan[] | null {
  const spans = choice.weight_versions;
  if (spans === null || spans === undefined || spans.length === 0) return null;
  let next = 0;
  for (const [index, span] of spans.entries()) {
    if (span.start !== next || span.end < span.start)
      throw refusal(`weight_versions.${index} does not follow the span before`);
    next = span.end;
  }
  if (next !== count) throw refusal(`weight_versions cover ${next} of ${count} token_ids`);
  return spans.map(({ version, start, end }) => ({ version: version === null ? null : String(version), start, end }));
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

/** vLLM leaves `stop_reason` null when the end-of-sequence token ended the reply, and keeps that token in the ids. */
function stopOf(choice: ForeignChoice, finish: FinishReason, ids: Int32Array): StopCause | null {
  const reason = choice.stop_reason;
  if (typeof reason === 'string') return { kind: 'string', text: reason };
  if (typeof reason === 'number') return { kind: 'token', id: reason };
  const last = ids.at(-1);
  const ended = finish === 'stop' || finish === 'tool_calls';
  return ended && last !== undefined ? { kind: 'token', id: last } : null;
}
