import { settleAll } from '@floe-rl/core';
import type { EnvironmentDefinition } from '../../environments/environment.ts';
import type { AgentDefinition } from '../../loop/episode.ts';
import type { HandlerDefinition } from '../../loop/handler.ts';
import { pythonEnvironment } from './python-environment.ts';
import { pythonHandler } from './python-handler.ts';
import { PythonHost } from './python-host.ts';
import type { PythonPlugin } from './python-plugin.ts';
import { pythonRunner } from './python-runner.ts';

/** What Python plug-ins define. */
export type PythonDefinitions = {
  readonly agents: readonly AgentDefinition[];
  readonly environments: readonly EnvironmentDefinition[];
  readonly handlers: readonly (HandlerDefinition & { readonly name: string })[];
  /** Ends the processes. */
  close(): Promise<void>;
};

/** Starts the processes of Python plug-ins. Rejects with `setup_failed` for a plug-in that cannot be started or imported. */
export async function loadPythonPlugins(plugins: Readonly<Record<string, PythonPlugin>>): Promise<PythonDefinitions> {
  const hosts = Object.entries(plugins).map(([name, plugin]) => new PythonHost(name, plugin));
  const close = async (): Promise<void> => void (await Promise.all(hosts.map((host) => host.close())));
  const ofKind = (kind: PythonPlugin['kind']): PythonHost[] => hosts.filter(({ plugin }) => plugin.kind === kind);
  try {
    await settleAll(hosts.map((host) => host.process()));
    return {
      agents: ofKind('runner').map((host) => pythonRunner(host) as AgentDefinition),
      environments: ofKind('environment').map((host) => pythonEnvironment(host) as EnvironmentDefinition),
      handlers: await Promise.all(ofKind('handler').map(pythonHandler)),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}
