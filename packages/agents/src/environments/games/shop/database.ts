import type Libsql from 'libsql';
import type { World } from './world.ts';

const TABLES = `
create table customers (id text primary key, name text not null, email text not null, address text not null);
create table orders (
  id text primary key, customer_id text not null, status text not null, ordered_on text not null, delivered_on text, address text not null
);
create table items (order_id text not null, product text not null, quantity integer not null, price_cents integer not null);
create table refunds (id integer primary key, order_id text not null, amount_cents integer not null);
create table replies (id integer primary key, text text not null);
create table ticket (resolution text);
create table changes (id integer primary key, tool text not null, order_id text not null);
insert into ticket values (null);
`;

type Value = string | number | null;
type Row = Readonly<Record<string, Value>>;

/** The database of an episode, in memory. */
export class ShopDatabase {
  private readonly raw: Libsql.Database;

  private constructor(raw: Libsql.Database) {
    this.raw = raw;
  }

  /** Opens a database with the data of a world. The driver is loaded here, so that other environments do not load it. */
  static async open(world: World): Promise<ShopDatabase> {
    const { default: Database } = await import('libsql');
    const database = new ShopDatabase(new Database(':memory:'));
    database.raw.exec(TABLES);
    database.raw.exec('begin');
    database.insert(world);
    database.raw.exec('commit');
    return database;
  }

  private insert({ customers, orders }: World): void {
    const customerRow = this.raw.prepare('insert into customers values (?, ?, ?, ?)');
    for (const { id, name, email, address } of customers) customerRow.run(id, name, email, address);
    const orderRow = this.raw.prepare('insert into orders values (?, ?, ?, ?, ?, ?)');
    const itemRow = this.raw.prepare('insert into items values (?, ?, ?, ?)');
    for (const { id, customer_id, status, ordered_on, delivered_on, address, items } of orders) {
      orderRow.run(id, customer_id, status, ordered_on, delivered_on, address);
      for (const { product, quantity, price_cents } of items) itemRow.run(id, product, quantity, price_cents);
    }
  }

  rows(sql: string, ...values: readonly Value[]): Row[] {
    return this.raw.prepare(sql).all(...values) as Row[];
  }

  /** Runs a statement that changes an order, and records the tool that did. */
  change(tool: string, orderId: string, sql: string, ...values: readonly Value[]): void {
    this.raw.prepare(sql).run(...values);
    this.raw.prepare('insert into changes (tool, order_id) values (?, ?)').run(tool, orderId);
  }

  reply(text: string): void {
    this.raw.prepare('insert into replies (text) values (?)').run(text);
  }

  close(resolution: string): void {
    this.raw.prepare('update ticket set resolution = ?').run(resolution);
  }

  /** Returns what an episode can change, without the texts of replies. */
  state(): object {
    return {
      customers: this.rows('select * from customers order by id'),
      orders: this.rows('select * from orders order by id'),
      items: this.rows('select * from items order by order_id, product'),
      refunds: this.rows(
        'select order_id, sum(amount_cents) as cents from refunds group by order_id order by order_id',
      ),
      hasReplied: this.rows('select id from replies limit 1').length > 0,
      ticket: this.rows('select resolution from ticket'),
    };
  }

  /** Returns each order that was changed with the tool that changed it, also where a later change undid it. */
  changes(): string[] {
    return this.rows('select distinct tool, order_id from changes').map(({ tool, order_id }) => `${tool} ${order_id}`);
  }

  /** Frees the memory. */
  dispose(): void {
    this.raw.close();
  }
}
