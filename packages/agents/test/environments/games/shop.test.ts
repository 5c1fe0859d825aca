import { describe, expect, it } from 'vitest';
import { shop } from '../../../src/environments/games/shop/shop.ts';
import {
  makeTicket,
  type PlannedCall,
  TICKET_KINDS,
  type TicketKind,
} from '../../../src/environments/games/shop/tickets.ts';
import { SHOP_CHAT_TOOLS } from '../../../src/environments/games/shop/tools.ts';
import { call, calls, playReplies, says, scoreOf, startEpisode, textsOf } from '../episodes.ts';

const CUSTOMERS = 6;
const ticketOf = (kind: TicketKind, seed = 0) => makeTicket([kind], CUSTOMERS, seed);
const isChange = ([tool]: PlannedCall): boolean => /^(cancel|refund|update)/.test(tool);
const replyOf = ([tool, args]: PlannedCall) => call(tool, args);

/** Plays calls as an episode with the ticket of {@link ticketOf}. Returns the score and the last step. */
async function play(kind: TicketKind, planned: readonly PlannedCall[], seed = 0) {
  const { environment } = await startEpisode(shop, { kinds: [kind], customers: CUSTOMERS }, seed);
  const results = await playReplies(environment, planned.map(replyOf));
  await environment.close();
  return { score: scoreOf(results), metrics: results.at(-1)?.metrics, results };
}

describe('shop', () => {
  it('declares eight tools', () => {
    expect(SHOP_CHAT_TOOLS.map((tool) => tool.function.name)).toHaveLength(8);
  });

  it.each(TICKET_KINDS)('has tickets of the kind %s that the solution solves, and only its changes', async (kind) => {
    for (let seed = 0; seed < 5; seed++) {
      const { solution } = ticketOf(kind, seed);
      expect(solution.some(isChange)).toBe(!kind.endsWith('_refused'));
      expect(await play(kind, solution, seed)).toMatchObject({
        score: 1,
        metrics: { success: 1, forbidden_changes: 0 },
      });
    }
  });

  it.each(TICKET_KINDS)('gives 0 for the opposite decision about a ticket of the kind %s', async (kind) => {
    const { solution, world, text } = ticketOf(kind);
    const orderId = /W\d+/.exec(text)?.[0] ?? world.orders.at(-1)?.id ?? '';
    const opposite: PlannedCall[] = solution.some(isChange)
      ? [
          ['reply_to_customer', { text: 'No.' }],
          ['close_ticket', { resolution: 'refused' }],
        ]
      : [
          ['cancel_order', { order_id: orderId }],
          ['reply_to_customer', { text: 'Done.' }],
          ['close_ticket', { resolution: 'done' }],
        ];
    expect(await play(kind, opposite)).toMatchObject({ score: 0, metrics: { success: 0, state_matches: 0 } });
  });

  it.each<[string, (solution: readonly PlannedCall[]) => readonly PlannedCall[]]>([
    ['without a reply', (solution) => solution.filter(([tool]) => tool !== 'reply_to_customer')],
    ['without its change', (solution) => solution.filter((planned) => !isChange(planned))],
    ['with another resolution', (solution) => [...solution.slice(0, -1), ['close_ticket', { resolution: 'refused' }]]],
    ['that is not closed', (solution) => solution.slice(0, -1)],
  ])('gives 0 for a ticket %s', async (_, change) => {
    expect((await play('cancel', change(ticketOf('cancel').solution))).score).toBe(0);
  });

  it('gives 0 for a forbidden change, also when it was undone', async () => {
    const { solution, world } = ticketOf('cancel');
    const { id, address } = world.orders[0] ?? { id: '', address: '' };
    const wrong: PlannedCall = ['update_address', { order_id: id, address: 'elsewhere' }];
    const undo: PlannedCall = ['update_address', { order_id: id, address }];
    expect(await play('cancel', [wrong, ...solution])).toMatchObject({
      score: 0,
      metrics: { state_matches: 0, forbidden_changes: 1 },
    });
    expect(await play('cancel', [wrong, undo, ...solution])).toMatchObject({
      score: 0,
      metrics: { state_matches: 1, forbidden_changes: 1 },
    });
  });

  it('accepts the right change in several steps, and further replies', async () => {
    const { solution } = ticketOf('address');
    const planned = solution.flatMap((one): PlannedCall[] => {
      if (one[0] === 'reply_to_customer') return [one, one];
      return isChange(one) ? [['update_address', { ...one[1], address: 'mistyped' }], one] : [one];
    });
    expect((await play('address', planned)).score).toBe(1);
  });

  it('refunds no more than the price of the order', async () => {
    const { solution } = ticketOf('refund');
    const [, args] = solution.find(isChange) ?? ['', {}];
    const { results } = await play('refund', [['refund_order', { ...args, amount_cents: 90_000_000 }]]);
    expect(textsOf(results[0]?.messages ?? [])[0]).toMatch(
      /^Error: at most \d+ cents of order W\d+ can be refunded\.$/,
    );
  });

  it('runs the calls of a reply in order, up to the one that closes the ticket', async () => {
    const { solution } = ticketOf('cancel');
    const { environment } = await startEpisode(shop, { kinds: ['cancel'], customers: CUSTOMERS });
    const [result] = await playReplies(environment, [calls(...solution, ['cancel_order', { order_id: 'W1' }])]);
    expect(result).toMatchObject({ reward: 1, terminated: true });
    expect(textsOf(result?.messages ?? []).at(-1)).toBe('Not run: the ticket is closed.');
    expect((await environment.step(call('get_order', { order_id: 'W1' }))).reward).toBe(0);
    await environment.close();
  });

  it('runs at most 16 calls of a reply', async () => {
    const { environment } = await startEpisode(shop);
    const list = Array.from({ length: 20 }, () => ['get_order', { order_id: 'W1' }] as const);
    const [result] = await playReplies(environment, [calls(...list)]);
    const texts = textsOf(result?.messages ?? []);
    expect(texts.slice(0, 16)).toEqual(Array(16).fill('Error: there is no order W1.'));
    expect(texts.slice(16)).toEqual(Array(4).fill('Not run: at most 16 calls of a reply are run.'));
    await environment.close();
  });

  it('keeps texts that resemble SQL as data', async () => {
    const { environment } = await startEpisode(shop);
    const attack = "x'; drop table orders; --";
    const [, listed] = await playReplies(environment, [
      call('find_customer', { email: attack }),
      call('list_orders', { customer_id: 'C101' }),
    ]);
    expect(textsOf(listed?.messages ?? [])[0]).toContain('"status"');
    await environment.close();
  });

  it('replaces what is not valid Unicode in arguments', async () => {
    const { environment } = await startEpisode(shop, { kinds: ['address'], customers: CUSTOMERS });
    const [, { order_id = '' } = {}] = ticketOf('address').solution.find(isChange) ?? [];
    const [result] = await playReplies(environment, [
      call('update_address', `{"order_id": "${order_id}", "address": "\\ud800 Hill"}`),
    ]);
    expect(textsOf(result?.messages ?? [])).toEqual([`Order ${order_id} will be sent to \ufffd Hill.`]);
    await environment.close();
  });

  it('counts invalid replies and gives them their reward', async () => {
    const { environment } = await startEpisode(shop, { invalid_action_reward: -0.1, max_steps: 4 });
    const results = await playReplies(environment, [
      says('Hello'),
      call('get_order', {}),
      calls(['get_order', {}], ['get_order', { order_id: 'W1' }]),
      call('get_order', { order_id: 'W1' }),
    ]);
    expect(results.map(({ reward }) => reward)).toEqual([-0.1, -0.1, 0, 0]);
    expect(results.at(-1)).toMatchObject({ truncated: true, metrics: { invalid_actions: 3 } });
    await environment.close();
  });

  it('has equal hashes for equal databases', async () => {
    const { environment, first } = await startEpisode(shop);
    const [read, replied] = await playReplies(environment, [
      call('list_orders', { customer_id: 'C101' }),
      call('reply_to_customer', { text: 'Hello' }),
    ]);
    expect(read?.stateHash).toBe(first.stateHash);
    expect(replied?.stateHash).not.toBe(first.stateHash);
    await environment.close();
  });
});
