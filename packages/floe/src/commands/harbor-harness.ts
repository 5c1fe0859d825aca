import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { FloeError, makeTempDir, undoAll } from '@floe-rl/core';
import { type EngineKind, engineKindSchema, type RuntimeBackend, type SessionResult } from '@floe-rl/core/schema';
import { findHarness, installHarness } from '@floe-rl/node';
import { createLogger } from '@floe-rl/observe';
import type { PlacedImageSettings } from '@floe-rl/sandbox';
import { loadScenarios, startSim } from '@floe-rl/sim';
import type { Command } from 'commander';
import { startNode, startServer } from '../up/stack.ts';
import { type AgentOptions, withAgentOptions } from './agent-options.ts';
import { writeTraces } from './demo-run.ts';
import type { ReferenceTask } from './harbor-reference.ts';
import { harnessDir } from './home.ts';
import type { EngineSockets } from './image-builders.ts';
import { listed } from './options.ts';
import { printNote } from './print.ts';

/** Options that name the agent and the engine. */
export type HarnessOptions = AgentOptions & {
  engine: string[];
  engineKind: EngineKind;
  model?: string;
  sim?: boolean;
  scenario: string[];
  out?: string;
};

export type HarnessResult = { readonly task: string; readonly result: SessionResult };

type Setup = {
  readonly backend: RuntimeBackend;
  readonly sockets: EngineSockets;
  readonly apptainerCommand: string;
  readonly images: PlacedImageSettings;
  readonly allowNetwork: boolean;
  readonly options: HarnessOptions;
};

export function withHarnessOptions(command: Command): Command {
  return withAgentOptions(command)
    .option('--engine <url...>', 'URLs of inference servers, without /v1', [])
    .option('--engine-kind <kind>', `API of the inference servers: ${listed(engineKindSchema.options)}`, 'vllm')
    .option('--model <name>', "name of the engines' model (default: the first one that each serves)")
    .option('--sim', 'use the simulated engine')
    .option('--scenario <file...>', 'files with scenarios of the simulated engine', [])
    .option('--out <dir>', 'folder for the traces and the results of all sessions');
}

/** Runs tasks with a harness. Starts a server, a node and, with `--sim`, an engine in this process, and ends them afterwards. */
export async function runWithHarness(
  tasks: readonly ReferenceTask[],
  samples: number,
  setup: Setup,
  signal: AbortSignal,
): Promise<HarnessResult[]> {
  const { options } = setup;
  if (options.engine.length === 0 && options.sim !== true) {
    throw new FloeError('bad_request', 'a harness needs an engine: --engine <url> or --sim');
  }
  const adapter = findHarness(tasks[0]?.task.agent.harness ?? options.harness);
  if (adapter.install !== null) await installHarness(adapter.name, { cacheDir: harnessDir(), log: printNote, signal });
  const dir = makeTempDir('floe-harbor-');
  const closers: (() => Promise<unknown>)[] = [() => rm(dir, { recursive: true, force: true })];
  try {
    const engines = [...options.engine, ...(options.sim === true ? [await startEngine(options, closers)] : [])];
    const client = await startFloe(dir, engines, tasks, setup, closers);
    const results = await collect(client, tasks, samples, signal);
    if (options.out !== undefined) await write(options.out, results);
    return results;
  } finally {
    await undoAll(closers);
  }
}

async function startEngine(options: HarnessOptions, closers: (() => Promise<unknown>)[]): Promise<string> {
  const face = options.engineKind === 'sglang' ? 'sglang' : 'vllm';
  const sim = await startSim({ scenarios: await loadScenarios(options.scenario), face, scaleOut: true });
  closers.push(() => sim.close());
  return sim.url;
}

async function startFloe(
  dir: string,
  engines: readonly string[],
  tasks: readonly ReferenceTask[],
  { backend, sockets, apptainerCommand, images, allowNetwork, options }: Setup,
  closers: (() => Promise<unknown>)[],
): Promise<FloeClient> {
  const log = createLogger('floe-harbor', process.env.FLOE_LOG_LEVEL ?? 'error');
  const token = randomBytes(32).toString('base64url');
  const server = await startServer(join(dir, 'server'), { port: 0, token }, log);
  closers.push(() => server.close());
  const cores = cpus().length;
  const node = await startNode(
    {
      node_id: 'harbor',
      server_url: server.url,
      token,
      state_dir: join(dir, 'gateway'),
      harness_dir: harnessDir(),
      pools: { init: cores, ready: cores, run: 2 * cores, postrun: cores },
      engines: engines.map((base_url) => ({ base_url, kind: options.engineKind, model: options.model ?? null })),
      default_backend: backend,
      docker_socket: sockets.dockerSocket,
      podman_socket: sockets.podmanSocket,
      apptainer_command: apptainerCommand,
      images,
      allow_host_network: allowNetwork,
      upload_roots: tasks.map(({ harbor }) => harbor.dir),
    },
    log,
  );
  closers.push(() => node.close());
  const client = new FloeClient({ url: server.url, token });
  closers.push(() => client.close());
  return client;
}

/** Submits the tasks and reads their results by cursor as a trainer does. */
async function collect(
  client: FloeClient,
  tasks: readonly ReferenceTask[],
  samples: number,
  signal: AbortSignal,
): Promise<HarnessResult[]> {
  const names = new Map<string, string>();
  for (const { harbor, task } of tasks) {
    const { task_id } = await client.submit({ ...task, num_samples: samples });
    names.set(task_id, harbor.name);
  }
  const results: HarnessResult[] = [];
  const total = tasks.length * samples;
  for await (const result of client.results({ signal })) {
    const task = names.get(result.task_id) ?? result.task_id;
    printNote(`  ${task} #${result.sample_index}: ${result.outcome}, reward ${result.reward ?? 'none'}`);
    results.push({ task, result });
    if (results.length === total) break;
  }
  return results;
}

async function write(dir: string, results: readonly HarnessResult[]): Promise<void> {
  const names = new Map(results.map(({ task, result }) => [result.task_id, task.replaceAll('/', '-')]));
  const taskName = (taskId: string): string => names.get(taskId) ?? taskId;
  await writeTraces(dir, { results: results.map(({ result }) => result), taskName });
}

/** Mean of the rewards that are known; `null` when none is. */
export function mean(rewards: readonly (number | null)[]): number | null {
  const known = rewards.filter((reward) => reward !== null);
  return known.length === 0 ? null : known.reduce((sum, reward) => sum + reward, 0) / known.length;
}
