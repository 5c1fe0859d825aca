import { ENVIRONMENTS, findEnvironment, groupFileSchema, type Split, streamOfSplit } from '@floe-rl/agents';
import { parseAs } from '@floe-rl/core';
import { episodeRow } from '@floe-rl/core/rows';
import {
  type BatchReply,
  batchStreamRequestSchema,
  type EnvironmentSource,
  type SessionResult,
} from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { playedScenarios } from '#floe/testing/played-scenarios';
import { startTestStack, type TestStack } from './stack.ts';

const FILE = parseAs(
  groupFileSchema,
  {
    environments: {
      Boxes: { type: 'sokoban', config: { search_depth: 20 }, max_steps: 25, instruction: 'Played well.' },
      Lake: { type: 'frozen_lake', max_steps: 20, instruction: 'Played well.' },
    },
    train: { num_env_groups: 2, group_size: 2, tags: ['Boxes', 'Lake'], seed: 11 },
    val: { num_env_groups: 4, tags: ['Boxes', 'Lake'], seed: 12, tools: ['think'], hints: false },
  },
  'the test',
);
const streamOf = (split: Split) =>
  parseAs(
    batchStreamRequestSchema,
    streamOfSplit(FILE, split, { batch_id: split, batch_size: 4, accept: { zero_variance: 'keep' } }, ENVIRONMENTS),
    split,
  );

let stack: TestStack;
beforeAll(async () => {
  const scenarios = [];
  for (const split of ['train', 'val'] as const) {
    for (let index = 0; index < 8; index++) {
      const { environment } = episodeRow(streamOf(split).source as EnvironmentSource, index);
      const { type, config, seed } = environment;
      const played = { environment: findEnvironment(type), config, seed, mark: 'Played well.' };
      const made = await playedScenarios(played);
      scenarios.push(...made.map((scenario) => ({ ...scenario, name: `${scenario.name}-${split}-${index}` })));
    }
  }
  stack = await startTestStack({
    scenarios: parseScenarios({ scenarios }, 'the test'),
    node: { default_backend: 'none' },
  });
});
afterAll(() => stack.close());

async function nextOf(batchId: string): Promise<BatchReply> {
  for (;;) {
    const reply = await stack.client.nextBatch(batchId, { waitSeconds: 10, policyVersion: 'v1' });
    if (reply.batch !== null || reply.done) return reply;
  }
}

/** Returns the names of the tools that the agents of a group had. */
function toolNames({ results = [] }: BatchReply['groups'][number]): string[] {
  const traces = (results as SessionResult[]).flatMap(({ trajectory }) => trajectory?.traces ?? []);
  return traces.flatMap(({ tools }) => tools.map((tool) => tool.function.name));
}

describe('environment groups', () => {
  it('are played in batches without end, each group with the same seed for its samples', async () => {
    await stack.client.createBatchStream(streamOf('train'));
    const batches = [await nextOf('train'), await nextOf('train')];
    const groups = batches.flatMap((batch) => batch.groups).sort((a, b) => a.row_index - b.row_index);
    expect(groups.map(({ row_index }) => row_index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(groups.map(({ mean_reward: reward, usable }) => [reward, usable])).toEqual(Array(8).fill([1, 2]));
    expect(new Set(groups.flatMap(toolNames))).toEqual(new Set(['move']));
    await stack.client.endBatchStream('train');
  });

  it('are evaluated once, with tools that training does not have', async () => {
    await stack.client.createBatchStream(streamOf('val'));
    const batch = await nextOf('val');
    expect(batch.groups.map(({ row, mean_reward: reward }) => [row.tag, reward])).toEqual([
      ...[
        ['Boxes', 1],
        ['Boxes', 1],
        ['Lake', 1],
        ['Lake', 1],
      ],
    ]);
    expect(new Set(batch.groups.flatMap(toolNames))).toEqual(new Set(['move', 'think']));
    expect(await nextOf('val')).toMatchObject({ done: true, batch: null });
  });
});
