import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { memorySettings } from '../tools/built-in/memory.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

const PROMPT = [
  'You answer a question about a document that is longer than what you can see at once.',
  'Read it chunk by chunk with `read_chunk`. Keep facts that may matter as short notes with `memory_write`; `memory_search` finds them later.',
  'Before the conversation becomes long, call `next_with_summary` with all that you need to continue: your conversation is replaced by it.',
  'When you know the answer, or the document has ended, reply without a tool call, with the answer only.',
].join('\n');

/** Answers questions about a document that is longer than the context of the model. */
export const memoryAgent = defineAgent({
  name: 'memory',
  description: 'answers a question about a long document, which it reads in chunks, with notes and summaries',
  settings: z.strictObject({ prompt: promptSetting, ...memorySettings }),
  toolsFor: ({ document, chunk_chars }) => [{ name: 'memory', config: { document, chunk_chars } }],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT);
    return runLoop(episode, { answersInText: true });
  },
});
