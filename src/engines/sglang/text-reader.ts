import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import { assistantMessage, besideCalls } from '../assistant-message.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';

const reasoningSchema = z.looseObject({ reasoning_text: z.string().nullish(), text: z.string().nullish() });

export const parsedCallsSchema = z.looseObject({
  normal_text: z.string().nullish(),
  calls: z.array(z.looseObject({ name: z.string(), parameters: z.string() })),
});

/** The server's parsers, by name; null: it has none, and text is text. */
export type Parsers = { readonly tools: string | null; readonly reasoning: string | null };

/** Kimi's templates show ids of calls, which count all calls of the conversation; every other model's call ids are arbitrary. */
const COUNTED_IDS = 'kimi_k2';

/** Reads messages out of sampled text by the server's own parsers. */
export class TextReader {
  private readonly server: EngineServer;
  private readonly parsers: Parsers;
  /** What the template has opened before the reply begins, a thinking block for instance. */
  private readonly opening: string;

  constructor(server: EngineServer, parsers: Parsers, opening: string) {
    this.server = server;
    this.parsers = parsers;
    this.opening = opening;
  }

  /** `text` has its delimiters and is without what stopped it. Thinking goes first: a call that is drafted there is none. */
  async read(text: string, request: GenerateRequest, signal: AbortSignal): Promise<AssistantMessage> {
    const thought = await this.thinking(text, request, signal);
    const { content, calls } = await this.calls(thought.rest, request, signal);
    return assistantMessage(besideCalls(content, calls), thought.reasoning, calls);
  }

  private async thinking(
    text: string,
    request: GenerateRequest,
    signal: AbortSignal,
  ): Promise<{ reasoning: string; rest: string }> {
    const { reasoning } = this.parsers;
    if (reasoning === null) return { reasoning: '', rest: text };
    const body = JSON.stringify({ text: this.opening + text, reasoning_parser: reasoning });
    const parsed = await this.parse('/separate_reasoning', body, request, reasoningSchema, signal);
    return parsed === null
      ? { reasoning: '', rest: text }
      : { reasoning: parsed.reasoning_text ?? '', rest: parsed.text ?? '' };
  }

  private async calls(
    text: string,
    request: GenerateRequest,
    signal: AbortSignal,
  ): Promise<{ content: string; calls: ToolCall[] }> {
    const { tools } = this.parsers;
    if (tools === null || request.tools.length === 0 || request.toolChoice === 'none')
      return { content: text, calls: [] };
    const head = JSON.stringify({ text, tool_call_parser: tools });
    const body = `${head.slice(0, -1)},"tools":${request.toolsText}}`;
    const parsed = await this.parse('/parse_function_call', body, request, parsedCallsSchema, signal);
    if (parsed === null) return { content: text, calls: [] };
    const earlier = tools === COUNTED_IDS ? countCalls(request.messageTexts) : 0;
    const calls = parsed.calls.map(
      ({ name, parameters }, index): ToolCall => ({
        id: tools === COUNTED_IDS ? `functions.${name}:${earlier + index}` : `call_${request.completionId}_${index}`,
        type: 'function',
        function: { name, arguments: parameters },
      }),
    );
    return { content: parsed.normal_text ?? '', calls };
  }

  /** Null when the parser fails on the text, as it does on some malformed calls: chat completions leave it as it is then. */
  private async parse<T extends z.ZodType>(
    path: string,
    body: string,
    names: GenerateRequest,
    schema: T,
    signal: AbortSignal,
  ): Promise<z.output<T> | null> {
    try {
      return await this.server.call(path, body, names, schema, signal);
    } catch (error) {
      const status = FloeError.is(error) ? error.details.status : undefined;
      if (status === 400 || status === 500) return null;
      throw error;
    }
  }
}

/** Ids that a server counted without seeing the conversation, counted anew. */
export function withCountedIds(
  message: AssistantMessage,
  parsers: Parsers,
  request: GenerateRequest,
): AssistantMessage {
  if (parsers.tools !== COUNTED_IDS || message.tool_calls === undefined) return message;
  const earlier = countCalls(request.messageTexts);
  const calls = message.tool_calls.map((call, index) => ({
    ...call,
    id: `functions.${call.function.name}:${earlier + index}`,
  }));
  return { ...message, tool_calls: calls };
}

const callsSchema = z.looseObject({ role: z.literal('assistant'), tool_calls: z.array(z.unknown()) });

function countCalls(messageTexts: readonly string[]): number {
  let count = 0;
  for (const text of messageTexts) {
    const parsed = callsSchema.safeParse(JSON.parse(text));
    if (parsed.success) count += parsed.data.tool_calls.length;
  }
  return count;
}
