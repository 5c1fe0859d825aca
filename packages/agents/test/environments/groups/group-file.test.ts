import { parseAs } from '@floe-rl/core';
import { type BatchStreamRequest, batchStreamRequestSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import {
  type GroupFileInput,
  groupFileSchema,
  type Split,
  streamOfSplit,
} from '../../../src/environments/groups/group-file.ts';
import { ENVIRONMENTS } from '../../../src/environments/registry.ts';

const FILE = {
  environments: {
    Sokoban6: { type: 'sokoban', config: { num_boxes: 1 }, max_steps: 10, max_tokens_per_step: 64 },
    Lake: { type: 'frozen_lake', options: { history: 'step' } },
  },
  train: { num_env_groups: 4, group_size: 8, tags: ['Sokoban6'], num_groups_partition: [4], seed: 42 },
  val: { num_env_groups: 6, tags: ['Sokoban6', 'Lake'], num_groups_partition: [2, 4], hints: false },
  task: { timeout_seconds: 60, sampling: { temperature: 0.7 } },
} satisfies GroupFileInput;

function streamOf(file: object, split: Split = 'train', given: Record<string, unknown> = {}): BatchStreamRequest {
  const parsed = parseAs(groupFileSchema, file, 'the file');
  return parseAs(batchStreamRequestSchema, streamOfSplit(parsed, split, given, ENVIRONMENTS), 'the stream');
}

describe('a split of a file of environment groups', () => {
  it('is an endless stream of episodes for training', () => {
    expect(streamOf(FILE)).toMatchObject({
      purpose: 'train',
      source: {
        kind: 'environments',
        seed: 42,
        episodes: null,
        environments: [
          {
            ...{ tag: 'Sokoban6', groups: 4, type: 'sokoban', config: { max_steps: 10, num_boxes: 1 } },
            options: { max_steps: 10, max_tokens_per_step: 64 },
          },
        ],
      },
      task: {
        num_samples: 8,
        environment: '{{row.environment}}',
        runtime: { backend: 'none' },
        evaluator: { strategy: 'environment' },
        agent: { harness: 'floe', settings: { agent: 'gym', options: '{{row.options}}' } },
        timeout_seconds: 60,
        sampling: { temperature: 0.7 },
      },
    });
  });

  it('is an evaluation of one episode for each group, with hints of its own', () => {
    expect(streamOf(FILE, 'val')).toMatchObject({
      purpose: 'evaluate',
      source: { episodes: 1, environments: [{ groups: 2 }, { groups: 4, options: { history: 'step' } }] },
      task: { num_samples: 1, agent: { settings: { hints: false } } },
    });
  });

  it.each(['gym', 'tool_call'])('has tools of its own for the agent %s', (agent) => {
    const val = { ...FILE.val, agent, tools: ['think'] };
    expect(streamOf({ ...FILE, val }, 'val').task).toMatchObject({ agent: { settings: { agent, tools: ['think'] } } });
    expect(streamOf({ ...FILE, val }).task).not.toHaveProperty('agent.settings.tools');
  });

  it('takes fields of the stream and of its tasks', () => {
    expect(streamOf(FILE, 'train', { batch_size: 3, task: { timeout_seconds: 9 } })).toMatchObject({
      batch_size: 3,
      task: { timeout_seconds: 9, sampling: { temperature: 0.7 } },
    });
  });

  it('divides the groups equally among the tags when no partition is given', () => {
    const val = { num_env_groups: 6, tags: ['Sokoban6', 'Lake'] };
    expect(streamOf({ ...FILE, val }, 'val').source).toMatchObject({ environments: [{ groups: 3 }, { groups: 3 }] });
  });

  it.each([
    ['an unknown tag', { tags: ['Sokoban7'] }, /^train\.tags: there is no environment Sokoban7.*: Sokoban6, Lake$/],
    ['a partition that does not add up', { num_groups_partition: [3] }, /^train\.num_groups_partition: adds up to 3/],
    ['a partition of other length', { num_groups_partition: [2, 2] }, /^train\.num_groups_partition: has 2 numbers/],
    ['a tag named twice', { tags: ['Lake', 'Lake'] }, /^train\.tags: names a tag twice/],
    [
      'groups that cannot be divided',
      { num_env_groups: 3, tags: ['Lake', 'Sokoban6'], num_groups_partition: undefined },
      /^train\.num_env_groups: 3 groups cannot be divided equally among 2 tags/,
    ],
    ['a missing field', { num_env_groups: undefined }, /train\.num_env_groups/],
    ['a field that is misspelt', { num_groups: 2 }, /train: Unrecognized key: "num_groups"/],
  ])('is refused for %s, with the name of the field', (_, fields, message) => {
    expect(() => streamOf({ ...FILE, train: { ...FILE.train, ...fields } })).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringMatching(message) }),
    );
  });

  it('is refused when it is missing, and when the settings of an environment do not fit', () => {
    expect(() => streamOf({ ...FILE, val: undefined }, 'val')).toThrow('val: is missing');
    const environments = { Sokoban6: { type: 'sokoban', config: { boxes: 1 } } };
    expect(() => streamOf({ ...FILE, environments })).toThrow(/environments\.Sokoban6\.config/);
  });
});
