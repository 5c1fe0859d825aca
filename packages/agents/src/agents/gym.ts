import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { HISTORIES, playEnvironment } from '../loop/play.ts';
import { withTools } from '../loop/with-tools.ts';

const settingsSchema = z.strictObject({
  history: z.enum(HISTORIES).default('append').describe('what each prompt contains of the steps before it'),
  summary_steps: z
    .int()
    .min(0)
    .max(100)
    .default(3)
    .describe('number of earlier steps that a prompt of the histories `step` and `step_concat` repeats'),
  max_steps: z.int().min(1).nullable().default(null).describe('maximum number of replies'),
  max_tokens_per_step: z.int().min(1).nullable().default(null).describe('maximum length of a reply in tokens'),
});

/** Plays the environment of the task. Each reply is an action, a tool call or a text, as the environment wants it, or calls tools of the task. */
export const gymAgent = defineAgent({
  name: 'gym',
  description: 'plays an environment; each reply is one action',
  settings: settingsSchema,
  needs: { environment: true },
  run: (episode) => {
    const { history, summary_steps, max_steps, max_tokens_per_step } = episode.settings;
    const { environment, tools } = episode;
    const world = environment === null || tools.length === 0 ? environment : withTools(environment, tools, episode);
    const options = {
      history,
      summarySteps: summary_steps,
      maxTokensPerStep: max_tokens_per_step,
      maxSteps: max_steps,
    };
    return playEnvironment({ ...episode, environment: world }, options);
  },
});
