import {
  type AssistantMessage,
  type Capture,
  type ChatMessage,
  type ChatTool,
  type CompletionRecord,
  samplingSchema,
  type Trace,
  type Usage,
} from '@floe-rl/core/schema';

/** The capture of calls in files that do not state how the calls were prompted. */
export const UNKNOWN_CAPTURE: Capture = {
  mode: 'chat',
  logprobs_mode: null,
  thinking_retention: 'template',
  spliced_onto: null,
  rendered_because: null,
};

/** The data of one model call in a file. */
export type RecordedCall = {
  readonly id: string;
  /** Messages of the request that come after the previous call's reply; all messages for the first call. */
  readonly messages: readonly ChatMessage[];
  readonly message: AssistantMessage;
  /** The tokens of the reply, and the ids between the previous reply and this one. `null` when the file does not have them. */
  readonly tokens: RecordedTokens | null;
  readonly model: string;
  /** `null` when the file does not state it. */
  readonly usage: Usage | null;
  /** Unix time in milliseconds at which the call began. */
  readonly atMs: number;
  /** Duration of the call in milliseconds; 0 when the file does not state it. */
  readonly durationMs: number;
  readonly finishReason: CompletionRecord['finish_reason'];
  readonly link: CompletionRecord['link'];
  readonly drift: CompletionRecord['drift'];
};

export type RecordedTokens = Pick<CompletionRecord, 'response_ids' | 'response_logprobs' | 'version_spans'> & {
  readonly between: readonly number[];
};

/** Calls of one session that continue each other. */
export type Conversation = {
  readonly thread: string;
  readonly callKind: CompletionRecord['call_kind'];
  readonly tools: readonly ChatTool[];
  readonly capture: Capture;
  readonly calls: readonly RecordedCall[];
};

/** The call that the next call continues, the number of messages of its request, and the number of ids of its prompt and reply. */
type Base = { readonly record: CompletionRecord; readonly messages: number; readonly ids: number };

/**
 * Returns the records of a session's calls, in the order of the conversations. A call whose id occurs in an earlier conversation is left out.
 */
export function recordsOf(sessionId: string, conversations: readonly Conversation[]): CompletionRecord[] {
  const records = new Map<string, CompletionRecord>();
  for (const conversation of conversations) {
    let base: Base | null = null;
    for (const call of conversation.calls) {
      const record: CompletionRecord =
        records.get(call.id) ?? recordOf(sessionId, records.size, conversation, call, base);
      records.set(call.id, record);
      base = afterCall(base, call, record);
    }
  }
  return [...records.values()];
}

function afterCall(base: Base | null, { messages }: RecordedCall, record: CompletionRecord): Base {
  const added = record.prompt.ids.length + record.response_ids.length;
  if (base === null) return { record, messages: messages.length, ids: added };
  return { record, messages: base.messages + 1 + messages.length, ids: base.ids + added };
}

function recordOf(
  sessionId: string,
  index: number,
  { thread, callKind, tools, capture }: Conversation,
  call: RecordedCall,
  base: Base | null,
): CompletionRecord {
  const { tokens, usage } = call;
  const promptTokens = (base?.ids ?? 0) + (tokens?.between.length ?? 0);
  return {
    completion_id: call.id,
    session_id: sessionId,
    attempt: 1,
    index,
    timestamp: new Date(call.atMs).toISOString(),
    dialect: 'openai_chat',
    call_kind: callKind,
    thread,
    request: {
      base: base?.record.completion_id ?? null,
      keep: base?.messages ?? 0,
      messages: base === null ? [...call.messages] : [base.record.message, ...call.messages],
      images: {},
      tools: base === null ? [...tools] : null,
      sampling_asked: {},
      tool_choice: null,
      parallel_tool_calls: null,
      sampling: samplingSchema.parse({}),
      constraint: null,
      adjusted: [],
    },
    prompt: { base: base?.record.completion_id ?? null, keep: base?.ids ?? 0, ids: [...(tokens?.between ?? [])] },
    link: call.link,
    drift: call.drift,
    capture,
    response_ids: tokens?.response_ids ?? [],
    response_logprobs: tokens?.response_logprobs ?? [],
    version_spans: tokens?.version_spans ?? [],
    routed_experts: null,
    message: call.message,
    engine_call_ids: [],
    finish_reason: call.finishReason,
    stop: null,
    engine_id: 'unknown',
    model: call.model,
    usage: usage ?? {
      prompt_tokens: promptTokens,
      completion_tokens: tokens?.response_ids.length ?? 0,
      cached_tokens: null,
    },
    timings: { engine_ms: call.durationMs, total_ms: call.durationMs },
    abandoned: false,
    auxiliary: false,
    undelivered: false,
  };
}

/** A reply of a conversation with the messages since the reply before it. */
export type Reply = { readonly messages: readonly ChatMessage[]; readonly message: AssistantMessage };

/** Divides a conversation at the replies of the model. Messages after the last reply are left out. */
export function repliesOf(messages: readonly ChatMessage[]): Reply[] {
  const replies: Reply[] = [];
  let since: ChatMessage[] = [];
  for (const message of messages) {
    if (message.role !== 'assistant') {
      since.push(message);
      continue;
    }
    replies.push({ messages: since, message });
    since = [];
  }
  return replies;
}

/**
 * Returns the tokens of each reply of a trace; `null` when they cannot be found, because the trace does not state which of its tokens belong
 * to which reply. Each trained reply is a run of the loss mask.
 */
export function tokensOf(trace: Trace, replies: number): RecordedTokens[] | null {
  const { loss_mask: mask, prompt_ids: prompt, response_ids: ids, response_logprobs: logprobs } = trace;
  const tokens: RecordedTokens[] = [];
  let end = 0;
  for (let start = mask.indexOf(1); start >= 0; start = mask.indexOf(1, end)) {
    const between = [...(end === 0 ? prompt : []), ...ids.slice(end, start)];
    const next = mask.indexOf(0, start);
    end = next < 0 ? mask.length : next;
    tokens.push({
      between,
      response_ids: ids.slice(start, end),
      response_logprobs: logprobs.slice(start, end),
      version_spans: spansWithin(trace, start, end),
    });
  }
  return tokens.length === replies ? tokens : null;
}

function spansWithin({ version_spans: spans }: Trace, from: number, to: number): Trace['version_spans'] {
  return spans
    .filter(({ start, end }) => start < to && end > from)
    .map(({ version, start, end }) => ({
      version,
      start: Math.max(start, from) - from,
      end: Math.min(end, to) - from,
    }));
}
