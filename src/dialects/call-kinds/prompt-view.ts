import { createHash } from 'node:crypto';
import type { ChatMessage, ChatTool, Content, ResponseFormat } from '../../schema/index.ts';
import { objectSchema } from './object-schema.ts';

/** Enough of a digest to tell the threads of one session apart. */
const DIGEST_DIGITS = 16;

/** Longest agent thread name: a UUID with room to spare. Names come from a sandboxed agent and are stored with every call. */
export const MAX_THREAD_CHARS = 128;
const PLAIN_NAME = /^[\x21-\x7e]+$/;

/** The agent that the task was given to. */
export const MAIN_THREAD = 'main';

export type Prompt = {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly responseFormat: ResponseFormat | undefined;
};

/** A prompt as the rules look at it. */
export class CallView {
  readonly toolCount: number;
  /** Text of the leading system message; empty without one. */
  readonly system: string;
  private readonly prompt: Prompt;

  constructor(prompt: Prompt) {
    this.prompt = prompt;
    this.toolCount = prompt.tools.length;
    const first = prompt.messages[0];
    this.system = first?.role === 'system' ? textOf(first.content) : '';
  }

  hasTool(name: string): boolean {
    return this.prompt.tools.some((tool) => tool.function.name === name);
  }

  /** Text of the last message where that is the user's; empty otherwise, as it is when the last message is a tool result. */
  lastUserText(): string {
    const last = this.prompt.messages.at(-1);
    return last?.role === 'user' ? textOf(last.content) : '';
  }

  /** Whether the conversation holds a reply. */
  isAnswered(): boolean {
    return this.prompt.messages.some(({ role }) => role === 'assistant');
  }

  /** Whether the reply is to be a JSON object with exactly these fields, or one of them that is the only tool's arguments. */
  asksFor(...fields: readonly string[]): boolean {
    const asked = objectSchema.safeParse(this.askedSchema());
    if (!asked.success) return false;
    const names = Object.keys(asked.data.properties);
    return names.length === fields.length && fields.every((field) => names.includes(field));
  }

  /**
   * A name for an agent that has none: by its system prompt and the first message to it, which it sends with each request
   * and shares with another agent only when both have the same task. Tools do not count: they may change as it works.
   */
  threadName(): string {
    const first = this.prompt.messages.find(({ role }) => role === 'user');
    return `subagent-${digestOf(JSON.stringify([this.system, first?.content ?? '']))}`;
  }

  private askedSchema(): unknown {
    const { responseFormat, tools } = this.prompt;
    if (tools.length === 0) return responseFormat?.type === 'json_schema' ? responseFormat.json_schema.schema : null;
    // Qwen Code asks for JSON by a tool that must be called.
    const [only] = tools;
    return tools.length === 1 && only?.function.name === 'respond_in_schema' ? only.function.parameters : null;
  }
}

/** The thread of an agent that a header names. One that is too long, odd, or the main agent's goes by its digest. */
export function threadOfId(id: string): string {
  const plain = id.length <= MAX_THREAD_CHARS && PLAIN_NAME.test(id) && id !== MAIN_THREAD;
  return plain ? id : `subagent-${digestOf(id)}`;
}

function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, DIGEST_DIGITS);
}

function textOf(content: Content): string {
  if (typeof content === 'string') return content;
  return content.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n');
}
