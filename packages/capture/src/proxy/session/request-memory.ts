import { MIB } from '@floe-rl/core';
import type { ChatMessage, ChatTool } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { CompletionRequest } from '../../tokens/completion.ts';
import { sameIds } from '../../tokens/sequence.ts';

/** Size of a new prompt buffer relative to the prompt that it holds. The next turns are stored in the free part after the prompt. */
const GROWTH = 1.5;

/**
 * Maximum number of characters that the latest requests of all agent threads of a session may have together. One request of the maximum
 * size has this many. Without this limit, a session could fill the memory, because harnesses choose the number of threads freely.
 */
const MAX_KEPT_CHARS = 64 * MIB;

/** The parts of a request that are often equal in consecutive turns and are then stored only once. */
export type RequestTexts = Pick<CompletionRequest, 'messages' | 'messageTexts' | 'tools' | 'toolsText'>;

type Thread = { readonly request: RequestTexts; prompts: Int32Array; promptLength: number };

const NO_REQUEST: RequestTexts = { messages: [], messageTexts: [], tools: [], toolsText: '[]' };

/**
 * Stores the parts that consecutive requests of an agent thread have in common only once, since a harness sends its whole history at every
 * turn. Equal messages and tools become the same objects. When an engine reports a prompt that extends the previous prompt, the new prompt
 * becomes a longer view of the same buffer. A session then needs the memory of its longest turn instead of the sum of all turns. This class
 * holds only the latest request of each thread; `PrefixIndex` indexes all recorded turns.
 */
export class RequestMemory {
  private readonly threads = new LRUCache<string, Thread>({
    maxSize: MAX_KEPT_CHARS,
    sizeCalculation: ({ request }) => charsOf(request),
  });
  /**
   * The JSON texts of message objects. A request that continues a previous response contains recorded message objects, whose texts need not
   * be created a second time.
   */
  private readonly texts = new WeakMap<ChatMessage, string>();

  /**
   * Returns the request with its JSON texts. Messages and tools that are equal to messages and tools of the thread's previous request are
   * replaced by the previous objects.
   */
  request(threadName: string, messages: readonly ChatMessage[], tools: readonly ChatTool[]): RequestTexts {
    const thread = this.threads.get(threadName) ?? newThread();
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
    const request = {
      messages: own,
      messageTexts: texts,
      tools: sameTools ? last.tools : tools,
      toolsText: sameTools ? last.toolsText : JSON.stringify(tools),
    };
    // The entry is a new object, because `LRUCache` does not update the size when an entry is set to the object that it already holds.
    this.threads.set(threadName, { ...thread, request });
    return request;
  }

  /**
   * Returns the token ids, which must not be changed later. If they begin with the thread's last prompt, the result is a copy in a buffer that
   * the prompts of the thread share.
   */
  prompt(threadName: string, ids: Int32Array): Int32Array {
    let thread = this.threads.peek(threadName);
    if (thread === undefined) {
      thread = newThread();
      this.threads.set(threadName, thread);
    }
    const { promptLength: kept } = thread;
    const extendsLast = kept > 0 && ids.length >= kept && sameIds(ids, 0, thread.prompts, 0, kept);
    thread.promptLength = ids.length;
    if (!extendsLast) {
      thread.prompts = ids;
      return ids;
    }
    if (ids.length > thread.prompts.length) {
      thread.prompts = new Int32Array(Math.ceil(ids.length * GROWTH));
      thread.prompts.set(ids);
    } else {
      thread.prompts.set(ids.subarray(kept), kept);
    }
    return thread.prompts.subarray(0, ids.length);
  }

  private textOf(message: ChatMessage): string {
    const known = this.texts.get(message);
    if (known !== undefined) return known;
    const text = JSON.stringify(message);
    this.texts.set(message, text);
    return text;
  }
}

function newThread(): Thread {
  return { request: NO_REQUEST, prompts: new Int32Array(0), promptLength: 0 };
}

function charsOf({ messageTexts, toolsText }: RequestTexts): number {
  return messageTexts.reduce((sum, text) => sum + text.length, toolsText.length);
}

/**
 * Whether two values parsed from JSON have the same JSON text, with keys in the same order. Comparing the values is much cheaper than
 * creating their texts, because equal strings are compared as a whole. The comparison runs for every message of every call.
 */
export function sameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a)) {
    if (!Array.isArray(b) || a.length !== b.length) return false;
    for (let i = 0; i < a.length; i++) if (!sameJson(a[i], b[i])) return false;
    return true;
  }
  if (Array.isArray(b)) return false;
  const keys = Object.keys(b);
  let count = 0;
  // Unlike `Object.keys`, the loop makes no list of the keys.
  for (const key in a) {
    if (key !== keys[count++]) return false;
    if (!sameJson((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key])) return false;
  }
  return count === keys.length;
}
