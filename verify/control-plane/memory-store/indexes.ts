/** An index of a table in memory. The table calls `replace` with each change of a row. */
export interface TableIndex<Row> {
  /** `before` is `undefined` when the row was added, and `after` is `undefined` when it was removed. */
  replace(key: string, before: Row | undefined, after: Row | undefined): void;
}

/** The rows of a table by a value that several of them share. Rows for which `groupOf` returns `null` are not in the index. */
export class GroupIndex<Row> implements TableIndex<Row> {
  private readonly groups = new Map<string, Map<string, Row>>();
  private readonly groupOf: (row: Row) => string | null;

  constructor(groupOf: (row: Row) => string | null) {
    this.groupOf = groupOf;
  }

  replace(key: string, before: Row | undefined, after: Row | undefined): void {
    const from = before === undefined ? null : this.groupOf(before);
    const to = after === undefined ? null : this.groupOf(after);
    if (from !== null && from !== to) {
      const group = this.groups.get(from);
      group?.delete(key);
      if (group?.size === 0) this.groups.delete(from);
    }
    if (to === null || after === undefined) return;
    const group = this.groups.get(to) ?? new Map<string, Row>();
    this.groups.set(to, group);
    group.set(key, after);
  }

  /** The values that have rows. */
  values(): Iterable<string> {
    return this.groups.keys();
  }

  size(value: string): number {
    return this.groups.get(value)?.size ?? 0;
  }

  of(value: string): Row[] {
    return [...(this.groups.get(value)?.values() ?? [])];
  }

  all(): Row[] {
    return [...this.groups.values()].flatMap((group) => [...group.values()]);
  }
}

/** Like {@link GroupIndex}, with the rows of each group in the order of `compare`, which is 0 only for two versions of the same row. */
export class SortedIndex<Row> implements TableIndex<Row> {
  private readonly groups = new Map<string, Row[]>();
  private readonly groupOf: (row: Row) => string | null;
  private readonly compare: (a: Row, b: Row) => number;

  constructor(groupOf: (row: Row) => string | null, compare: (a: Row, b: Row) => number) {
    this.groupOf = groupOf;
    this.compare = compare;
  }

  replace(_: string, before: Row | undefined, after: Row | undefined): void {
    const from = before === undefined ? null : this.groupOf(before);
    const to = after === undefined ? null : this.groupOf(after);
    if (from !== null && before !== undefined) this.remove(from, before);
    if (to !== null && after !== undefined) this.add(to, after);
  }

  values(): Iterable<string> {
    return this.groups.keys();
  }

  of(value: string): readonly Row[] {
    return this.groups.get(value) ?? [];
  }

  /**
   * Returns at most `limit` rows of a group, beginning with the first row for which `isAfter` is true. It must be true for all later rows,
   * too.
   */
  from(value: string, isAfter: (row: Row) => boolean, limit: number): Row[] {
    const rows = this.of(value);
    const start = firstIndex(rows, isAfter);
    return rows.slice(start, start + limit);
  }

  private add(value: string, row: Row): void {
    const rows = this.groups.get(value) ?? [];
    this.groups.set(value, rows);
    rows.splice(
      firstIndex(rows, (other) => this.compare(other, row) > 0),
      0,
      row,
    );
  }

  private remove(value: string, row: Row): void {
    const rows = this.groups.get(value) ?? [];
    const at = firstIndex(rows, (other) => this.compare(other, row) >= 0);
    if (rows[at] === undefined || this.compare(rows[at], row) !== 0) throw new Error('the index has lost a row');
    rows.splice(at, 1);
    if (rows.length === 0) this.groups.delete(value);
  }
}

/**
 * Returns the index of the first row for which `holds` is true; the number of rows when there is none. `holds` must be true for all later
 * rows, too.
 */
function firstIndex<Row>(rows: readonly Row[], holds: (row: Row) => boolean): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(rows[middle] as Row)) high = middle;
    else low = middle + 1;
  }
  return low;
}
