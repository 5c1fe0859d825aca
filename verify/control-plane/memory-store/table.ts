/** One changed row; `before` undefined: it was added, `after` undefined: it was removed. */
export type RowChange = {
  readonly table: MemoryTable<unknown>;
  readonly key: string;
  readonly before: unknown;
  readonly after: unknown;
};

/** Rows by key. Rows are never changed in place, so a change is undone by putting the old one back. */
export class MemoryTable<Row> {
  readonly name: string;
  private readonly rows = new Map<string, Row>();
  private readonly record: (change: RowChange) => void;

  constructor(name: string, record: (change: RowChange) => void) {
    this.name = name;
    this.record = record;
  }

  get(key: string): Row | undefined {
    return this.rows.get(key);
  }

  put(key: string, row: Row): void {
    this.change(key, row);
    this.rows.set(key, row);
  }

  /** Changing a row that is not there changes nothing, as in SQL. */
  patch(key: string, patch: Partial<Row>): Row | undefined {
    const row = this.rows.get(key);
    if (row === undefined) return undefined;
    const patched = { ...row, ...patch };
    this.put(key, patched);
    return patched;
  }

  delete(key: string): void {
    if (!this.rows.has(key)) return;
    this.change(key, undefined);
    this.rows.delete(key);
  }

  values(): IterableIterator<Row> {
    return this.rows.values();
  }

  where(holds: (row: Row) => boolean): Row[] {
    const found: Row[] = [];
    for (const row of this.rows.values()) if (holds(row)) found.push(row);
    return found;
  }

  undo({ key, before }: RowChange): void {
    if (before === undefined) this.rows.delete(key);
    else this.rows.set(key, before as Row);
  }

  private change(key: string, after: Row | undefined): void {
    this.record({ table: this as MemoryTable<unknown>, key, before: this.rows.get(key), after });
  }
}
