import { parseAs } from '../../core/parse.ts';
import type { ToolCall } from '../../schema/index.ts';
import type { CallContext, RecordedReply } from '../dialect.ts';
import { type NamedItem, namedItem } from './identifiers.ts';
import { hasMessageItem } from './reply-items.ts';
import { referenceSchema } from './schema.ts';
import { quoted, violation, WHAT } from './violation.ts';

/** An item of an earlier reply, as it was sampled. */
export type RecalledItem =
  | { readonly kind: 'reasoning' | 'text' | 'summary'; readonly id: string; readonly text: string }
  | { readonly kind: 'call'; readonly id: string; readonly call: ToolCall };

/** The items that the input of one request names instead of holding them. */
export class ItemReferences {
  private readonly recorded: CallContext['recorded'];
  private readonly seen = new Set<string>();

  constructor(recorded: CallContext['recorded']) {
    this.recorded = recorded;
  }

  /**
   * Throws `schema_violation` for an id that the session did not hand out, and for one that was named before: else a small
   * request could make any amount of text of one long item.
   */
  recall(reference: unknown, at: string): RecalledItem {
    const { id } = parseAs(referenceSchema, reference, WHAT, at);
    const named = namedItem(id);
    const reply = named === null ? null : (this.recorded?.(named.completionId) ?? null);
    const item = named === null || reply === null ? null : itemOf(id, named, reply);
    if (named === null || item === null) throw violation(`${at}.id`, `no item ${quoted(id)} in this session`);
    const place = JSON.stringify(named);
    if (this.seen.has(place)) throw violation(`${at}.id`, `a second reference to the item ${quoted(id)}`);
    this.seen.add(place);
    return item;
  }
}

/** Null for what the reply did not have. */
function itemOf(id: string, { kind, index }: NamedItem, { message, callKind }: RecordedReply): RecalledItem | null {
  const { content, reasoning_content: thinking, tool_calls: calls = [] } = message;
  switch (kind) {
    case 'reasoning':
      return thinking ? { kind, id, text: thinking } : null;
    case 'text':
      return hasMessageItem(message) ? { kind, id, text: content ?? '' } : null;
    case 'summary':
      return callKind === 'compaction' ? { kind, id, text: content ?? '' } : null;
    case 'call': {
      const call = index === null ? undefined : calls[index];
      return call === undefined ? null : { kind, id, call };
    }
  }
}
