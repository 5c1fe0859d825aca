import type { ChatMessage, ChatTool } from '../../schema/index.ts';
import { sameJson } from './same-json.ts';

/** A prompt's buffer is made this much larger than the prompt, so that the next turns fit behind it. */
const GROWTH = 1.5;

/** Kept of a session's requests, in characters: one of the largest. Agents name their threads themselves, as many as they like. */
const MAX_KEPT_CHARS = 64 * 1024 * 1024;

export type RequestTexts = {
  readonly messages: readonly ChatMessage[];
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
};

type Thread = { request: RequestTexts; chars: number; prompts: Int32Array; promptLength: number };

/**
 * A harness sends its whole history at every turn. Here what a request repeats of the one before it in the same agent thread
 * is kept once: equal messages and tools become the same objects, and a prompt that extends the last becomes a longer view of
 * the same buffer. The memory of a session is then that of its longest turn, not the sum of all.
 */
export class TurnMemory {
  /** Latest request last. */
  private readonly threads = new Map<string, Thread>();
  private keptChars = 0;
  /** What goes on from a reply by its id has the messages before it as they are. */
  private readonly texts = new WeakMap<ChatMessage, string>();

  /** The request with its JSON texts, sharing what it repeats. */
  request(threadName: string, messages: readonly ChatMessage[], tools: readonly ChatTool[]): RequestTexts {
    const thread = this.thread(threadName);
    const { request: last } = thread;
    const own: ChatMessage[] = new Array(messages.length);
    const texts: string[] = new Array(messages.length);
    for (let i = 0; i < messages.length; i++) {
      const message = messages[i] as ChatMessage;
      const same = sameJson(message, last.messages[i]);
      own[i] = same ? (last.messages[i] as ChatMessage) : message;
      texts[i] = same ? (last.messageTexts[i] as string) : this.textOf(message);
    }
    const sameTools = sameJson(tools, last.tools);
    thread.request = {
      messages: own,
      messageTexts: texts,
      tools: sameTools ? last.tools : tools,
      toolsText: sameTools ? last.toolsText : JSON.stringify(tools),
    };
    this.remember(threadName, thread);
    return thread.request;
  }

  /** The same ids, in a buffer shared with the thread's earlier prompts where they begin with the last one. */
  prompt(threadName: string, ids: Int32Array): Int32Array {
    const thread = this.thread(threadName);
    const { promptLength: kept } = thread;
    const extendsLast = ids.length >= kept && sameIds(ids.subarray(0, kept), thread.prompts.subarray(0, kept));
    if (!extendsLast || ids.length > thread.prompts.length) {
      thread.prompts = new Int32Array(Math.ceil(ids.length * GROWTH));
      thread.prompts.set(ids);
    } else {
      thread.prompts.set(ids.subarray(kept), kept);
    }
    thread.promptLength = ids.length;
    return thread.prompts.subarray(0, ids.length);
  }

  private textOf(message: ChatMessage): string {
    const known = this.texts.get(message);
    if (known !== undefined) return known;
    const text = JSON.stringify(message);
    this.texts.set(message, text);
    return text;
  }

  /** Forgets the threads that were longest without a request, when together they are too large. */
  private remember(name: string, thread: Thread): void {
    const { messageTexts, toolsText } = thread.request;
    this.keptChars -= thread.chars;
    thread.chars = messageTexts.reduce((sum, text) => sum + text.length, toolsText.length);
    this.keptChars += thread.chars;
    this.threads.delete(name);
    this.threads.set(name, thread);
    for (const [oldest, { chars }] of this.threads) {
      if (this.keptChars <= MAX_KEPT_CHARS || oldest === name) break;
      this.threads.delete(oldest);
      this.keptChars -= chars;
    }
  }

  private thread(name: string): Thread {
    const known = this.threads.get(name);
    if (known !== undefined) return known;
    const fresh: Thread = {
      request: { messages: [], messageTexts: [], tools: [], toolsText: '[]' },
      chars: 0,
      prompts: new Int32Array(0),
      promptLength: 0,
    };
    this.threads.set(name, fresh);
    return fresh;
  }
}

function sameIds(a: Int32Array, b: Int32Array): boolean {
  return Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));
}
