import type { FloeClient } from '@floe-rl/client';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { RolloutConfigInput } from '../../../src/rollout/index.ts';
import { summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let client: FloeClient;
let deliver: (text?: string) => Promise<string>;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

async function start(config: RolloutConfigInput = {}): Promise<void> {
  const running = await bench.server(config);
  client = await running.client();
  const node = await running.node();
  deliver = async (text) => {
    await client.submit(task({ max_attempts: 1 }));
    const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
    if (lease === undefined) throw new Error('nothing was leased');
    const parts = { trajectory: null, completions: null, artifacts: null };
    await node.deliverResult({ summary: summaryOf(lease), ...parts, ...(text === undefined ? {} : { text }) });
    return lease.session_id;
  };
}

async function find(text: string): Promise<string[]> {
  const ids: string[] = [];
  for await (const { session_id: id } of client.endedSessions({ text })) ids.push(id);
  return ids;
}

describe('a search in messages', () => {
  it('finds delivered sessions by words and phrases, in lists and sums', async () => {
    await start();
    const first = await deliver('ImportError: No module named "foo_bar"');
    const second = await deliver('All tests pass.');
    await deliver();
    expect(await find('importerror')).toEqual([first]);
    expect(await find('"no module named foo"')).toEqual([first]);
    expect(await find('tests PASS')).toEqual([second]);
    expect(await find('importerror pass')).toEqual([]);
    expect(await client.sessionTotals([], { text: 'pass' })).toMatchObject([{ sessions: 1 }]);
  });

  it('has the beginning and the end of long texts, as far as search_kb allows', async () => {
    await start({ search_kb: 1 });
    const id = await deliver(`first ${'x '.repeat(500)} middle ${'x '.repeat(500)} last`);
    expect(await find('first')).toEqual([id]);
    expect(await find('last')).toEqual([id]);
    expect(await find('middle')).toEqual([]);
  });

  it('is refused without words, and where the server indexes none', async () => {
    await start();
    await expect(find('--!')).rejects.toMatchObject({ code: 'schema_violation' });
    await bench.dispose();
    bench = await Workbench.create();
    await start({ search_kb: 0 });
    await deliver('hello');
    await expect(find('hello')).rejects.toMatchObject({
      code: 'unsupported',
      message: 'this server does not index messages: set search_kb in its configuration',
    });
  });
});
