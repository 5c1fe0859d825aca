import { parse } from 'node:path';
import {
  checkEnvironment,
  ENVIRONMENTS,
  type EnvironmentCheck,
  type EnvironmentDefinition,
  findEnvironment,
  REMOTE_ENVIRONMENTS,
  SPLITS,
  type Split,
} from '@floe-rl/agents';
import { FloeError, fillTemplate, parseAs } from '@floe-rl/core';
import { episodeRow, groupCount } from '@floe-rl/core/rows';
import { taskRequestSchema } from '@floe-rl/core/schema';
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { playInTerminal } from './env-play.ts';
import { groupStream } from './group-files.ts';
import { interruptible } from './lifetime.ts';
import { countOption, numberOption } from './options.ts';
import { nodePlugins, type PluginOptions, withPluginOptions } from './plugin-options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { registerInit } from './scaffold/scaffold.ts';

/** Number of malformed replies that each environment gets. */
const MALFORMED_REPLIES = 1_000;

export function registerEnv(program: Command): void {
  const env = program.command('env').description('list, check and play the environments of agents');
  withPluginOptions(env.command('list'))
    .description('list the environments, those of a node as well')
    .option('--json', 'print JSON, with the schemas')
    .action(list);
  registerInit(env, 'environment');
  withPluginOptions(env.command('check [names...]'))
    .description('check environments without a model: perfect, random, idle and malformed play; a path names a module')
    .option('--config <json>', 'configuration of the environments', '{}')
    .option('--seeds <n>', 'number of episodes of each kind of play', '20')
    .option('--json', 'print JSON')
    .action(check);
  withPluginOptions(env.command('play <name>'))
    .description('play an episode in the terminal')
    .option('--seed <n>', 'seed of the episode', '0')
    .option('--config <json>', 'configuration of the environment', '{}')
    .action(play);
  env
    .command('tasks <file>')
    .description('print tasks of a file of environment groups, of floe or of ROLL, as JSON lines')
    .addOption(new Option('--split <name>', 'part of the file').choices(SPLITS).default('train'))
    .option('--from <n>', 'number of the first task', '0')
    .option('--count <n>', 'number of tasks', '1')
    .action(tasks);
}

async function tasks(file: string, options: { split: Split; from: string; count: string }): Promise<void> {
  const { source, task } = await groupStream(file, options.split, {});
  if (source.kind !== 'environments') return;
  const first = numberOption('--from', options.from);
  const rows = source.episodes === null ? Number.POSITIVE_INFINITY : groupCount(source) * source.episodes;
  const end = Math.min(first + countOption('--count', options.count), rows);
  for (let index = first; index < end; index++) {
    const fields = fillTemplate(task, 'row', episodeRow(source, index));
    printLine(JSON.stringify(parseAs(taskRequestSchema, fields, 'task')));
  }
}

async function list(options: PluginOptions & { json?: boolean }): Promise<void> {
  const { environments, services } = await nodeEnvironments(options);
  const names = new Set(REMOTE_ENVIRONMENTS.map(({ name }) => name));
  const listed = environments.map(({ name, description, config }) => {
    return { name, description, config, ...(names.has(name) ? { services: serversOf(name, services) } : {}) };
  });
  if (options.json === true) {
    printJson(listed.map(({ config, ...rest }) => ({ ...rest, config: schemaOf(config) })));
  } else {
    const rows = listed.map(({ name, description, services = [] }) => [name, services.join(', '), description]);
    printLine(formatTable(['name', 'servers', 'description'], rows));
  }
}

/** Returns the schema of a configuration; `null` for a module that checks its configuration in another way. */
function schemaOf(config: z.ZodType): object | null {
  return config instanceof z.ZodType ? z.toJSONSchema(config, { io: 'input', unrepresentable: 'any' }) : null;
}

/** Returns the names of the servers of one kind that are configured. */
function serversOf(kind: string, services: Readonly<Record<string, string>>): string[] {
  const names = Object.keys(services).filter((name) => name.startsWith(`${kind}.`) && !name.endsWith('.key'));
  return names.map((name) => name.slice(kind.length + 1));
}

/** The environments and services of a node with these options. Its Python environments start when they are played. */
type NodeEnvironments = {
  readonly environments: readonly EnvironmentDefinition[];
  readonly services: Readonly<Record<string, string>>;
  /** Ends the processes of Python environments. */
  close(): Promise<void>;
};

async function nodeEnvironments(options: PluginOptions): Promise<NodeEnvironments> {
  const { modules, services } = await nodePlugins(options);
  const { PythonHost, pythonEnvironment } = await import('@floe-rl/agents');
  const hosts = Object.entries(modules.python ?? {}).flatMap(([name, plugin]) =>
    plugin.kind === 'environment' ? [new PythonHost(name, plugin)] : [],
  );
  const python = hosts.map((host) => pythonEnvironment(host) as EnvironmentDefinition);
  return {
    environments: [...(await environmentsOf(modules.environments)), ...python],
    services,
    close: async () => void (await Promise.all(hosts.map((host) => host.close()))),
  };
}

/** Returns the environments of floe, at servers and of modules. */
async function environmentsOf(modules: Readonly<Record<string, string>>): Promise<readonly EnvironmentDefinition[]> {
  if (Object.keys(modules).length === 0) return [...ENVIRONMENTS, ...REMOTE_ENVIRONMENTS];
  const { loadCatalog } = await import('@floe-rl/agents');
  const { environments } = await loadCatalog({ agents: {}, tools: {}, environments: modules });
  return [...environments.values()];
}

async function check(
  names: string[],
  options: PluginOptions & { config: string; seeds: string; json?: boolean },
): Promise<void> {
  const config = configOption(options.config);
  const seeds = countOption('--seeds', options.seeds);
  const { environments: all, services, close } = await nodeEnvironments(options);
  // A server decides what equal seeds mean, so its environments cannot be checked.
  const known = all.filter(({ name }) => !REMOTE_ENVIRONMENTS.some((remote) => remote.name === name));
  const environments =
    names.length === 0 ? ENVIRONMENTS : await Promise.all(names.map((name) => definitionOf(name, known)));
  const checks = await interruptible(async (signal) => {
    const results: EnvironmentCheck[] = [];
    for (const environment of environments) {
      const limits = { seeds, malformed: MALFORMED_REPLIES };
      results.push(await checkEnvironment(environment, config, { ...limits, signal, services }));
    }
    return results;
  }).finally(close);
  if (checks === null) return;
  const failed = checks.filter(({ problems }) => problems.length > 0).length;
  const passed = checks.length - failed;
  if (failed > 0) process.exitCode = 1;
  if (options.json === true) printJson({ environments: checks, passed, failed });
  else printChecks(checks, `${checks.length} environments, ${passed} passed, ${failed} failed`);
}

function printChecks(checks: readonly EnvironmentCheck[], summary: string): void {
  const rounded = (value: number | null): number | null => (value === null ? null : Math.round(value * 1_000) / 1_000);
  const rows = checks.map(({ name, episodes, perfect, random, idle, turns, malformed, problems }) => [
    name,
    episodes,
    rounded(perfect),
    rounded(random),
    rounded(idle),
    rounded(turns),
    malformed,
    problems.length === 0 ? paint('green', 'passed') : paint('red', 'failed'),
  ]);
  printLine(formatTable(['name', 'episodes', 'perfect', 'random', 'idle', 'turns', 'malformed', 'result'], rows));
  for (const { name, problems } of checks) {
    for (const problem of problems) printLine(`${paint('red', 'problem')} ${name}: ${problem}`);
  }
  printLine(summary);
}

async function play(name: string, options: PluginOptions & { seed: string; config: string }): Promise<void> {
  const { environments, services, close } = await nodeEnvironments(options);
  const environment = await definitionOf(name, environments);
  const [config, seed] = [configOption(options.config), numberOption('--seed', options.seed)];
  const done = await interruptible((signal) =>
    playInTerminal(environment, config, seed, { signal, services }).finally(close),
  );
  if (done === null) printNote('Interrupted.');
}

/** Returns the environment with a name among `known`, or the environment of the module at a path. */
async function definitionOf(
  nameOrPath: string,
  known: readonly EnvironmentDefinition[],
): Promise<EnvironmentDefinition> {
  if (!/[/\\]|\.[cm]?js$/.test(nameOrPath)) return findEnvironment(nameOrPath, known);
  const name = parse(nameOrPath).name;
  return findEnvironment(name, await environmentsOf({ [name]: nameOrPath }));
}

function configOption(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new FloeError('bad_request', `--config: ${(cause as Error).message}`, {}, cause);
  }
}
