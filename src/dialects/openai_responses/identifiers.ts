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

const OWN_ITEM = /^(?:rs|msg|fc|ctc)_(cpl_[0-9a-z]+)(?:_[0-9]+)?$/;

/** Null for an item that the client made or changed the id of. */
export function completionOfItem(id: string | null | undefined): string | null {
  return id ? (OWN_ITEM.exec(id)?.[1] ?? null) : null;
}
