import { pickOne, type RandomSource, randomBelow } from '@floe-rl/core';

export type Customer = { readonly id: string; readonly name: string; readonly email: string; readonly address: string };

export type OrderStatus = 'pending' | 'shipped' | 'delivered' | 'cancelled';

export type Item = { readonly product: string; readonly quantity: number; readonly price_cents: number };

export type Order = {
  readonly id: string;
  readonly customer_id: string;
  readonly status: OrderStatus;
  /** Dates as in `2026-03-14`. */
  readonly ordered_on: string;
  readonly delivered_on: string | null;
  readonly address: string;
  readonly items: readonly Item[];
};

/** The data of a shop before an episode. */
export type World = { readonly today: string; readonly customers: readonly Customer[]; readonly orders: Order[] };

const FIRST_NAMES = ['Ada', 'Ben', 'Carla', 'David', 'Elif', 'Farid', 'Grace', 'Hiro', 'Ines', 'Jonas', 'Kofi', 'Lena'];
const LAST_NAMES = ['Adams', 'Brandt', 'Costa', 'Dubois', 'Eriksen', 'Fischer', 'Gupta', 'Haas', 'Ito', 'Jensen'];
const STREETS = ['Mill Lane', 'Station Road', 'Park Avenue', 'Harbour Street', 'Church Hill', 'Garden Row'];
const TOWNS = ['Northfield', 'Ashford', 'Lakeside', 'Westport', 'Milton', 'Kingsbridge'];
const PRODUCTS: readonly (readonly [name: string, priceCents: number])[] = [
  ['kettle', 3_499],
  ['desk lamp', 2_750],
  ['backpack', 5_900],
  ['rain jacket', 8_950],
  ['coffee grinder', 4_425],
  ['wool blanket', 6_100],
  ['chess set', 2_999],
  ['water bottle', 1_450],
  ['headphones', 7_999],
  ['cutting board', 1_875],
];

const DAY_MS = 86_400_000;
/** The first day on which an episode may take place. */
const FIRST_DAY_MS = Date.UTC(2026, 0, 1);

/** Returns the date that is a number of days before another one. */
function daysBefore(date: string, days: number): string {
  return dateOf(Date.parse(date) - days * DAY_MS);
}

function dateOf(epochMs: number): string {
  return new Date(epochMs).toISOString().slice(0, 10);
}

export function randomAddress(random: RandomSource): string {
  return `${1 + randomBelow(random, 180)} ${pickOne(random, STREETS)}, ${pickOne(random, TOWNS)}`;
}

/** Returns one to three different items. */
export function randomItems(random: RandomSource): Item[] {
  const first = randomBelow(random, PRODUCTS.length);
  const count = 1 + randomBelow(random, 3);
  return Array.from({ length: count }, (_, i) => {
    const [product, price_cents] = PRODUCTS[(first + i * 3) % PRODUCTS.length] as readonly [string, number];
    return { product, quantity: 1 + randomBelow(random, 2), price_cents };
  });
}

/** Makes customers with their orders. Some customers have the same name, none the same e-mail address. */
export function makeWorld(customerCount: number, random: RandomSource): World {
  const today = dateOf(FIRST_DAY_MS + randomBelow(random, 365) * DAY_MS);
  const customers = Array.from({ length: customerCount }, (_, i) => makeCustomer(i, random));
  const world: World = { today, customers, orders: [] };
  for (const customer of customers) {
    const count = 1 + randomBelow(random, 3);
    for (let i = 0; i < count; i++) addOrder(world, customer, randomOrder(random), random);
  }
  return world;
}

function makeCustomer(index: number, random: RandomSource): Customer {
  const [first, last] = [pickOne(random, FIRST_NAMES), pickOne(random, LAST_NAMES)];
  const email = `${first}.${last}${index + 1}@mail.example`.toLowerCase();
  return { id: `C${101 + index}`, name: `${first} ${last}`, email, address: randomAddress(random) };
}

export type OrderOptions = {
  readonly status: OrderStatus;
  readonly orderedDaysAgo: number;
  readonly items: readonly Item[];
};

function randomOrder(random: RandomSource): OrderOptions {
  const status = pickOne<OrderStatus>(random, ['pending', 'shipped', 'delivered', 'delivered', 'cancelled']);
  return { status, orderedDaysAgo: 5 + randomBelow(random, 90), items: randomItems(random) };
}

/** Adds an order to the world. A delivered one was delivered three days after it was ordered. */
export function addOrder(world: World, customer: Customer, options: OrderOptions, random: RandomSource): Order {
  const { status, orderedDaysAgo, items } = options;
  const before = world.orders.at(-1)?.id;
  const order: Order = {
    id: `W${(before === undefined ? 2_000 : Number(before.slice(1))) + 1 + randomBelow(random, 9)}`,
    customer_id: customer.id,
    status,
    ordered_on: daysBefore(world.today, orderedDaysAgo),
    delivered_on: status === 'delivered' ? daysBefore(world.today, orderedDaysAgo - DELIVERY_DAYS) : null,
    address: customer.address,
    items,
  };
  world.orders.push(order);
  return order;
}

export const DELIVERY_DAYS = 3;
