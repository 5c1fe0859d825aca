/**
 * This file makes and parses the ids of responses and of their items. Each id contains a completion id, and clients return the id with the
 * item.
 */

const RESPONSE_PREFIX = 'resp_';

type ItemPrefix = 'rs' | 'msg' | 'fc' | 'ctc' | 'cmp';

export function responseId(completionId: string): string {
  return `${RESPONSE_PREFIX}${completionId}`;
}

/** Returns the completion id in a response id; `null` when {@link responseId} did not make the id. */
export function completionOfResponse(id: string): string | null {
  const completionId = id.startsWith(RESPONSE_PREFIX) ? id.slice(RESPONSE_PREFIX.length) : '';
  return completionId === '' ? null : completionId;
}

/** Makes the id of an item. `index` distinguishes the tool calls of one reply and is left out for other items. */
export function itemId(prefix: ItemPrefix, completionId: string, index?: number): string {
  return index === undefined ? `${prefix}_${completionId}` : `${prefix}_${completionId}_${index}`;
}

type ItemKind = 'reasoning' | 'text' | 'summary' | 'call';

const KINDS: ReadonlyMap<string, ItemKind> = new Map<ItemPrefix, ItemKind>([
  ['rs', 'reasoning'],
  ['msg', 'text'],
  ['cmp', 'summary'],
  ['fc', 'call'],
  ['ctc', 'call'],
]);

/** The parsed parts of an item id. `index` is `null` for items other than tool calls. */
export type ParsedItemId = { readonly kind: ItemKind; readonly completionId: string; readonly index: number | null };

const ITEM_ID = /^([a-z]+)_(cpl_[0-9a-z]+)(?:_(0|[1-9][0-9]{0,8}))?$/;

/** Parses the id of an item of a reply. Returns `null` when {@link itemId} did not make the id. */
export function parseItemId(id: string): ParsedItemId | null {
  const [, prefix = '', completionId = '', position] = ITEM_ID.exec(id) ?? [];
  const kind = KINDS.get(prefix);
  if (kind === undefined || (kind === 'call') !== (position !== undefined)) return null;
  return { kind, completionId, index: position === undefined ? null : Number(position) };
}

const REPLY_ITEM_ID = /^(?:rs|msg|fc|ctc)_(cpl_[0-9a-z]+)(?:_[0-9]+)?$/;

/** Returns the completion id in an item id; `null` when the id contains none, because the client invented or changed it. */
export function completionOfItem(id: string | null | undefined): string | null {
  return id ? (REPLY_ITEM_ID.exec(id)?.[1] ?? null) : null;
}
