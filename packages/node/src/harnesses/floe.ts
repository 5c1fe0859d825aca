import { hintSettingsSchema } from '@floe-rl/agents';
import { FloeError, parseAs } from '@floe-rl/core';
import { type AgentSpec, toolSpecSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { defineHarness } from './define.ts';

const configSchema = z.record(z.string(), z.unknown());

const settingsSchema = z.strictObject({
  agent: z.string().min(1).describe('name of the agent'),
  options: configSchema.default({}).describe('settings of the agent, which validates them'),
  tools: z
    .array(toolSpecSchema)
    .nullable()
    .default(null)
    .describe('tools of the agent; null for those that it has by itself'),
  hints: hintSettingsSchema.default(true),
});

/** Field `agent.settings` of a task whose agent runs on the node. */
export type FloeAgentSettings = z.output<typeof settingsSchema>;

/** Returns the settings of a floe agent. Throws `schema_violation` for settings that do not fit. */
export function floeAgentSettings({ settings }: AgentSpec): FloeAgentSettings {
  return parseAs(settingsSchema, settings, 'agent.settings', 'agent.settings');
}

/** The agents of floe and of the operator, which run in a process of the node and act in the sandbox through tools. */
export const floeHarness = defineHarness({
  name: 'floe',
  dialects: ['openai_chat'],
  features: ['skills', 'system_prompt'],
  install: null,
  runsOnNode: true,
  settings: settingsSchema,
  launch: () => {
    throw new FloeError('internal', 'an agent of the harness floe runs on the node and has no command');
  },
  judge: () => ({ ok: true }),
});
