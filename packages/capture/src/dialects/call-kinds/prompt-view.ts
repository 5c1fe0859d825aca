import { createHash } from 'node:crypto';
import { type ChatMessage, type ChatTool, contentText, type ResponseFormat } from '@floe-rl/core/schema';
import { z } from 'zod';
import { jsonObjectSchema } from '../json-object.ts';

/** Number of hexadecimal digits in a thread name that is a digest, enough to distinguish the agent threads of one session. */
const DIGEST_DIGITS = 16;

/**
 * Longest name of an agent thread, in characters. Names come from a sandboxed agent and are stored with every call; a UUID has 36
 * characters.
 */
const MAX_THREAD_CHARS = 128;
const PRINTABLE_NAME = /^[\x21-\x7e]+$/;

/** Thread name of the main agent, which received the task. Other thread names belong to sub-agents. */
export const MAIN_THREAD = 'main';

/** Matches the JSON Schema of an object, whose `properties` has one key for each field. */
const objectSchema = z.looseObject({ properties: jsonObjectSchema });

export type Prompt = {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly responseFormat: ResponseFormat | undefined;
};

/** The properties of a request that the rules of the harnesses use to classify it. */
export class PromptView {
  readonly toolCount: number;
  /** Text of the system message at the start; an empty string when there is no such message. */
  readonly system: string;
  private readonly prompt: Prompt;

  constructor(prompt: Prompt) {
    this.prompt = prompt;
    this.toolCount = prompt.tools.length;
    const first = prompt.messages[0];
    this.system = first?.role === 'system' ? contentText(first.content, { separator: '\n' }) : '';
  }

  hasTool(name: string): boolean {
    return this.prompt.tools.some((tool) => tool.function.name === name);
  }

  /** Returns the text of the last message when it is a user message; otherwise an empty string, also after a tool result. */
  lastUserText(): string {
    const last = this.prompt.messages.at(-1);
    return last?.role === 'user' ? contentText(last.content, { separator: '\n' }) : '';
  }

  /** Whether the conversation contains an assistant message. */
  hasReply(): boolean {
    return this.prompt.messages.some(({ role }) => role === 'assistant');
  }

  /** Whether the request requires a JSON object with exactly these fields, as its reply or as the arguments of its only tool. */
  requestsFields(...fields: readonly string[]): boolean {
    const schema = objectSchema.safeParse(this.requestedSchema());
    if (!schema.success) return false;
    const names = Object.keys(schema.data.properties);
    return names.length === fields.length && fields.every((field) => names.includes(field));
  }

  /**
   * Returns a thread name for a sub-agent without an id: a digest of its system prompt and its first user message. Each request of the
   * sub-agent contains both texts, and two sub-agents have equal texts only when they have the same task. Tools are not part of the digest
   * because they may change while the agent works.
   */
  threadName(): string {
    const first = this.prompt.messages.find(({ role }) => role === 'user');
    return `subagent-${digestOf(JSON.stringify([this.system, first?.content ?? '']))}`;
  }

  private requestedSchema(): unknown {
    const { responseFormat, tools } = this.prompt;
    if (tools.length === 0) return responseFormat?.type === 'json_schema' ? responseFormat.json_schema.schema : null;
    // Qwen Code requests JSON by offering a single tool that the model must call.
    const [only] = tools;
    return tools.length === 1 && only?.function.name === 'respond_in_schema' ? only.function.parameters : null;
  }
}

/**
 * Returns the thread name of an agent whose id is in a header. The id is replaced by its digest when it is too long, contains characters other
 * than printable ASCII, or equals the name of the main thread.
 */
export function threadOfId(id: string): string {
  const isUsable = id.length <= MAX_THREAD_CHARS && PRINTABLE_NAME.test(id) && id !== MAIN_THREAD;
  return isUsable ? id : `subagent-${digestOf(id)}`;
}

function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, DIGEST_DIGITS);
}
