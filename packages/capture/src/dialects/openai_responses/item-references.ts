import { parseAs } from '@floe-rl/core';
import type { ToolCall } from '@floe-rl/core/schema';
import type { CallContext, RecordedReply } from '../dialect.ts';
import { type ParsedItemId, parseItemId } from './identifiers.ts';
import { hasMessageItem } from './reply.ts';
import { quotedStart, REQUEST_NAME, referenceSchema, violation } from './schema.ts';

/** An item of an earlier reply, with its text or arguments as sampled. */
type ReferencedItem =
  | { readonly kind: 'reasoning' | 'text' | 'summary'; readonly id: string; readonly text: string }
  | { readonly kind: 'call'; readonly id: string; readonly call: ToolCall };

/** Resolves the `item_reference`s of one request. An `item_reference` names an item of an earlier reply instead of containing it. */
export class ItemReferences {
  private readonly recorded: CallContext['recorded'];
  private readonly resolved = new Set<string>();

  constructor(recorded: CallContext['recorded']) {
    this.recorded = recorded;
  }

  /**
   * Returns the referenced item. Throws `schema_violation` when the session did not send an item with this id. A second reference to an
   * item also throws, because a small request could otherwise multiply one long item into any amount of text.
   */
  resolve(reference: unknown, at: string): ReferencedItem {
    const { id } = parseAs(referenceSchema, reference, REQUEST_NAME, at);
    const parsed = parseItemId(id);
    const reply = parsed === null ? null : (this.recorded?.(parsed.completionId) ?? null);
    const item = parsed === null || reply === null ? null : itemOf(id, parsed, reply);
    if (parsed === null || item === null) throw violation(`${at}.id`, `no item ${quotedStart(id)} in this session`);
    const key = JSON.stringify(parsed);
    if (this.resolved.has(key)) throw violation(`${at}.id`, `a second reference to the item ${quotedStart(id)}`);
    this.resolved.add(key);
    return item;
  }
}

/** Returns the item of a recorded reply; `null` when the reply has no such item. */
function itemOf(
  id: string,
  { kind, index }: ParsedItemId,
  { message, callKind }: RecordedReply,
): ReferencedItem | null {
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
