import type { ChatMessage, ChatTool } from '../schema/index.ts';

/** A prompt's buffer is made this much larger than the prompt, so that the next turns fit behind it. */
const GROWTH = 1.5;

export type RequestTexts = {
  readonly messages: readonly ChatMessage[];
  readonly messageTexts: readonly string[];
  readonly tools: readonly ChatTool[];
  readonly toolsText: string;
};

type Thread = { request: RequestTexts; prompts: Int32Array; promptLength: number };

/**
 * A harness sends its whole history at every turn. Here what a request repeats of the one before it in the same agent thread
 * is kept once: equal messages and tools become the same objects, and a prompt that extends the last becomes a longer view of
 * the same buffer. The memory of a session is then that of its longest turn, not the sum of all.
 */
export class TurnMemory {
  private readonly threads = new Map<string, Thread>();

  /** The request with its JSON texts, sharing what it repeats. */
  request(threadName: string, messages: readonly ChatMessage[], tools: readonly ChatTool[]): RequestTexts {
    const thread = this.thread(threadName);
    const { request: last } = thread;
    const own: ChatMessage[] = new Array(messages.length);
    const texts: string[] = new Array(messages.length);
    for (let i = 0; i < messages.length; i++) {
      const message = messages[i] as ChatMessage;
      const text = JSON.stringify(message);
      const same = text === last.messageTexts[i];
      own[i] = same ? (last.messages[i] as ChatMessage) : message;
      texts[i] = same ? (last.messageTexts[i] as string) : text;
    }
    const toolsText = JSON.stringify(tools);
    const sameTools = toolsText === last.toolsText;
    thread.request = {
      messages: own,
      messageTexts: texts,
      tools: sameTools ? last.tools : tools,
      toolsText: sameTools ? last.toolsText : toolsText,
    };
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

  private thread(name: string): Thread {
    const known = this.threads.get(name);
    if (known !== undefined) return known;
    const fresh: Thread = {
      request: { messages: [], messageTexts: [], tools: [], toolsText: '' },
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
