import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { basename } from 'node:path';
import {
  builtInAgents,
  builtInToolsets,
  checkPluginUse,
  ENVIRONMENTS,
  type EpisodeEnd,
  type EpisodeOrder,
  httpModel,
  loadCatalog,
  type ModelEndpoint,
  type ModuleKind,
  mailboxModel,
  type PluginModules,
  pythonFor,
  REMOTE_ENVIRONMENTS,
  runEpisode,
  ToolsetPool,
} from '@floe-rl/agents';
import { FloeError, isRecord, systemClock } from '@floe-rl/core';
import type { ToolSpec } from '@floe-rl/core/schema';
import { openLocalBox } from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { interruptible } from './lifetime.ts';
import { countOption, numberOption } from './options.ts';
import { nodePlugins, type PluginOptions, withPluginOptions } from './plugin-options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { registerInit } from './scaffold/scaffold.ts';

type RunOptions = PluginOptions & {
  baseUrl?: string;
  apiKey?: string;
  mailbox?: string;
  model?: string;
  seed: string;
  environment?: string;
  config: string;
  options: string;
  instruction?: string;
  systemPrompt?: string;
  tools?: string;
  hints: boolean;
  maxTurns?: string;
  localBox?: string;
  result?: string;
  json?: boolean;
};

export function registerAgent(program: Command): void {
  const agent = program.command('agent').description('list and run the agents of floe, and make a new one');
  registerInit(agent, 'agent');
  agent.command('list').description('list the agents').option('--json', 'print JSON').action(list);
  withPluginOptions(agent.command('run <agent>'))
    .description('run an agent of floe, or of a module, against any OpenAI-compatible API, without a server of floe')
    .option('--base-url <url>', 'base URL of the API; default: $FLOE_BASE_URL')
    .option('--mailbox <dir>', 'call the model through a mailbox of a session instead; default: $FLOE_MAILBOX')
    .option('--api-key <key>', 'key of the API; default: $FLOE_API_KEY, else $OPENAI_API_KEY')
    .option('--model <name>', 'name of the model; default: $FLOE_MODEL, else policy')
    .option('--seed <n>', 'seed of the episode', '0')
    .option('--environment <name>', 'environment in which the agent acts, or the path of its module')
    .option('--config <json>', 'configuration of the environment', '{}')
    .option('--options <json>', 'settings of the agent', '{}')
    .option('--instruction <text>', 'instruction, or @FILE; default: the file $FLOE_INSTRUCTION_FILE')
    .option('--system-prompt <text>', 'text for the start of the conversation')
    .option('--tools <names>', 'comma-separated tools, or paths of their modules; default: those of the agent')
    .option('--no-hints', 'give no hints beside the results of tools')
    .option('--max-turns <n>', 'maximum number of replies')
    .option('--local-box <dir>', 'let tools act on this machine, in this directory and WITHOUT isolation')
    .option('--result <file>', 'write the result to a file, as JSON')
    .option('--json', 'print JSON')
    .action(run);
}

function list(options: { json?: boolean }): void {
  const agents = [...builtInAgents().values()].map(({ name, description }) => ({ name, description }));
  const rows = agents.map(({ name, description }) => [name, description]);
  if (options.json === true) printJson(agents);
  else printLine(formatTable(['name', 'description'], rows));
}

async function run(agent: string, options: RunOptions): Promise<void> {
  const mailbox = options.mailbox ?? (options.baseUrl === undefined ? process.env.FLOE_MAILBOX : undefined);
  const baseUrl = options.baseUrl ?? process.env.FLOE_BASE_URL;
  if (baseUrl === undefined && mailbox === undefined) {
    throw new FloeError('bad_request', '--base-url: the URL of the model is missing');
  }
  const { modules, services, mcpServers } = await nodePlugins(options);
  const names = new PluginNames(modules);
  const apiKey = options.apiKey ?? process.env.FLOE_API_KEY ?? process.env.OPENAI_API_KEY ?? null;
  const order = await orderOf(agent, options, names, { baseUrl: baseUrl ?? '', apiKey: apiKey ?? '' });
  const modelName = options.model ?? process.env.FLOE_MODEL ?? 'policy';
  const http = mailbox !== undefined ? null : httpModel({ baseUrl: baseUrl ?? '', apiKey, model: modelName });
  const model = http ?? mailboxModel(mailbox ?? '', modelName);
  // Loaded last, because its Python processes are ended by the statement that follows.
  const catalog = await loadCatalog({ ...names.modules, python: pythonFor(order, modules.python ?? {}) });
  const end = await interruptible(async (signal) => {
    checkPluginUse({ ...order, hasBox: options.localBox !== undefined, enginePools: null }, catalog, new Set());
    const pool = new ToolsetPool(systemClock);
    const box = options.localBox === undefined ? null : await openLocalBox(options.localBox, signal);
    try {
      return await runEpisode(order, { catalog, pool, model, box, services, mcpServers, signal });
    } finally {
      await pool.close();
      await box?.close();
      await http?.close();
    }
  }).finally(() => catalog.close());
  if (end === null) printNote('Interrupted.');
  else await report(agent, order, end, options);
}

/** Names of plug-ins on the command line. A path stands for the module at that path, which gets the path as its name. */
class PluginNames {
  readonly modules: Record<ModuleKind, Record<string, string>>;
  private readonly python: NonNullable<PluginModules['python']>;

  /** Begins with the plug-ins that are configured. */
  constructor({ agents, environments, tools, handlers = {}, python = {} }: PluginModules) {
    this.python = python;
    this.modules = {
      agents: { ...agents },
      environments: { ...environments },
      tools: { ...tools },
      handlers: { ...handlers },
    };
  }

  nameOf(kind: ModuleKind, value: string, known: readonly string[]): string {
    const isKnown = [this.modules[kind], this.python].some((plugins) => Object.hasOwn(plugins, value));
    if (!isKnown && !known.includes(value) && existsSync(value)) this.modules[kind][value] = value;
    return value;
  }
}

async function orderOf(
  agent: string,
  options: RunOptions,
  names: PluginNames,
  endpoint: ModelEndpoint,
): Promise<EpisodeOrder> {
  const environments = [...ENVIRONMENTS, ...REMOTE_ENVIRONMENTS].map(({ name }) => name);
  const { environment, maxTurns, systemPrompt } = options;
  return {
    sessionId: 'local',
    taskId: 'local',
    agent: names.nameOf('agents', agent, [...builtInAgents().keys()]),
    options: objectOption('--options', options.options),
    tools: options.tools === undefined ? null : toolsOf(options.tools, names),
    hints: options.hints,
    seed: numberOption('--seed', options.seed),
    instruction: await instructionOf(options.instruction),
    systemPrompt: systemPrompt ?? null,
    metadata: {},
    environment:
      environment === undefined
        ? null
        : {
            type: names.nameOf('environments', environment, environments),
            config: objectOption('--config', options.config),
          },
    limits: { turns: maxTurns === undefined ? null : countOption('--max-turns', maxTurns), contextTokens: null },
    endpoint,
    skills: [],
    workdir: options.localBox ?? null,
  };
}

function toolsOf(text: string, names: PluginNames): ToolSpec[] {
  const known = [...builtInToolsets().keys()];
  const values = text.split(',').map((name) => name.trim());
  return values.filter((name) => name !== '').map((name) => ({ name: names.nameOf('tools', name, known), config: {} }));
}

async function instructionOf(option: string | undefined): Promise<string> {
  const path = option?.startsWith('@')
    ? option.slice(1)
    : option === undefined
      ? process.env.FLOE_INSTRUCTION_FILE
      : '';
  if (path === undefined || path === '') return option ?? '';
  return readFile(path, 'utf8').catch((cause) => {
    throw new FloeError('bad_request', `--instruction: cannot read ${path}: ${cause.message}`, { path }, cause);
  });
}

function objectOption(name: string, text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new FloeError('bad_request', `${name}: ${(cause as Error).message}`, {}, cause);
  }
  if (isRecord(value)) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not a JSON object`);
}

/** Prints the result. The exit code is 1 for an episode that failed, so that a session of the harness `shell` fails with it. */
async function report(agent: string, { seed }: EpisodeOrder, end: EpisodeEnd, options: RunOptions): Promise<void> {
  const { result, metrics } = end;
  const { status, score, seatScores = {}, reason, answer = null, replyRewards = [], stepScores } = result;
  const step_scores = stepScores ?? replyRewards.map(({ reward }) => reward);
  const reply_rewards = Object.fromEntries(replyRewards.map(({ completionId, reward }) => [completionId, reward]));
  const scores = { score, seat_scores: seatScores, step_scores, reply_rewards };
  const summary = { agent, seed, status, ...scores, reason, answer, metrics };
  if (options.result !== undefined) await writeFile(options.result, `${JSON.stringify(summary)}\n`);
  if (status !== 'finished' && status !== 'truncated') process.exitCode = 1;
  if (options.json === true) printJson(summary);
  else printSummary(agent, end);
}

function printSummary(agent: string, { result, metrics }: EpisodeEnd): void {
  const { status, score, reason, answer } = result;
  const rows = Object.entries(metrics).map(([name, value]) => [name, value]);
  if (rows.length > 0) printLine(formatTable(['metric', 'value'], rows));
  if (answer !== undefined) printLine(answer);
  const colour = process.exitCode === 1 ? 'red' : 'green';
  printLine(`${basename(agent)} ${paint(colour, status)}: ${reason}${score === null ? '' : `, score ${score}`}`);
}
