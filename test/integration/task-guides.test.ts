import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { BatchReply, BatchStreamView, SessionResult } from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { frozenLake } from '#agents/environments/games/frozen-lake';
import { playedScenarios } from '#floe/testing/played-scenarios';
import { startTestStack, type TestStack } from './stack.ts';

const ROOT = join(import.meta.dirname, '..', '..');

/** Writes the first JavaScript of a guide to a folder in which `floe` is installed, and returns its path. */
async function codeOf(guide: string, name: string): Promise<string> {
  const text = await readFile(join(ROOT, 'docs', 'guides', guide), 'utf8');
  const code = /```js\n([\s\S]*?)```/.exec(text)?.[1];
  if (code === undefined) throw new Error(`${guide} has no code`);
  const path = join(dir, name);
  await writeFile(path, code);
  return path;
}

let dir: string;
let stack: TestStack;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-guides-'));
  await mkdir(join(dir, 'node_modules'));
  await symlink(join(ROOT, 'packages', 'floe'), join(dir, 'node_modules', 'floe'));
  const crossing = { environment: frozenLake, config: { size: 4 }, seed: 3, mark: '' };
  stack = await startTestStack({
    scenarios: parseScenarios(
      {
        scenarios: [
          {
            name: 'product',
            match: { contains: 'What is 6 * 7?' },
            rules: [
              { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'think', arguments: { thought: '42' } } }] },
              { reply: [{ call: { tool: 'finish', arguments: { answer: '42' } } }] },
            ],
          },
          { name: 'apples', match: { contains: 'apples' }, rules: [{ reply: [{ text: '3 and 4 are\n7' }] }] },
          // The task has no text of its own that the rules could match, so they have no condition on it.
          ...(await playedScenarios(crossing)).map((scenario) => ({
            ...scenario,
            rules: scenario.rules.slice(0, -1).map((rule, turn) => ({ ...rule, when: { assistant_turns: turn } })),
          })),
        ],
      },
      'the test',
    ),
    node: {
      default_backend: 'none',
      plugins: { handlers: { gsm8k: await codeOf('from-prorl.md', 'gsm8k.mjs') } },
    },
  });
});
afterAll(async () => {
  await stack.close();
  await rm(dir, { recursive: true, force: true });
});

describe('the code of the guides', () => {
  it('from SkyRL-Agent makes tasks and an evaluation of two data sources, which run', async () => {
    const module = (await import(pathToFileURL(await codeOf('from-skyrl-agent.md', 'tasks.mjs')).href)) as {
      submitAll(url: string): Promise<BatchStreamView>;
    };
    expect(await module.submitAll(stack.serverUrl)).toMatchObject({ batch_id: 'eval-1', row_count: 2 });
    const results: SessionResult[] = [];
    for await (const result of stack.client.results()) {
      if ('batch' in result.metadata) continue;
      results.push(result);
      if (results.length === 4) break;
    }
    expect(results.map(({ reward }) => reward)).toEqual([1, 1, 1, 1]);
    let batch: BatchReply;
    do batch = await stack.client.nextBatch('eval-1', { waitSeconds: 10 });
    while (batch.batch === null && !batch.done);
    expect(batch.groups.map(({ mean_reward: reward }) => reward)).toEqual([1, 1]);
  });

  it("from ProRL Agent's handlers runs as a handler", async () => {
    const instance = { question: 'Ann has 3 apples and gets 4. How many?', answer: 7 };
    const [result] = await stack.run({
      instruction: '',
      agent: { harness: 'floe', settings: { agent: 'handler' } },
      evaluator: { strategy: 'environment' },
      metadata: { data_source: 'gsm8k', instance },
    });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1 });
  });
});
