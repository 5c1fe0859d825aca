import { z } from 'zod';

type Fields = Readonly<Record<string, unknown>>;

/** How an environment of ROLL is one of floe. */
export type RollEnvironment = {
  readonly type: string;
  /** Fields of ROLL's `env_config` that are read. The others have no effect in floe. */
  readonly reads: readonly string[];
  /** Returns the configuration of floe's environment, with ROLL's defaults. */
  config(fields: Fields): Record<string, unknown>;
};

function sokoban(actionFormat: 'text' | 'tool'): RollEnvironment {
  return {
    type: 'sokoban',
    reads: ['dim_room', 'max_steps', 'num_boxes', 'search_depth', 'format_penalty', 'action_pattern'],
    config: ({ dim_room = [10, 10], max_steps = 20, num_boxes = 4, search_depth = 300, format_penalty = 0 }) => ({
      ...{ action_format: actionFormat, dim_room, max_steps, num_boxes, search_depth },
      // Rewards of gym-sokoban, on which ROLL's environment is built. An invalid action costs a step there, too.
      ...{ step_reward: -0.1, box_reward: 1, success_reward: 10 },
      invalid_action_reward: -0.1 + numberOf(format_penalty),
    }),
  };
}

const frozenLake: RollEnvironment = {
  type: 'frozen_lake',
  reads: ['size', 'p', 'is_slippery', 'max_steps', 'format_penalty', 'action_pattern'],
  config: ({ size = 4, p = 0.8, is_slippery = true, max_steps = 20, format_penalty = 0 }) => ({
    ...{ action_format: 'text', size, ice_probability: p, slippery: is_slippery, max_steps },
    invalid_action_reward: format_penalty,
  }),
};

const guessNumber: RollEnvironment = {
  type: 'guess_number',
  reads: ['min_number', 'max_number', 'max_turns'],
  config: ({ min_number = 1, max_number = 20, max_turns = 10 }) => ({
    ...{ action_format: 'text', min: min_number, max: max_number, max_steps: max_turns },
  }),
};

const wordle: RollEnvironment = {
  type: 'wordle',
  reads: ['max_turns'],
  config: ({ max_turns = 20 }) => ({ action_format: 'text', max_steps: max_turns }),
};

/** ROLL's environments by their `env_type` that floe has; the games of the gem library carry its version. */
export const ROLL_ENVIRONMENTS: ReadonlyMap<string, RollEnvironment> = new Map([
  ['sokoban', sokoban('text')],
  ['sokoban_native_env', sokoban('text')],
  ['sokoban_tool_call', sokoban('tool')],
  ['frozen_lake', frozenLake],
  ['game:GuessTheNumber-v0', guessNumber],
  ['game:Wordle-v0', wordle],
]);

/** What a prompt contains of the steps before it; a setting of the agent `gym`. */
export type RollHistory = 'append' | 'step' | 'step_concat';

/** What the classes of ROLL that run episodes mean for the agent `gym`. `null`: the class changes nothing of what the model sees. */
export const ROLL_CLASSES: Readonly<Record<string, RollHistory | null>> = {
  'roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager': 'append',
  'roll.pipeline.agentic.env_manager.vl_traj_env_manager.VLTrajEnvManager': 'append',
  'roll.pipeline.agentic.env_manager.agent_native_env_manager.AgentNativeStepEnvManager': 'append',
  'roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager': 'step',
  'roll.pipeline.agentic.env_manager.step_concat_env_manager.StepConcatEnvManager': 'step_concat',
  'roll.pipeline.agentic.env_manager.proxy_env_manager.ProxyEnvManager': 'append',
  'roll.pipeline.agentic.agent_runner.gem_runner.GEMRunner': null,
  'roll.pipeline.agentic.agent_runner.gem_runner.ToolCallRunner': null,
};

function numberOf(value: unknown): number {
  return z.number().catch(0).parse(value);
}
