import { z } from 'zod';
import { chatTool } from '../../action.ts';
import type { ShopDatabase } from './database.ts';

/** Maximum number of characters of an address or a reply. */
const MAX_TEXT_CHARS = 4_000;

const textSchema = z.string().trim().min(1).max(MAX_TEXT_CHARS);
const orderSchema = z.strictObject({ order_id: textSchema.describe('such as W2001') });

type ShopTool<Args> = {
  readonly description: string;
  readonly parameters: z.ZodType<Args>;
  /** Returns what the agent reads. */
  run(args: Args, database: ShopDatabase): string;
};

/** A tool that gets arguments that fit its parameters. */
type AnyShopTool = ShopTool<never>;

function shopTool<Args>(tool: ShopTool<Args>): AnyShopTool {
  return tool as AnyShopTool;
}

const noOrder = (id: string): string => `Error: there is no order ${id}.`;

function hasOrder(database: ShopDatabase, id: string): boolean {
  return database.rows('select id from orders where id = ?', id).length > 0;
}

function totalOf(database: ShopDatabase, id: string): number {
  const [row] = database.rows('select sum(quantity * price_cents) as total from items where order_id = ?', id);
  return Number(row?.total ?? 0);
}

function refundedOf(database: ShopDatabase, id: string): number {
  const [row] = database.rows('select sum(amount_cents) as total from refunds where order_id = ?', id);
  return Number(row?.total ?? 0);
}

/** The tools of the shop. They do what they are called for, whether or not the policy allows it. */
export const SHOP_TOOLS: ReadonlyMap<string, AnyShopTool> = new Map([
  [
    'find_customer',
    shopTool({
      description: 'Returns the customer with an e-mail address.',
      parameters: z.strictObject({ email: textSchema }),
      run({ email }, database) {
        const [customer] = database.rows('select * from customers where email = ?', email.toLowerCase());
        return customer === undefined ? `Error: there is no customer ${email}.` : JSON.stringify(customer);
      },
    }),
  ],
  [
    'list_orders',
    shopTool({
      description: 'Returns the orders of a customer.',
      parameters: z.strictObject({ customer_id: textSchema.describe('such as C101') }),
      run({ customer_id }, database) {
        const orders = database.rows(
          'select id, status, ordered_on from orders where customer_id = ? order by id',
          customer_id,
        );
        return JSON.stringify(orders);
      },
    }),
  ],
  [
    'get_order',
    shopTool({
      description: 'Returns an order with its items and refunds.',
      parameters: orderSchema,
      run({ order_id }, database) {
        const [order] = database.rows('select * from orders where id = ?', order_id);
        if (order === undefined) return noOrder(order_id);
        const items = database.rows('select product, quantity, price_cents from items where order_id = ?', order_id);
        return JSON.stringify({ ...order, items, refunded_cents: refundedOf(database, order_id) });
      },
    }),
  ],
  [
    'cancel_order',
    shopTool({
      description: 'Cancels an order.',
      parameters: orderSchema,
      run({ order_id }, database) {
        if (!hasOrder(database, order_id)) return noOrder(order_id);
        database.change('cancel_order', order_id, "update orders set status = 'cancelled' where id = ?", order_id);
        return `Order ${order_id} is cancelled.`;
      },
    }),
  ],
  [
    'refund_order',
    shopTool({
      description: 'Pays a part of the price of an order back.',
      parameters: orderSchema.extend({ amount_cents: z.int().min(1).max(100_000_000) }),
      run({ order_id, amount_cents }, database) {
        if (!hasOrder(database, order_id)) return noOrder(order_id);
        const left = totalOf(database, order_id) - refundedOf(database, order_id);
        if (amount_cents > left) return `Error: at most ${left} cents of order ${order_id} can be refunded.`;
        const sql = 'insert into refunds (order_id, amount_cents) values (?, ?)';
        database.change('refund_order', order_id, sql, order_id, amount_cents);
        return `${amount_cents} cents of order ${order_id} are refunded.`;
      },
    }),
  ],
  [
    'update_address',
    shopTool({
      description: 'Changes the address to which an order is sent.',
      parameters: orderSchema.extend({ address: textSchema }),
      run({ order_id, address }, database) {
        if (!hasOrder(database, order_id)) return noOrder(order_id);
        const sql = 'update orders set address = ? where id = ?';
        database.change('update_address', order_id, sql, address, order_id);
        return `Order ${order_id} will be sent to ${address}.`;
      },
    }),
  ],
  [
    'reply_to_customer',
    shopTool({
      description: 'Sends a message to the customer of the ticket.',
      parameters: z.strictObject({ text: textSchema }),
      run({ text }, database) {
        database.reply(text);
        return 'The message is sent.';
      },
    }),
  ],
  [
    'close_ticket',
    shopTool({
      description: 'Closes the ticket. Call it last.',
      parameters: z.strictObject({ resolution: z.enum(['done', 'refused']) }),
      run({ resolution }, database) {
        database.close(resolution);
        return `The ticket is closed as ${resolution}.`;
      },
    }),
  ],
]);

/** Name of the tool that ends the episode. */
export const CLOSING_TOOL = 'close_ticket';

/** The schemas of the arguments by the name of the tool. */
export const SHOP_SCHEMAS: ReadonlyMap<string, z.ZodType> = new Map(
  [...SHOP_TOOLS].map(([name, { parameters }]) => [name, parameters]),
);

/** The tools as an observation declares them. */
export const SHOP_CHAT_TOOLS = [...SHOP_TOOLS].map(([name, { description, parameters }]) =>
  chatTool(name, description, parameters),
);
