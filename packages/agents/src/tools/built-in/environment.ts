import { FloeError, fieldError } from '@floe-rl/core';
import { contentText } from '@floe-rl/core/schema';
import { z } from 'zod';
import { contentOf, stepTools } from '../step-tool.ts';
import { defineToolset } from '../toolset.ts';

/** The environment of the task as tools, for an agent that also has others. */
export const environmentToolset = defineToolset({
  name: 'environment',
  description: 'the environment of the task as tools, whose rewards are the score',
  config: z.strictObject({}),
  scope: 'session',
  async open(_, { environment, seed }) {
    if (environment === null) {
      const message = 'environment: the tool environment needs one';
      throw fieldError('environment', message, { text: message });
    }
    const observation = await environment.reset(seed);
    if (observation === null) throw new FloeError('unsupported', 'environment: no episode for this seed');
    const first = contentOf(observation.messages);
    const text = contentText(first, { separator: '\n', image: '[image]' });
    const instructions = [observation.introduction ?? '', text].filter((part) => part !== '').join('\n\n');
    return { tools: stepTools(environment, observation), ...(instructions === '' ? {} : { instructions }) };
  },
});
