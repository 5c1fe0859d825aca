import { isRecord, parseAs } from '@floe-rl/core';
import type { ChatMessage, ChatTool, Content, ContentPart, Outcome } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Conversation, type RecordedCall, repliesOf, UNKNOWN_CAPTURE } from './calls.ts';
import { foreignRecording, timeOf } from './foreign.ts';
import type { Recording, RecordingReader, RecordingSource } from './recording.ts';

/** Fields of the logs of Inspect (`inspect-ai` 0.3.285), format 2. Other fields are ignored. */
const evalSchema = z.object({
  eval_id: z.string().nullish(),
  task: z.string(),
  model: z.string(),
});
type Eval = z.output<typeof evalSchema>;

const partSchema = z.looseObject({ type: z.string() });
const messageSchema = z.object({
  id: z.string().nullish(),
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.union([z.string(), z.array(partSchema)]),
  tool_call_id: z.string().nullish(),
  tool_calls: z.array(z.object({ id: z.string(), function: z.string(), arguments: z.unknown() })).nullish(),
});
type Message = z.output<typeof messageSchema>;

const outputSchema = z.object({
  model: z.string().default('unknown'),
  choices: z.array(z.object({ message: messageSchema, stop_reason: z.string().nullish() })).default([]),
  usage: z
    .object({ input_tokens: z.int(), output_tokens: z.int(), input_tokens_cache_read: z.int().nullish() })
    .nullish(),
  time: z.number().nullish(),
});

const modelEventSchema = z.object({
  event: z.literal('model'),
  timestamp: z.string(),
  input: z.array(messageSchema).default([]),
  input_refs: z.array(z.tuple([z.int(), z.int()])).nullish(),
  role: z.string().nullish(),
  tools: z
    .array(
      z.object({
        name: z.string(),
        description: z.string().nullish(),
        parameters: z.record(z.string(), z.unknown()).nullish(),
      }),
    )
    .default([]),
  output: outputSchema,
});
type ModelEvent = z.output<typeof modelEventSchema>;

const sampleSchema = z.object({
  id: z.union([z.string(), z.number()]),
  epoch: z.int().default(1),
  uuid: z.string().nullish(),
  target: z.unknown().optional(),
  messages: z.array(messageSchema).default([]),
  scores: z.record(z.string(), z.object({ value: z.unknown(), explanation: z.string().nullish() })).nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
  events: z.array(z.looseObject({ event: z.string() })).default([]),
  attachments: z.record(z.string(), z.string()).default({}),
  events_data: z.object({ messages: z.array(messageSchema).default([]) }).nullish(),
  error: z.object({ message: z.string() }).nullish(),
  limit: z.object({ type: z.string() }).nullish(),
  total_time: z.number().nullish(),
  completed_at: z.string().nullish(),
});
type Sample = z.output<typeof sampleSchema>;

const LACKS: readonly string[] = ['token ids', 'log-probabilities', 'what is trained', 'policy versions'];

/** Reads logs of Inspect in JSON. For logs in the format `eval`, {@link inspectRecording} reads the samples. */
export const INSPECT_READER: RecordingReader = {
  format: 'inspect',
  read: (value, source) => {
    if (!isRecord(value) || !isRecord(value.eval) || !('samples' in value || 'plan' in value)) return null;
    const samples = Array.isArray(value.samples) ? value.samples : [];
    return samples.map((sample, index) => inspectRecording(value.eval, sample, source, `samples.${index}`));
  },
};

/** Returns a sample as a session. `head` is the field `eval` of its log, and `at` the path of the sample in the file. */
export function inspectRecording(head: unknown, value: unknown, source: RecordingSource, at: string): Recording {
  const evaluation: Eval = parseAs(evalSchema, head, source.where, 'eval');
  const sample: Sample = parseAs(sampleSchema, value, source.where, at);
  const scores = Object.entries(sample.scores ?? {});
  const components = Object.fromEntries(scores.flatMap(([name, { value: score }]) => componentsOf(name, score)));
  const reward = Object.values(components)[0] ?? null;
  const endedMs = timeOf(sample.completed_at) ?? source.modifiedMs;
  const totalMs = (sample.total_time ?? 0) * 1000;
  const group = `${evaluation.task}.${sample.id}`;
  return foreignRecording({
    source,
    format: 'inspect',
    lacks: reward === null ? ['a reward', ...LACKS] : LACKS,
    harness: 'inspect',
    session: sample.uuid ?? `${group}.${evaluation.eval_id ?? ''}.${sample.epoch}`,
    task: evaluation.eval_id == null ? group : `${group}.${evaluation.eval_id}`,
    sampleIndex: Math.max(0, sample.epoch - 1),
    outcome: outcomeOf(sample),
    reward,
    components,
    details: Object.fromEntries(
      scores.flatMap(([name, { explanation }]) => (explanation == null ? [] : [[name, explanation]])),
    ),
    error: sample.error?.message ?? null,
    timing: { running_ms: totalMs, total_ms: totalMs },
    metadata: {
      ...sample.metadata,
      data_source: evaluation.task,
      model: evaluation.model,
      target: sample.target ?? null,
    },
    trajectory: null,
    conversations: conversationsOf(sample, endedMs),
    endedMs,
  });
}

/** Scores in letters: correct, partially correct, incorrect and no answer. */
const LETTERS: Readonly<Record<string, number>> = { C: 1, P: 0.5, I: 0, N: 0 };

/** Returns a score as components of a reward, one for each part of the score. A part that is not a number becomes `null`. */
function componentsOf(name: string, score: unknown): [string, number | null][] {
  if (isRecord(score)) return Object.entries(score).flatMap(([part, value]) => componentsOf(`${name}.${part}`, value));
  if (typeof score === 'boolean') return [[name, score ? 1 : 0]];
  if (typeof score === 'string') return [[name, LETTERS[score] ?? null]];
  return [[name, typeof score === 'number' ? score : null]];
}

function outcomeOf({ error, limit }: Sample): Outcome {
  if (error != null) return 'agent_error';
  switch (limit?.type) {
    case undefined:
      return 'completed';
    case 'context':
      return 'truncated_context';
    case 'time':
    case 'working':
      return 'agent_timeout';
    default:
      return 'truncated_turns';
  }
}

/** Returns the final conversation, and each other model call with its own request. */
function conversationsOf(sample: Sample, atMs: number): Conversation[] {
  const events = sample.events.flatMap((event) => {
    const model = modelEventSchema.safeParse(event);
    return model.success && model.data.output.choices.length > 0 ? [model.data] : [];
  });
  const byReply = new Map(events.map((event) => [event.output.choices[0]?.message.id ?? '', event]));
  const text = attachmentFiller(sample.attachments);
  const replyIds = sample.messages.filter(({ role }) => role === 'assistant').map(({ id }) => id ?? '');
  const main = conversationOf('main', events[0]?.tools ?? []);
  const calls = repliesOf(sample.messages.map((message) => shown(message, text))).map((reply, index) => {
    const id = replyIds[index] ?? '';
    return callOf(reply, byReply.get(id), id || `main.${index}`, index, atMs);
  });
  const used = new Set(replyIds);
  const others = events
    .filter(({ output }) => !used.has(output.choices[0]?.message.id ?? ''))
    .flatMap((event, index): Conversation[] => {
      const reply = shown(event.output.choices[0]?.message as Message, text);
      if (reply.role !== 'assistant') return [];
      const messages = inputOf(event, sample).map((message) => shown(message, text));
      const name = event.role ?? 'other';
      const call = callOf({ messages, message: reply }, event, `${name}.${index}`, 0, atMs);
      return [{ ...conversationOf(name, event.tools), callKind: 'subagent', calls: [call] }];
    });
  return [{ ...main, calls }, ...others];
}

function conversationOf(thread: string, tools: ModelEvent['tools']): Omit<Conversation, 'calls'> {
  const shownTools = tools.map(
    ({ name, description, parameters }): ChatTool => ({
      type: 'function',
      function: {
        name,
        ...(description == null ? {} : { description }),
        ...(parameters == null ? {} : { parameters }),
      },
    }),
  );
  return { thread, callKind: 'main', tools: shownTools, capture: UNKNOWN_CAPTURE };
}

function callOf(
  { messages, message }: Pick<RecordedCall, 'messages' | 'message'>,
  event: ModelEvent | undefined,
  id: string,
  index: number,
  atMs: number,
): RecordedCall {
  const { usage, time, model, choices } = event?.output ?? outputSchema.parse({});
  const reason = choices[0]?.stop_reason;
  return {
    id,
    messages,
    message,
    tokens: null,
    model,
    usage:
      usage == null
        ? null
        : {
            prompt_tokens: usage.input_tokens + (usage.input_tokens_cache_read ?? 0),
            completion_tokens: usage.output_tokens,
            cached_tokens: usage.input_tokens_cache_read ?? null,
          },
    atMs: timeOf(event?.timestamp) ?? atMs,
    durationMs: (time ?? 0) * 1000,
    finishReason:
      reason === 'tool_calls' ? 'tool_calls' : reason === 'max_tokens' || reason === 'model_length' ? 'length' : 'stop',
    link: index === 0 ? 'root' : 'exact',
    drift: null,
  };
}

/** Returns the messages of a request. A log contains each message only once, and requests refer to ranges of messages. */
function inputOf({ input, input_refs: refs }: ModelEvent, { events_data: data }: Sample): Message[] {
  const all = data?.messages ?? [];
  return refs == null ? input : refs.flatMap(([start, end]) => all.slice(start, end));
}

/** Returns a function that replaces references to attachments in a text. A log stores a long text only once, as an attachment. */
function attachmentFiller(attachments: Sample['attachments']): (text: string) => string {
  return (text) =>
    text.replaceAll(/attachment:\/\/([0-9a-f]{32})/g, (reference, id: string) => attachments[id] ?? reference);
}

function shown(message: Message, text: (text: string) => string): ChatMessage {
  const { role, content, tool_calls: calls, tool_call_id: id } = message;
  const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
  if (role === 'assistant') {
    const ofType = (type: string, field: string): string =>
      parts
        .flatMap((part) => (part.type === type ? [text(String((part as Record<string, unknown>)[field] ?? ''))] : []))
        .join('');
    const thinking = ofType('reasoning', 'reasoning');
    const toolCalls = (calls ?? []).map((call) => ({
      id: call.id,
      type: 'function' as const,
      function: { name: call.function, arguments: text(JSON.stringify(call.arguments ?? {})) },
    }));
    return {
      role,
      content: ofType('text', 'text'),
      ...(thinking === '' ? {} : { reasoning_content: thinking }),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    };
  }
  const shownContent: Content = typeof content === 'string' ? text(content) : content.map((part) => partOf(part, text));
  return role === 'tool' ? { role, tool_call_id: id ?? '', content: shownContent } : { role, content: shownContent };
}

function partOf(part: z.output<typeof partSchema>, text: (text: string) => string): ContentPart {
  if (part.type === 'text') return { type: 'text', text: text(String(part.text ?? '')) };
  if (part.type === 'image') return { type: 'image_url', image_url: { url: text(String(part.image ?? '')) } };
  return { type: 'text', text: text(JSON.stringify(part)) };
}
