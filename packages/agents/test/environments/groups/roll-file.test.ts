import { describe, expect, it } from 'vitest';
import { isRollFile, readRollFile } from '../../../src/environments/groups/roll-file.ts';

const MANAGER = 'roll.pipeline.agentic.env_manager';

const FILE = {
  seed: 7,
  rollout_batch_size: 32,
  val_batch_size: 12,
  exp_name: 'mine',
  turns: 8,
  logger: { key: `\${oc.env:KEY}` },
  actor_infer: { generating_args: { temperature: 0.9, top_k: -1, max_new_tokens: `\${tokens}`, num_beams: 1 } },
  tokens: 48,
  shared: { lake: { env_type: 'frozen_lake', max_steps: `\${turns}`, env_config: { is_slippery: false, p: 0.7 } } },
  custom_envs: {
    Boxes: {
      env_type: 'sokoban',
      max_steps: `\${turns}`,
      max_tokens_per_step: `\${tokens}`,
      env_manager_cls: `${MANAGER}.step_env_manager.StepEnvManager`,
      history_length: 2,
      use_thread_lock: true,
      agent_system_template: 'Play well.',
      env_config: { dim_room: [6, 6], num_boxes: 1, format_penalty: -0.2, grid_vocab: { W: 'wall' } },
    },
    Lake: `\${shared.lake}`,
    Unused: { env_type: 'sokoban', env_config: `\${nothing}` },
    Shop: { env_type: 'webshop', env_config: { observation_mode: 'text' } },
  },
  train_env_manager: {
    num_env_groups: 4,
    group_size: 8,
    tags: ['Boxes'],
    num_groups_partition: [4],
    max_env_num_per_worker: 16,
  },
  val_env_manager: {
    num_env_groups: 6,
    group_size: 1,
    tags: ['Boxes', 'Lake', 'Shop'],
    num_groups_partition: [3, 2, 1],
  },
};

describe('a file of ROLL', () => {
  it('becomes a file of floe, whose references are resolved where it is read', () => {
    const { file, batchSize } = readRollFile(FILE);
    expect(batchSize).toBe(4);
    expect(file).toMatchObject({
      train: { num_env_groups: 4, group_size: 8, tags: ['Boxes'], num_groups_partition: [4], seed: 7, episodes: null },
      val: { num_env_groups: 6, group_size: 1, num_groups_partition: [3, 2, 1], seed: 7, episodes: 2 },
      task: { sampling: { temperature: 0.9, top_k: 0, max_tokens: 48 } },
    });
    expect(file.environments.Boxes).toEqual({
      type: 'sokoban',
      config: {
        ...{ action_format: 'text', dim_room: [6, 6], max_steps: 20, num_boxes: 1, search_depth: 300 },
        ...{ step_reward: -0.1, box_reward: 1, success_reward: 10, invalid_action_reward: expect.closeTo(-0.3) },
      },
      max_steps: 8,
      max_tokens_per_step: 48,
      options: { history: 'step', summary_steps: 1 },
      instruction: 'Play well.',
    });
    expect(file.environments.Lake).toMatchObject({
      type: 'frozen_lake',
      config: { slippery: false, ice_probability: 0.7, size: 4 },
      options: { history: 'append' },
    });
    expect(file.environments.Shop).toMatchObject({ type: 'webshop', config: { observation_mode: 'text' } });
    expect(file.environments).not.toHaveProperty('Unused');
  });

  it('is read with a note of each field that has no effect', () => {
    expect(readRollFile(FILE).notes).toEqual(
      expect.arrayContaining([
        'custom_envs.Boxes.env_config.grid_vocab: has no effect in floe',
        'custom_envs.Boxes.use_thread_lock: has no effect in floe',
        'custom_envs.Shop.env_type: floe has no environment webshop; its name is kept',
        'train_env_manager.max_env_num_per_worker: has no effect in floe',
        "exp_name: belongs to ROLL's trainer",
      ]),
    );
  });

  it('keeps the observations of earlier steps for a class that concatenates them', () => {
    const env_manager_cls = `${MANAGER}.step_concat_env_manager.StepConcatEnvManager`;
    const custom_envs = { ...FILE.custom_envs, Boxes: { env_type: 'sokoban', env_manager_cls, history_length: 5 } };
    expect(readRollFile({ ...FILE, custom_envs }).file.environments.Boxes?.options).toEqual({
      history: 'step_concat',
      summary_steps: 4,
    });
  });

  it('takes calls of tools from the runner of tool calls', () => {
    const runner = 'roll.pipeline.agentic.agent_runner.gem_runner.ToolCallRunner';
    const custom_envs = { ...FILE.custom_envs, Boxes: { env_type: 'sokoban', agent_runner_cls: runner } };
    expect(readRollFile({ ...FILE, custom_envs }).file.environments.Boxes?.config).toMatchObject({
      action_format: 'tool',
    });
  });

  it.each([
    [
      'an unknown class',
      { env_manager_cls: 'mine.Manager' },
      /^custom_envs\.Boxes\.env_manager_cls: floe does not know/,
    ],
    ['a missing type', { env_type: undefined }, /custom_envs\.Boxes\.env_type/],
    ['a variable of the process', { max_steps: `\${oc.env:STEPS}` }, /^custom_envs\.Boxes\.max_steps: .*oc\.env:STEPS/],
  ])('is refused for %s, with the name of the field', (_, fields, message) => {
    const Boxes = { ...FILE.custom_envs.Boxes, ...fields };
    expect(() => readRollFile({ ...FILE, custom_envs: { ...FILE.custom_envs, Boxes } })).toThrow(message);
  });

  it('is known by its fields', () => {
    expect(isRollFile(FILE)).toBe(true);
    expect(isRollFile({ environments: {}, train: {} })).toBe(false);
  });
});
