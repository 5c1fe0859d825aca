import type { Store, StoreTables } from '../../../src/store/index.ts';

type Batches = StoreTables['batches'];
/** A change that another server commits. It runs on the tables of the transaction that it disturbs. */
type Change = (batches: Batches) => Promise<void>;
type Method = 'lockStream' | 'openState' | 'sizeOf';

/**
 * A store in which another server commits changes between two statements of a transaction, as PostgreSQL permits with its isolation level
 * "read committed". Each change is made once.
 */
export class TornStore implements Store {
  private readonly inner: Store;
  private readonly changes = new Map<string, Change>();

  constructor(inner: Store) {
    this.inner = inner;
  }

  /** Makes a change before or after the next call of a method in a transaction. */
  change(when: 'before' | 'after', method: Method, change: Change): void {
    this.changes.set(`${when} ${method}`, change);
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.inner.transaction((tables) => work({ ...tables, batches: this.torn(tables.batches) }));
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.inner.read(work);
  }

  announce(message: string): void {
    this.inner.announce(message);
  }

  listen(listener: (message: string) => void): () => void {
    return this.inner.listen(listener);
  }

  close(): Promise<void> {
    return this.inner.close();
  }

  private torn(batches: Batches): Batches {
    // Statements that a server starts together run one after the other on its connection.
    let earlier: Promise<unknown> = Promise.resolve();
    const around = <T>(method: Method, run: () => Promise<T>): Promise<T> => {
      const result = earlier.then(async () => {
        await this.make(`before ${method}`, batches);
        const value = await run();
        await this.make(`after ${method}`, batches);
        return value;
      });
      earlier = result;
      return result;
    };
    const torn = Object.create(batches) as Batches;
    torn.sizeOf = (id, state) => around('sizeOf', () => batches.sizeOf(id, state));
    torn.openState = (id) => around('openState', () => batches.openState(id));
    torn.lockStream = (id) => around('lockStream', () => batches.lockStream(id));
    return torn;
  }

  private async make(key: string, batches: Batches): Promise<void> {
    const change = this.changes.get(key);
    this.changes.delete(key);
    await change?.(batches);
  }
}
