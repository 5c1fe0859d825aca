import type { DialectName } from '@floe-rl/core/schema';

export type ParsedCall = { readonly id: string; readonly name: string; readonly arguments: string };

/** An assistant turn as a client has parsed it from a reply. */
export type ParsedReply = { readonly reasoning: string; readonly text: string; readonly calls: readonly ParsedCall[] };

/** A turn of a conversation as an agent keeps it in its history. The form is the same for all dialects. */
export type ConversationTurn =
  | { readonly role: 'user'; readonly text: string }
  | { readonly role: 'assistant'; readonly parsed: ParsedReply }
  | { readonly role: 'results'; readonly results: readonly { readonly call: ParsedCall; readonly text: string }[] };

export type ChatRequest = {
  readonly system: string;
  readonly turns: readonly ConversationTurn[];
  readonly tools: readonly string[];
  readonly stop?: readonly string[];
  /** The tool that the reply must call: its name, or `any` for any of `tools`. */
  readonly forcedCall?: string;
  /** The JSON schema that the reply's text must satisfy. */
  readonly schema?: object;
  readonly stream: boolean;
};

/** A small test client of one API dialect, which writes requests and parses replies as an agent does. */
export type DialectClient = {
  readonly dialect: DialectName;
  write(ask: ChatRequest): { readonly path: string; readonly body: object };
  read(body: string, stream: boolean): ParsedReply;
};

const PARAMETERS = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };

/**
 * The type of parsed JSON replies. Tests read their fields without checking them first, so a missing field fails the test that reads it.
 */
// biome-ignore lint/suspicious/noExplicitAny: a client in a test trusts what it reads
type Foreign = any;

/** Returns the parsed JSON of every `data:` line of a server-sent-event stream. */
function eventsOf(body: string): Foreign[] {
  return body
    .split('\n')
    .filter((line) => line.startsWith('data:') && !line.includes('[DONE]'))
    .map((line) => JSON.parse(line.slice('data:'.length)));
}

const openaiChat: DialectClient = {
  dialect: 'openai_chat',
  write: ({ system, turns, tools, stop, forcedCall, schema, stream }) => ({
    path: '/v1/chat/completions',
    body: {
      model: 'policy',
      stream,
      ...(stop === undefined ? {} : { stop }),
      ...(forcedCall === undefined
        ? {}
        : { tool_choice: forcedCall === 'any' ? 'required' : { type: 'function', function: { name: forcedCall } } }),
      ...(schema === undefined
        ? {}
        : { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } }),
      tools: tools.map((name) => ({ type: 'function', function: { name, parameters: PARAMETERS } })),
      messages: [
        { role: 'system', content: system },
        ...turns.flatMap((turn): object[] => {
          if (turn.role === 'user') return [{ role: 'user', content: turn.text }];
          if (turn.role === 'results') {
            return turn.results.map(({ call, text }) => ({ role: 'tool', tool_call_id: call.id, content: text }));
          }
          const { reasoning, text, calls } = turn.parsed;
          return [
            {
              role: 'assistant',
              content: text === '' ? null : text,
              ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
              ...(calls.length === 0
                ? {}
                : {
                    tool_calls: calls.map(({ id, name, arguments: args }) => ({
                      id,
                      type: 'function',
                      function: { name, arguments: args },
                    })),
                  }),
            },
          ];
        }),
      ],
    },
  }),
  read(body, stream) {
    if (!stream) {
      const { message } = JSON.parse(body).choices[0];
      return {
        reasoning: message.reasoning_content ?? '',
        text: message.content ?? '',
        calls: (message.tool_calls ?? []).map((call: Foreign) => ({ id: call.id, ...call.function })),
      };
    }
    let reasoning = '';
    let text = '';
    const calls: { id: string; name: string; arguments: string }[] = [];
    for (const { choices } of eventsOf(body)) {
      const delta = choices[0]?.delta ?? {};
      reasoning += delta.reasoning_content ?? '';
      text += delta.content ?? '';
      for (const piece of delta.tool_calls ?? []) {
        calls[piece.index] ??= { id: piece.id, name: piece.function.name, arguments: '' };
        const call = calls[piece.index];
        if (call) call.arguments += piece.function.arguments ?? '';
      }
    }
    return { reasoning, text, calls };
  },
};

const anthropic: DialectClient = {
  dialect: 'anthropic',
  write: ({ system, turns, tools, stop, forcedCall, schema, stream }) => ({
    path: '/v1/messages',
    body: {
      model: 'policy',
      ...(stop === undefined ? {} : { stop_sequences: stop }),
      ...(forcedCall === undefined
        ? {}
        : { tool_choice: forcedCall === 'any' ? { type: 'any' } : { type: 'tool', name: forcedCall } }),
      ...(schema === undefined ? {} : { output_config: { format: { type: 'json_schema', schema } } }),
      max_tokens: 4_000,
      stream,
      system: [{ type: 'text', text: system }],
      tools: tools.map((name) => ({ name, input_schema: PARAMETERS })),
      messages: turns.map((turn) => {
        if (turn.role === 'user') return { role: 'user', content: [{ type: 'text', text: turn.text }] };
        if (turn.role === 'results') {
          return {
            role: 'user',
            content: turn.results.map(({ call, text }) => ({
              type: 'tool_result',
              tool_use_id: call.id,
              content: text,
            })),
          };
        }
        const { reasoning, text, calls } = turn.parsed;
        return {
          role: 'assistant',
          content: [
            ...(reasoning === '' ? [] : [{ type: 'thinking', thinking: reasoning, signature: 's' }]),
            ...(text === '' ? [] : [{ type: 'text', text }]),
            ...calls.map(({ id, name, arguments: args }) => ({ type: 'tool_use', id, name, input: JSON.parse(args) })),
          ],
        };
      }),
    },
  }),
  read(body, stream) {
    const blocks: Foreign[] = [];
    if (!stream) blocks.push(...JSON.parse(body).content);
    for (const event of stream ? eventsOf(body) : []) {
      if (event.type === 'content_block_start') blocks[event.index] = { ...event.content_block, json: '' };
      const block = blocks[event.index];
      if (event.type !== 'content_block_delta' || block === undefined) continue;
      if (event.delta.type === 'text_delta') block.text += event.delta.text;
      if (event.delta.type === 'thinking_delta') block.thinking += event.delta.thinking;
      if (event.delta.type === 'input_json_delta') block.json += event.delta.partial_json;
    }
    const join = (type: string, field: string) =>
      blocks.map((block) => (block.type === type ? block[field] : '')).join('');
    return {
      reasoning: join('thinking', 'thinking'),
      text: join('text', 'text'),
      calls: blocks
        .filter((block) => block.type === 'tool_use')
        .map(({ id, name, input, json }) => ({ id, name, arguments: json || JSON.stringify(input) })),
    };
  },
};

const openaiResponses: DialectClient = {
  dialect: 'openai_responses',
  write: ({ system, turns, tools, forcedCall, schema, stream }) => ({
    path: '/v1/responses',
    body: {
      model: 'policy',
      stream,
      store: false,
      ...(forcedCall === undefined
        ? {}
        : { tool_choice: forcedCall === 'any' ? 'required' : { type: 'function', name: forcedCall } }),
      ...(schema === undefined ? {} : { text: { format: { type: 'json_schema', name: 'answer', schema } } }),
      instructions: system,
      tools: tools.map((name) => ({ type: 'function', name, parameters: PARAMETERS, strict: false })),
      input: turns.flatMap((turn, index): object[] => {
        if (turn.role === 'user')
          return [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: turn.text }] }];
        if (turn.role === 'results') {
          return turn.results.map(({ call, text }) => ({
            type: 'function_call_output',
            call_id: call.id,
            output: text,
          }));
        }
        const { reasoning, text, calls } = turn.parsed;
        return [
          ...(reasoning === ''
            ? []
            : [{ type: 'reasoning', id: `rs_${index}`, summary: [{ type: 'summary_text', text: reasoning }] }]),
          ...(text === ''
            ? []
            : [
                {
                  type: 'message',
                  id: `msg_${index}`,
                  role: 'assistant',
                  content: [{ type: 'output_text', text, annotations: [] }],
                },
              ]),
          ...calls.map((call) => ({
            type: 'function_call',
            call_id: call.id,
            name: call.name,
            arguments: call.arguments,
          })),
        ];
      }),
    },
  }),
  read(body, stream) {
    const output: Foreign[] = stream
      ? eventsOf(body).flatMap((event) => (event.type === 'response.output_item.done' ? [event.item] : []))
      : JSON.parse(body).output;
    const texts = (parts: Foreign[] = []) => parts.map((part) => part.text).join('');
    return {
      reasoning: output.map((item) => (item.type === 'reasoning' ? texts(item.summary) : '')).join(''),
      text: output.map((item) => (item.type === 'message' ? texts(item.content) : '')).join(''),
      calls: output
        .filter((item) => item.type === 'function_call')
        .map((item) => ({ id: item.call_id, name: item.name, arguments: item.arguments })),
    };
  },
};

const gemini: DialectClient = {
  dialect: 'gemini',
  write: ({ system, turns, tools, stop, forcedCall, schema, stream }) => ({
    path: `/v1beta/models/policy:${stream ? 'streamGenerateContent?alt=sse' : 'generateContent'}`,
    body: {
      generationConfig: {
        ...(stop === undefined ? {} : { stopSequences: stop }),
        ...(schema === undefined ? {} : { responseMimeType: 'application/json', responseJsonSchema: schema }),
      },
      ...(forcedCall === undefined
        ? {}
        : {
            toolConfig: {
              functionCallingConfig: {
                mode: 'ANY',
                ...(forcedCall === 'any' ? {} : { allowedFunctionNames: [forcedCall] }),
              },
            },
          }),
      systemInstruction: { role: 'user', parts: [{ text: system }] },
      tools: [{ functionDeclarations: tools.map((name) => ({ name, parametersJsonSchema: PARAMETERS })) }],
      contents: turns.map((turn) => {
        if (turn.role === 'user') return { role: 'user', parts: [{ text: turn.text }] };
        if (turn.role === 'results') {
          return {
            role: 'user',
            parts: turn.results.map(({ call, text }) => ({
              functionResponse: { id: call.id, name: call.name, response: { output: text } },
            })),
          };
        }
        const { reasoning, text, calls } = turn.parsed;
        return {
          role: 'model',
          parts: [
            ...(reasoning === '' ? [] : [{ text: reasoning, thought: true }]),
            ...(text === '' ? [] : [{ text }]),
            ...calls.map(({ id, name, arguments: args }) => ({ functionCall: { id, name, args: JSON.parse(args) } })),
          ],
        };
      }),
    },
  }),
  read(body, stream) {
    const replies = stream ? eventsOf(body) : [JSON.parse(body)];
    const parts: Foreign[] = replies.flatMap((reply) => reply.candidates?.[0]?.content?.parts ?? []);
    const texts = (thought: boolean) =>
      parts
        .map((part) => (typeof part.text === 'string' && (part.thought ?? false) === thought ? part.text : ''))
        .join('');
    return {
      reasoning: texts(true),
      text: texts(false),
      calls: parts
        .filter((part) => part.functionCall)
        .map(({ functionCall: { id, name, args } }) => ({ id, name, arguments: JSON.stringify(args) })),
    };
  },
};

export const DIALECT_CLIENTS: readonly DialectClient[] = [openaiChat, openaiResponses, anthropic, gemini];
