import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import { assembleTrace } from './assembly.ts';
import type { Builder } from './builder.ts';
import { forkOwnerSchema, ownedChains } from './chains.ts';
import { creditSchema } from './credit.ts';
import { excludedCompletions, includeSchema } from './exclusion.ts';

export const stepConfigSchema = z.strictObject({
  fork_owner: forkOwnerSchema,
  include: includeSchema,
  credit: creditSchema,
});

/**
 * Each trainable completion is a trace of its own, in its exact context, and knows its place: the chain that it belongs to is an
 * episode, of which it is a turn. The turns of one episode stand together, in order, the last one marked. Drift does not end an
 * episode, since every turn brings its own prompt; a fork, a new root or other tools begin another.
 */
export const stepBuilder: Builder = {
  name: 'step',
  checkConfig(config) {
    parseAs(stepConfigSchema, config, 'builder.config', 'builder.config');
  },
  build(graph, config) {
    const { fork_owner, include, credit } = parseAs(stepConfigSchema, config, 'builder.config', 'builder.config');
    const excluded = excludedCompletions(graph, include);
    const chains = ownedChains(
      graph,
      fork_owner,
      (node) => node.parent,
      (node) => {
        return !excluded.has(node.completion.completionId);
      },
    );
    const traces = chains.flatMap((chain, episode) => {
      const turns = chain.filter((node) => !excluded.has(node.completion.completionId));
      return turns.map((node, turn) => ({
        ...assembleTrace(graph, [node], () => true),
        step: { episode, turn, last: turn === turns.length - 1 },
      }));
    });
    return { traces, excluded, credit };
  },
};
