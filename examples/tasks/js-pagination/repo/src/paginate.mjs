/** One page of a list. Pages are numbered from 1; a page beyond the last is empty. */
export function paginate(items, { page = 1, size = 10 } = {}) {
  if (!Number.isInteger(size) || size < 1) throw new RangeError(`size must be at least 1, not ${size}`);
  if (!Number.isInteger(page) || page < 1) throw new RangeError(`page must be at least 1, not ${page}`);
  const start = page * size;
  return {
    items: items.slice(start, start + size),
    page,
    pages: Math.floor(items.length / size),
    total: items.length,
  };
}
