/** Ids on this wire carry the completion that they belong to: clients send them back with the items. */

const RESPONSE_PREFIX = 'resp_';

export type ItemPrefix = 'rs' | 'msg' | 'fc' | 'ctc' | 'cmp';

export function responseId(completionId: string): string {
  return `${RESPONSE_PREFIX}${completionId}`;
}

/** Null when the id is none that {@link responseId} makes. */
export function completionOfResponse(id: string): string | null {
  const completionId = id.startsWith(RESPONSE_PREFIX) ? id.slice(RESPONSE_PREFIX.length) : '';
  return completionId === '' ? null : completionId;
}

/** `index` tells the calls of one reply apart. */
export function itemId(prefix: ItemPrefix, completionId: string, index?: number): string {
  return index === undefined ? `${prefix}_${completionId}` : `${prefix}_${completionId}_${index}`;
}

export type ItemKind = 'reasoning' | 'text' | 'summary' | 'call';

const KINDS: ReadonlyMap<string, ItemKind> = new Map<ItemPrefix, ItemKind>([
  ['rs', 'reasoning'],
  ['msg', 'text'],
  ['cmp', 'summary'],
  ['fc', 'call'],
  ['ctc', 'call'],
]);

/** `index` is null for all but calls. */
export type NamedItem = { readonly kind: ItemKind; readonly completionId: string; readonly index: number | null };

const NAMED_ITEM = /^([a-z]+)_(cpl_[0-9a-z]+)(?:_(0|[1-9][0-9]{0,8}))?$/;

/** Null for an id that {@link itemId} does not make for a reply. */
export function namedItem(id: string): NamedItem | null {
  const [, prefix = '', completionId = '', position] = NAMED_ITEM.exec(id) ?? [];
  const kind = KINDS.get(prefix);
  if (kind === undefined || (kind === 'call') !== (position !== undefined)) return null;
  return { kind, completionId, index: position === undefined ? null : Number(position) };
}

const OWN_ITEM = /^(?:rs|msg|fc|ctc)_(cpl_[0-9a-z]+)(?:_[0-9]+)?$/;

/** Null for an item that the client made or changed the id of. */
export function completionOfItem(id: string | null | undefined): string | null {
  return id ? (OWN_ITEM.exec(id)?.[1] ?? null) : null;
}
