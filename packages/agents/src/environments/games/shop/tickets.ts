import { pickOne, type RandomSource, randomBelow, seededRandom } from '@floe-rl/core';
import {
  addOrder,
  type Customer,
  DELIVERY_DAYS,
  makeWorld,
  type Order,
  type OrderStatus,
  randomAddress,
  randomItems,
  type World,
} from './world.ts';

/** The kinds of tickets. A kind that ends in `_refused` asks for what the policy forbids. */
export const TICKET_KINDS = [
  'cancel',
  'cancel_shipped_refused',
  'cancel_duplicate',
  'cancel_other_customer_refused',
  'refund',
  'refund_late_refused',
  'address',
  'address_shipped_refused',
] as const;
export type TicketKind = (typeof TICKET_KINDS)[number];

/** Days after the delivery in which an item can be refunded. */
const REFUND_DAYS = 30;

export const POLICY = `Policy of the shop:
- The customer is the one with the e-mail address of the ticket. Act only on orders of that customer.
- Cancel an order only while it is pending. If a customer ordered the same items twice by mistake, cancel the order with the higher number.
- Refund an item that arrived damaged up to ${REFUND_DAYS} days after its delivery: its price times its quantity, and nothing else.
- Change the address of an order only while it is pending.
- Refuse everything else, and change nothing then.
- Reply to the customer before you close the ticket. Close it as done, or as refused.`;

/** A call of a tool, with the name of the tool first. */
export type PlannedCall = readonly [tool: string, args: Readonly<Record<string, string | number>>];

export type Ticket = {
  readonly world: World;
  readonly kind: TicketKind;
  readonly email: string;
  readonly text: string;
  /** The calls of perfect play. */
  readonly solution: readonly PlannedCall[];
};

type Request = {
  readonly text: string;
  /** The orders that the agent reads to decide. */
  readonly orders: readonly Order[];
  /** The change that the policy demands; `null` when it demands a refusal. */
  readonly change: PlannedCall | null;
};

/** What a ticket is made from. */
type Setting = { readonly world: World; readonly customer: Customer; readonly random: RandomSource };

/** Makes the world and the ticket of an episode. */
export function makeTicket(kinds: readonly TicketKind[], customerCount: number, seed: number): Ticket {
  const random = seededRandom(seed);
  const kind = pickOne(random, kinds);
  const world = makeWorld(customerCount, random);
  const customer = pickOne(random, world.customers);
  const { text, orders, change } = REQUESTS[kind]({ world, customer, random });
  const answer = change === null ? 'I am sorry, our policy does not allow this.' : 'This is done.';
  const solution: PlannedCall[] = [
    ['find_customer', { email: customer.email }],
    ['list_orders', { customer_id: customer.id }],
    ...orders.map(({ id }): PlannedCall => ['get_order', { order_id: id }]),
    ...(change === null ? [] : [change]),
    ['reply_to_customer', { text: answer }],
    ['close_ticket', { resolution: change === null ? 'refused' : 'done' }],
  ];
  return { world, kind, email: customer.email, text, solution };
}

function newOrder({ world, customer, random }: Setting, status: OrderStatus, orderedDaysAgo: number): Order {
  return addOrder(world, customer, { status, orderedDaysAgo, items: randomItems(random) }, random);
}

const REQUESTS: Readonly<Record<TicketKind, (setting: Setting) => Request>> = {
  cancel(setting) {
    const order = newOrder(setting, 'pending', 1);
    return {
      text: cancelText(order, setting.random),
      orders: [order],
      change: ['cancel_order', { order_id: order.id }],
    };
  },
  cancel_shipped_refused(setting) {
    const order = newOrder(setting, 'shipped', 2);
    return { text: cancelText(order, setting.random), orders: [order], change: null };
  },
  cancel_duplicate({ world, customer, random }) {
    const items = randomItems(random);
    const options = { status: 'pending' as const, orderedDaysAgo: 0, items };
    const orders = [addOrder(world, customer, options, random), addOrder(world, customer, options, random)];
    const text = `Today I ordered the same thing twice by mistake (${items[0]?.product}). Please cancel one of the two.`;
    return { text, orders, change: ['cancel_order', { order_id: orders[1]?.id ?? '' }] };
  },
  cancel_other_customer_refused(setting) {
    const others = setting.world.customers.filter(({ id }) => id !== setting.customer.id);
    const order = newOrder({ ...setting, customer: pickOne(setting.random, others) }, 'pending', 1);
    return { text: cancelText(order, setting.random), orders: [order], change: null };
  },
  refund(setting) {
    return refund(setting, 1 + randomBelow(setting.random, REFUND_DAYS), true);
  },
  refund_late_refused(setting) {
    return refund(setting, REFUND_DAYS + 1 + randomBelow(setting.random, 30), false);
  },
  address(setting) {
    return addressChange(setting, newOrder(setting, 'pending', 1), true);
  },
  address_shipped_refused(setting) {
    return addressChange(setting, newOrder(setting, 'shipped', 2), false);
  },
};

function cancelText({ id }: Order, random: RandomSource): string {
  return pickOne(random, [
    `Please cancel my order ${id}.`,
    `I no longer need order ${id}. Can you cancel it?`,
    `I changed my mind about ${id}. Cancel it, please.`,
  ]);
}

function refund(setting: Setting, deliveredDaysAgo: number, isAllowed: boolean): Request {
  const order = newOrder(setting, 'delivered', deliveredDaysAgo + DELIVERY_DAYS);
  const item = pickOne(setting.random, order.items);
  const amount_cents = item.price_cents * item.quantity;
  const text = pickOne(setting.random, [
    `The ${item.product} of order ${order.id} arrived broken. I want my money back for it.`,
    `In my order ${order.id} the ${item.product} was damaged. Please refund it.`,
  ]);
  return { text, orders: [order], change: isAllowed ? ['refund_order', { order_id: order.id, amount_cents }] : null };
}

function addressChange({ random }: Setting, order: Order, isAllowed: boolean): Request {
  const { id } = order;
  const address = randomAddress(random);
  const text = pickOne(random, [
    `I have moved. Please send order ${id} to this address: ${address}`,
    `Can you change the address of ${id}? The new one is: ${address}`,
  ]);

  return { text, orders: [order], change: isAllowed ? ['update_address', { order_id: id, address }] : null };
}
