import { FloeError, fieldError } from '@floe-rl/core';
import { z } from 'zod';
import { type AgentDefinition, defineAgent, type Episode } from '../loop/episode.ts';
import { type HandlerDefinition, runHandler } from '../loop/handler.ts';

const settingsSchema = z.strictObject({
  data_source: z
    .string()
    .min(1)
    .optional()
    .describe('data source whose handler runs; default: that of the instance, in the metadata of the task'),
});
type Settings = z.infer<typeof settingsSchema>;

const record = z.record(z.string(), z.unknown());
const metadataSchema = z.looseObject({
  data_source: z.string().optional(),
  /** The instance that the handler gets; default: the metadata as a whole. */
  instance: record.optional(),
  prorl: z.looseObject({ data_source: z.string().optional() }).optional(),
});

/** Returns the agent `handler`, which runs the handler of the task's data source. */
export function handlerAgent(handlers: readonly HandlerDefinition[]): AgentDefinition<Settings> {
  return defineAgent({
    name: 'handler',
    description: "runs an operator's handler: init, run and eval for a data source",
    settings: settingsSchema,
    run: (episode) => {
      const { data_source, instance, prorl } = metadataSchema.parse(episode.metadata);
      const ofInstance = z.string().safeParse(instance?.data_source).data;
      const dataSource = episode.settings.data_source ?? data_source ?? prorl?.data_source ?? ofInstance;
      const handler = handlerOf(handlers, dataSource);
      const job = { dataSource: dataSource ?? '', instance: instance ?? episode.metadata, episode: episode as Episode };
      return runHandler(handler, job);
    },
  });
}

function handlerOf(handlers: readonly HandlerDefinition[], dataSource: string | undefined): HandlerDefinition {
  const known = handlers.flatMap(({ dataSources }) => dataSources).join(', ') || 'none';
  if (dataSource === undefined) {
    const path = 'agent.settings.options.data_source';
    const message = `is missing, and the metadata of the task name no data_source; handlers are there for: ${known}`;
    throw fieldError(path, message);
  }
  const handler = handlers.find(({ dataSources }) => dataSources.includes(dataSource));
  if (handler !== undefined) return handler;
  throw new FloeError('unknown_agent', `there is no handler for data source ${dataSource}; there are: ${known}`, {
    data_source: dataSource,
  });
}
