/** Parses the JSON objects of a server-sent event stream, without the closing `[DONE]`. */
export function events(text: string): Chunk[] {
  const lines = text.split('\n\n').filter((line) => line !== '');
  return lines
    .map((line) => line.replace(/^data: /, ''))
    .filter((data) => data !== '[DONE]')
    .map((data) => JSON.parse(data));
}

/** The fields of a choice that tests use, in complete replies and in chunks of a stream. */
export type Choice = {
  index: number;
  text: string;
  message: Message;
  delta: Partial<Message>;
  logprobs: {
    content: { token: string; logprob: number; bytes: number[]; top_logprobs: { logprob: number }[] }[];
  } | null;
  finish_reason: string | null;
  stop_reason: string | number | null;
  token_ids?: number[];
  prompt_token_ids?: number[];
  weight_versions?: { version: string; start: number; end: number }[];
};

export type Message = {
  role: string;
  content: string | null;
  reasoning: string | null;
  /** Tool calls of the message. Complete replies without calls do not have this field. */
  tool_calls: { index?: number; id: string; type: string; function: { name: string; arguments: string } }[];
};

export type Chunk = {
  id: string;
  object: string;
  model: string;
  choices: Choice[];
  prompt_token_ids?: number[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    prompt_tokens_details?: { cached_tokens: number };
  };
  error?: { message: string; type: string; param: string | null; code: number };
};

export async function post(url: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(url, { method: 'POST', body: JSON.stringify(body), headers });
}

type CallPart = { index?: number; id?: string; type?: string; function: { name?: string; arguments?: string } };

/** Assembles tool calls from their parts. The first part of a call has its id and name. */
function joinedCalls(parts: readonly CallPart[]): Message['tool_calls'] {
  const calls: Message['tool_calls'] = [];
  for (const { index = 0, id, type, function: piece } of parts) {
    const known = calls[index];
    if (known !== undefined) known.function.arguments += piece.arguments ?? '';
    else {
      if (id === undefined || type !== 'function' || piece.name === undefined)
        throw new Error('the first part of a call has no name');
      calls[index] = { index, id, type, function: { name: piece.name, arguments: piece.arguments ?? '' } };
    }
  }
  return calls;
}

/** Assembles one choice from the chunks of a stream, as a client does. */
export function assembled(chunks: readonly Chunk[], index = 0): Choice & { promptIds: number[] | undefined } {
  const parts = chunks.flatMap(({ choices }) => choices.filter((choice) => choice.index === index));
  const last = parts.at(-1);
  if (last === undefined) throw new Error(`no chunk of choice ${index}`);
  const join = (field: 'content' | 'reasoning'): string | null => {
    const texts = parts.flatMap(({ delta }) => delta[field] ?? []);
    return texts.join('') === '' ? null : texts.join('');
  };
  const logprobs = parts.flatMap((part) => part.logprobs?.content ?? []);
  return {
    ...last,
    message: {
      role: parts[0]?.delta.role ?? '',
      content: join('content'),
      reasoning: join('reasoning'),
      tool_calls: joinedCalls(parts.flatMap(({ delta }) => delta.tool_calls ?? [])),
    },
    logprobs: logprobs.length > 0 ? { content: logprobs } : null,
    token_ids: parts.flatMap(({ token_ids }) => token_ids ?? []),
    promptIds: chunks.find(({ prompt_token_ids }) => prompt_token_ids !== undefined)?.prompt_token_ids,
  };
}
