import type { ChatMessage, Content } from '@floe-rl/core/schema';
import { z } from 'zod';
import { chunksOf, readDocument } from '../chunks.ts';
import type { Conversation } from '../conversation.ts';
import { Notes } from '../notes.ts';
import { type AnyTool, defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

/** Settings of the toolset, which the agent `memory` also has. */
export const memorySettings = {
  document: z
    .union([z.strictObject({ file: z.string().min(1) }), z.strictObject({ metadata: z.string().min(1) })])
    .default({ metadata: 'document' })
    .describe("the document: `file`, a path in the sandbox, or `metadata`, a field of the task's metadata"),
  chunk_chars: z.int().min(200).max(200_000).default(8_000).describe('maximum number of characters of a chunk'),
};

/** Number of characters that an answer may have besides the chunk. */
const MARGIN_CHARS = 1_000;

/**
 * Tools for a document that is longer than the context. The model reads it in chunks, keeps and searches notes, and can replace the
 * conversation by its own summary.
 */
export const memoryToolset = defineToolset({
  name: 'memory',
  description: 'read_chunk, memory_write, memory_search and next_with_summary, for a document longer than the context',
  config: z.strictObject(memorySettings),
  scope: 'session',
  async open({ document, chunk_chars: chars }, context, signal) {
    const chunks = chunksOf(await readDocument(document, context, signal), chars);
    const reader = new ChunkReader(chunks);
    return { tools: [readTool(reader, chars), ...noteTools(new Notes()), summaryTool(reader)] };
  },
});

/** Reads chunks in their order. */
class ChunkReader {
  private readonly chunks: readonly string[];
  private next = 0;

  constructor(chunks: readonly string[]) {
    this.chunks = chunks;
  }

  /** Returns a chunk by its number, which begins at 1, or the next one. Throws a {@link ToolError} when there is none of that number. */
  read(number: number | null): string {
    const { chunks } = this;
    const index = number === null ? this.next : number - 1;
    const chunk = chunks[index];
    if (chunk === undefined && number !== null) {
      throw new ToolError('not_found', `there is no chunk ${number}; the document has ${chunks.length}`);
    }
    if (chunk === undefined) return `[the document has ended; it has ${chunks.length} chunks]`;
    this.next = index + 1;
    return `[chunk ${index + 1} of ${chunks.length}]\n${chunk}`;
  }
}

function readTool(reader: ChunkReader, chars: number): AnyTool {
  return defineTool({
    name: 'read_chunk',
    description: 'Reads the next chunk of the document, or the one with a number.',
    effect: 'environment',
    maxChars: chars + MARGIN_CHARS,
    parameters: z.object({ number: z.int().min(1).nullish() }),
    run: async ({ number }) => reader.read(number ?? null),
  });
}

function noteTools(notes: Notes): AnyTool[] {
  const write = defineTool({
    name: 'memory_write',
    description: 'Keeps a note, which stays when the conversation is replaced. A note of the same name is replaced.',
    effect: 'environment',
    parameters: z.object({ text: z.string().min(1), name: z.string().min(1).max(200).nullish() }),
    run: async ({ text, name }) => `kept as ${notes.keep(text, name ?? null)}; there are ${notes.size} notes`,
  });
  const search = defineTool({
    name: 'memory_search',
    description: 'Finds notes by words, the best first.',
    effect: 'environment',
    parameters: z.object({ query: z.string().min(1), limit: z.int().min(1).max(100).nullish() }),
    async run({ query, limit }) {
      const found = notes.search(query, limit ?? 5);
      if (found.length === 0) return `no note has these words; there are ${notes.size} notes`;
      return found.map(({ name, text }) => `[${name}]\n${text}`).join('\n\n');
    },
  });
  return [write, search];
}

function summaryTool(reader: ChunkReader): AnyTool {
  /** How each conversation began, before a summary took the place of its messages. */
  const beginnings = new WeakMap<Conversation, readonly ChatMessage[]>();
  return defineTool({
    name: 'next_with_summary',
    description:
      'Replaces the whole conversation by your summary and the next chunk of the document. What the summary and your notes lack is lost.',
    effect: 'agent',
    parameters: z.object({ summary: z.string().min(1) }),
    async run({ summary }, { conversation }) {
      const known = beginnings.get(conversation);
      const beginning = known ?? beginningOf(conversation.messages);
      beginnings.set(conversation, beginning);
      const text = `Your summary of what you have read so far:\n${summary}\n\n${reader.read(null)}`;
      conversation.replace(withText(beginning, text));
      return { content: null };
    },
  });
}

/** Returns the messages before the first reply. */
function beginningOf(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  const reply = messages.findIndex(({ role }) => role === 'assistant');
  return reply < 0 ? messages : messages.slice(0, reply);
}

/** Appends text to the last message when the user wrote it, because some chat templates allow only one message of the user at a time. */
function withText(messages: readonly ChatMessage[], text: string): ChatMessage[] {
  const last = messages.at(-1);
  if (last?.role !== 'user') return [...messages, { role: 'user', content: text }];
  const content: Content =
    typeof last.content === 'string' ? `${last.content}\n\n${text}` : [...last.content, { type: 'text', text }];
  return [...messages.slice(0, -1), { role: 'user', content }];
}
