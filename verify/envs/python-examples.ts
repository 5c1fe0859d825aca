import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gatewayConfigSchema } from '@floe-rl/node';
import { parse } from 'yaml';
import type { PythonPlugin } from '#agents/host/python/python-plugin';
import { repositoryRoot } from '../../tools/repository.ts';

const { python: pluginsSchema } = gatewayConfigSchema.shape.plugins.unwrap().shape;

/** Returns the Python plug-ins of the examples, from the configuration file that lies beside them. */
export function examplePythonPlugins(): Record<string, PythonPlugin> {
  const file = join(repositoryRoot(), 'examples', 'python', 'floe.yaml');
  const config = parse(readFileSync(file, 'utf8')) as { node: { plugins: { python: unknown } } };
  const plugins = pluginsSchema.parse(config.node.plugins.python);
  // Paths of the file are relative to the folder in which floe is started.
  return Object.fromEntries(
    Object.entries(plugins).map(([name, plugin]) => {
      return [name, { ...plugin, path: join(repositoryRoot(), plugin.path ?? '') }];
    }),
  );
}
