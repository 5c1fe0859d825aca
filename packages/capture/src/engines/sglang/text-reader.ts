import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';
import { assistantMessage, contentWithCalls } from '../chat/messages.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';

const separatedSchema = z.looseObject({ reasoning_text: z.string().nullish(), text: z.string().nullish() });

const parsedCallsSchema = z.looseObject({
  normal_text: z.string().nullish(),
  calls: z.array(z.looseObject({ name: z.string(), parameters: z.string() })),
});

/**
 * Names of the server's parsers of tool calls and of thinking; `null` when the server has no such parser. The corresponding parts of a
 * reply then stay in its text.
 */
export type Parsers = { readonly tools: string | null; readonly reasoning: string | null };

/**
 * Name of the parser of Kimi's models. Their templates render the ids of tool calls, which must number all tool calls of the conversation.
 * With other parsers any ids may be used.
 */
const COUNTED_IDS_PARSER = 'kimi_k2';

/** Parses messages from sampled text with the server's own parsers. */
export class TextReader {
  private readonly server: EngineServer;
  private readonly parsers: Parsers;
  /** Text at the end of the prompt that the reasoning parser needs in front of a reply, such as the opening of a thinking block. */
  private readonly opening: string;

  constructor(server: EngineServer, parsers: Parsers, opening: string) {
    this.server = server;
    this.parsers = parsers;
    this.opening = opening;
  }

  /**
   * Parses the message in `text`, which contains its special tokens, but not the stop token or stop string that ended it. Thinking is
   * separated first, because a tool call that is only drafted within thinking is not a tool call.
   */
  async read(text: string, request: GenerateRequest, signal: AbortSignal): Promise<AssistantMessage> {
    const { reasoning, rest } = await this.splitThinking(text, request, signal);
    const { content, calls } = await this.splitCalls(rest, request, signal);
    return assistantMessage(contentWithCalls(content, calls), reasoning, calls);
  }

  private async splitThinking(
    text: string,
    request: GenerateRequest,
    signal: AbortSignal,
  ): Promise<{ reasoning: string; rest: string }> {
    const { reasoning: parser } = this.parsers;
    if (parser === null) return { reasoning: '', rest: text };
    const body = JSON.stringify({ text: this.opening + text, reasoning_parser: parser });
    const parsed = await this.parse('/separate_reasoning', body, request, separatedSchema, signal);
    return parsed === null
      ? { reasoning: '', rest: text }
      : { reasoning: parsed.reasoning_text ?? '', rest: parsed.text ?? '' };
  }

  private async splitCalls(
    text: string,
    request: GenerateRequest,
    signal: AbortSignal,
  ): Promise<{ content: string; calls: ToolCall[] }> {
    const { tools } = this.parsers;
    if (tools === null || request.tools.length === 0 || request.toolChoice === 'none') {
      return { content: text, calls: [] };
    }
    const head = JSON.stringify({ text, tool_call_parser: tools });
    const body = `${head.slice(0, -1)},"tools":${request.toolsText}}`;
    const parsed = await this.parse('/parse_function_call', body, request, parsedCallsSchema, signal);
    if (parsed === null) return { content: text, calls: [] };
    const earlierCalls = tools === COUNTED_IDS_PARSER ? countCalls(request.messageTexts) : 0;
    const calls = parsed.calls.map(
      ({ name, parameters }, index): ToolCall => ({
        id:
          tools === COUNTED_IDS_PARSER
            ? `functions.${name}:${earlierCalls + index}`
            : `call_${request.completionId}_${index}`,
        type: 'function',
        function: { name, arguments: parameters },
      }),
    );
    return { content: parsed.normal_text ?? '', calls };
  }

  /**
   * Sends text to one of the server's parsers. Resolves with `null` when the parser fails, as it does on some malformed tool calls.
   * SGLang's own chat completions leave such text unparsed too.
   */
  private async parse<T extends z.ZodType>(
    path: string,
    body: string,
    request: GenerateRequest,
    schema: T,
    signal: AbortSignal,
  ): Promise<z.output<T> | null> {
    try {
      return await this.server.call(path, body, request, schema, signal);
    } catch (error) {
      const status = FloeError.is(error) ? error.details.status : undefined;
      if (status === 400 || status === 500) return null;
      throw error;
    }
  }
}

/**
 * Corrects the ids of tool calls for parsers that number the tool calls of a conversation. The server saw only this reply, so its numbers
 * start at 0. The corrected numbers count the calls of earlier messages as well.
 */
export function withCountedIds(
  message: AssistantMessage,
  parsers: Parsers,
  request: GenerateRequest,
): AssistantMessage {
  if (parsers.tools !== COUNTED_IDS_PARSER || message.tool_calls === undefined) return message;
  const earlierCalls = countCalls(request.messageTexts);
  const calls = message.tool_calls.map((call, index) => ({
    ...call,
    id: `functions.${call.function.name}:${earlierCalls + index}`,
  }));
  return { ...message, tool_calls: calls };
}

const assistantCallsSchema = z.looseObject({ role: z.literal('assistant'), tool_calls: z.array(z.unknown()) });

function countCalls(messageTexts: readonly string[]): number {
  let count = 0;
  for (const text of messageTexts) {
    const parsed = assistantCallsSchema.safeParse(JSON.parse(text));
    if (parsed.success) count += parsed.data.tool_calls.length;
  }
  return count;
}
