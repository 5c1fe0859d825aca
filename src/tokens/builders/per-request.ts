import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import { assembleTrace } from './assembly.ts';
import type { Builder } from './builder.ts';
import { creditSchema } from './credit.ts';
import { excludedCompletions, includeSchema } from './exclusion.ts';

export const perRequestConfigSchema = z.strictObject({ include: includeSchema, credit: creditSchema });

/** Each trainable completion is a trace of its own: its prompt, and its response with mask 1. Always exact. */
export const perRequestBuilder: Builder = {
  name: 'per_request',
  checkConfig(config) {
    parseAs(perRequestConfigSchema, config, 'builder.config', 'builder.config');
  },
  build(graph, config) {
    const { include, credit } = parseAs(perRequestConfigSchema, config, 'builder.config', 'builder.config');
    const excluded = excludedCompletions(graph, include);
    const trained = graph.nodes.filter((node) => !excluded.has(node.completion.completionId));
    return { traces: trained.map((node) => assembleTrace(graph, [node], () => true)), excluded, credit };
  },
};
