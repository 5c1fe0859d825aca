import { z } from 'zod';
import type { CallKind } from '../../schema/index.ts';
import type { Headers } from '../dialect.ts';
import { type Family, headerOf } from './harness-rules.ts';

/** What Codex says of each call in one header; it is about a kilobyte, and an agent could send any size. */
const MAX_METADATA_CHARS = 16_384;
const metadataSchema = z.looseObject({
  request_kind: z.string().optional(),
  thread_source: z.string().optional(),
  thread_id: z.string().optional(),
});
type Metadata = z.output<typeof metadataSchema>;

/** Other kinds are turns, or will be of a version that is not known yet. */
const REQUEST_KINDS: Readonly<Record<string, CallKind>> = { compaction: 'compaction', prewarm: 'probe' };

/** What a sub-agent of the program's own is for; all others work for the agent. */
const SUBAGENT_KINDS: Readonly<Record<string, CallKind>> = { compact: 'compaction', memory_consolidation: 'memory' };

const SUMMARY_REQUEST = 'You are performing a CONTEXT CHECKPOINT COMPACTION.';

/** Codex tells thread, its parent and purpose of every call in headers; the prompt only counts where they are lost. */
export const codex: Family = {
  headers(headers) {
    const metadata = metadataOf(headers);
    const subagent = headerOf(headers, 'x-openai-subagent');
    const parent = headerOf(headers, 'x-codex-parent-thread-id');
    if (metadata === null && subagent === null && parent === null) return null;
    const purpose =
      known(REQUEST_KINDS, metadata?.request_kind) ??
      known(SUBAGENT_KINDS, subagent) ??
      (headerOf(headers, 'x-openai-memgen-request') === 'true' ? 'memory' : null);
    if (subagent !== null || parent !== null || metadata?.thread_source === 'subagent') {
      const id = headerOf(headers, 'thread-id') ?? metadata?.thread_id ?? null;
      return { agent: { kind: 'subagent', id: id === '' ? null : id }, purpose };
    }
    return { agent: metadata?.thread_source === undefined ? null : { kind: 'main' }, purpose };
  },
  purpose(call) {
    return call.toolCount === 0 && call.lastUserText().startsWith(SUMMARY_REQUEST) ? 'compaction' : null;
  },
};

function metadataOf(headers: Headers): Metadata | null {
  const text = headerOf(headers, 'x-codex-turn-metadata');
  if (text === null || text.length > MAX_METADATA_CHARS) return null;
  try {
    return metadataSchema.safeParse(JSON.parse(text)).data ?? null;
  } catch {
    // Not Codex's: whoever wrote it gets no label by it.
    return null;
  }
}

function known(kinds: Readonly<Record<string, CallKind>>, name: string | null | undefined): CallKind | null {
  return name != null && Object.hasOwn(kinds, name) ? (kinds[name] ?? null) : null;
}
