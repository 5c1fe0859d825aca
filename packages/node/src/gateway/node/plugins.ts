import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { builtInCatalog, type Catalog, checkPluginUse } from '@floe-rl/agents';
import {
  type Builder,
  type BuilderRegistry,
  builderRegistry,
  customBuilder,
  type EngineDefinition,
  type EngineKinds,
  engineModule,
} from '@floe-rl/capture';
import { asFloeError, type Clock, FloeError, fieldError, messageOf } from '@floe-rl/core';
import type { TaskRequest } from '@floe-rl/core/schema';
import {
  customEvaluator,
  type Evaluator,
  type EvaluatorRegistry,
  type PostRunHook,
  postRunHook,
  usesFreshRuntime,
} from '@floe-rl/evaluators';
import { refuseReuse, refuseUser } from '@floe-rl/sandbox';
import { floeAgentSettings } from '../../harnesses/floe.ts';
import type { HarnessAdapter } from '../../harnesses/harness.ts';
import type { GatewayConfig } from './config.ts';

/**
 * Loads the custom trace builders of the operator. `modules` maps the name of a builder to the path of an ES module, relative to the
 * working directory. A task names a builder by its name, or by its path exactly as written in `modules`. Rejects with `setup_failed` for a
 * module that cannot be loaded or exports no builder, and for the name of a built-in builder.
 */
export async function loadBuilders(modules: Readonly<Record<string, string>>): Promise<BuilderRegistry> {
  const builders = new Map<string, Builder>();
  for (const [name, path] of Object.entries(modules)) {
    const builder = customBuilder(name, `builders.${name}: ${path}`, await importModule(`builders.${name}`, path));
    builders.set(name, builder);
    if (!(path in modules) && !builders.has(path)) builders.set(path, builder);
  }
  return builderRegistry(builders);
}

/**
 * Loads the custom evaluators of the operator. `modules` maps the name that tasks use to the path of an ES module, relative to the working
 * directory. Rejects with `setup_failed` for a module that cannot be loaded or exports no evaluator.
 */
export async function loadEvaluators(modules: Readonly<Record<string, string>>): Promise<readonly Evaluator[]> {
  const evaluators: Evaluator[] = [];
  for (const [name, path] of Object.entries(modules)) {
    const module = await importModule(`evaluators.${name}`, path);
    evaluators.push(customEvaluator(name, `evaluators.${name}: ${path}`, module));
  }
  return evaluators;
}

/**
 * Loads the engine modules of the operator. `modules` maps the name of a kind to the path of an ES module, relative to the working directory.
 * Rejects with `setup_failed` for a module that cannot be loaded or exports no engine, and for the name of a kind of floe's own.
 */
export async function loadEngines(modules: Readonly<Record<string, string>>): Promise<EngineKinds> {
  const kinds = new Map<string, EngineDefinition>();
  for (const [kind, path] of Object.entries(modules)) {
    const key = `plugins.engines.${kind}`;
    kinds.set(kind, engineModule(kind, `${key}: ${path}`, await importModule(key, path)));
  }
  return kinds;
}

/**
 * Loads the post-run hooks of the operator, in the order in which they run. Rejects with `setup_failed` for a module that cannot be loaded or
 * exports no hook.
 */
export async function loadPostRunHooks(
  configured: GatewayConfig['post_run_hooks'],
  clock: Clock,
): Promise<readonly PostRunHook[]> {
  const hooks: PostRunHook[] = [];
  for (const { name, module: path, timeout_seconds: timeoutSeconds } of configured) {
    const module = await importModule(`post_run_hooks.${name}`, path);
    hooks.push(postRunHook(name, `post_run_hooks.${name}: ${path}`, module, { clock, timeoutSeconds }));
  }
  return hooks;
}

/** Imports a module that the operator lists under the key `key` of the configuration. */
export async function importModule(key: string, path: string): Promise<Record<string, unknown>> {
  try {
    return (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>;
  } catch (error) {
    const message = messageOf(error);
    throw new FloeError('setup_failed', `${key}: ${path} cannot be loaded: ${message}`, { key, path }, error);
  }
}

/** Names of plug-ins that only nodes can load. The node that runs a session checks their configuration before it starts the sandbox. */
export type NodeNames = {
  /** Names of trace builders. */
  readonly customBuilders?: readonly string[];
  /** Names of agents, environments and tools. */
  readonly plugins?: readonly string[];
};

/**
 * Returns a function that checks a submitted task. It throws when the harness, builder or evaluator of the task is unknown. When one of
 * these plug-ins rejects its configuration, the function throws the error of the plug-in.
 */
export function createTaskCheck(
  harnesses: ReadonlyMap<string, HarnessAdapter>,
  evaluators: EvaluatorRegistry,
  { customBuilders = [], plugins = [] }: NodeNames = {},
): (task: TaskRequest) => void {
  const builders = builderRegistry();
  const catalog = builtInCatalog();
  const others = new Set(plugins);
  return (task) => {
    const adapter = harnesses.get(task.agent.harness);
    if (adapter === undefined) {
      const known = [...harnesses.keys()];
      throw new FloeError(
        'unknown_harness',
        `agent.harness: no ${task.agent.harness}; there are: ${known.join(', ')}`,
        { path: 'agent.harness', known },
      );
    }
    adapter.checkAgent(task.agent);
    checkFloeAgent(task, adapter, catalog, others);
    if (task.runtime?.backend !== undefined) {
      refuseUser(task.runtime.backend, task.runtime);
      refuseReuse(task.runtime.backend, task.runtime.reuse);
    }
    if (!customBuilders.includes(task.builder.strategy)) builders.check(task.builder);
    if (task.evaluator !== null) evaluators.check(task.evaluator);
    checkSteps(task, evaluators);
    checkOverrides(task, evaluators);
  };
}

/** Throws the errors of {@link checkPluginUse}, and `schema_violation` for an environment without an agent that acts in it. */
function checkFloeAgent(
  { agent, environment, runtime, engine }: TaskRequest,
  { runsOnNode }: HarnessAdapter,
  catalog: Catalog,
  others: ReadonlySet<string>,
): void {
  if (runsOnNode) {
    const hasBox = runtime?.backend == null ? null : runtime.backend !== 'none';
    const enginePools = [engine.pool, ...(engine.extra_pools ?? [])];
    checkPluginUse({ ...floeAgentSettings(agent), environment, hasBox, enginePools }, catalog, others);
    return;
  }
  if (environment === null) return;
  const message = `only agents of the harness floe act in an environment, and this one is ${agent.harness}`;
  throw fieldError('environment', message);
}

/** Throws `schema_violation` for settings of the evaluator's fresh runtime in a task that has none. */
function checkOverrides({ runtime, evaluator }: TaskRequest, evaluators: EvaluatorRegistry): void {
  const isFresh = evaluator !== null && usesFreshRuntime(evaluator, evaluators.get(evaluator.strategy));
  const names = Object.entries(runtime?.eval_overrides ?? {}).filter(([, value]) => value !== undefined);
  const [name] = names[0] ?? [];
  if (isFresh || name === undefined) return;
  const path = `runtime.eval_overrides.${name}`;
  const message = 'has no effect: the task has no evaluator with a fresh runtime (evaluator.refresh_runtime)';
  throw fieldError(path, message);
}

/** Throws `schema_violation` for steps without the evaluator that combines them, and for steps that cannot be evaluated. */
function checkSteps({ steps, evaluator }: TaskRequest, evaluators: EvaluatorRegistry): void {
  const combines = evaluator?.strategy === 'steps';
  if (combines !== steps.length > 0) {
    throw fieldError(
      'evaluator.strategy',
      combines ? 'steps is only for a task with steps' : 'must be steps, as the task has steps',
    );
  }
  for (const [index, { evaluator: spec }] of steps.entries()) {
    const path = `steps.${index}.evaluator`;
    try {
      evaluators.check(spec);
    } catch (thrown) {
      const { code, message, details } = asFloeError(thrown);
      throw new FloeError(code, `${path}: ${message}`, details, thrown);
    }
    if (usesFreshRuntime(spec, evaluators.get(spec.strategy))) {
      throw fieldError(`${path}.refresh_runtime`, 'must be false: a step is evaluated in the runtime of the agent');
    }
  }
}
