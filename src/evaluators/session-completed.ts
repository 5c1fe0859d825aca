import { z } from 'zod';
import { parseAs } from '../core/parse.ts';
import type { Evaluator } from './evaluator.ts';

const configSchema = z.strictObject({});

/** 1 when the agent's run ended as COMPLETED, else 0. Runs nothing. */
export const sessionCompletedEvaluator: Evaluator = {
  name: 'session_completed',
  checkConfig(config) {
    parseAs(configSchema, config, 'evaluator.config', 'evaluator.config');
  },
  async evaluate({ spec, status }) {
    parseAs(configSchema, spec.config, 'evaluator.config', 'evaluator.config');
    return { reward: status === 'COMPLETED' ? 1 : 0, details: { status } };
  },
};
