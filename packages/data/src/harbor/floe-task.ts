import { parseAs } from '@floe-rl/core';
import {
  ONLY_USERS,
  type PrepareAction,
  type RuntimeBackend,
  type TaskRequest,
  type TaskRequestInput,
  taskRequestSchema,
} from '@floe-rl/core/schema';
import type { HarborMcpServer, Healthcheck } from './config.ts';
import type { HarborLimits, HarborPart, HarborStep, HarborTask } from './task.ts';
import { isRoot, unsupported } from './task-file.ts';
import { type HostVariables, resolveVariables } from './variables.ts';

/** Time limit in seconds of an agent when the task states none. */
const AGENT_SECONDS = 3_600;
/** Time limit in seconds of the start of the sandbox and of its preparation. */
const INIT_SECONDS = 600;
/** Seconds that the evaluation may take in addition to the verifier's own time limit, for copying and uploading files. */
const EVALUATION_SECONDS = 120;
/** Working directory when the image names none. Tasks of Harbor use this directory by convention, and its test scripts refuse `/`. */
const DEFAULT_WORKDIR = '/app';

/**
 * Shell script that repeats a check until it succeeds. It fails after `RETRIES` failures in sequence that are not in the start period.
 */
const HEALTHCHECK_SCRIPT = `started=$(date +%s)
failures=0
check() {
  if command -v timeout >/dev/null 2>&1; then timeout "$LIMIT" /bin/sh -c "$CHECK"; else /bin/sh -c "$CHECK"; fi
}
until check; do
  if [ $(($(date +%s) - started)) -lt "$START_PERIOD" ]; then sleep "$START_INTERVAL"; continue; fi
  failures=$((failures + 1))
  [ "$failures" -lt "$RETRIES" ] || { echo "the healthcheck failed $failures times" >&2; exit 1; }
  sleep "$INTERVAL"
done`;

type FloeImage = { readonly reference: string; readonly workdir: string | null };
type TaskStepInput = NonNullable<TaskRequestInput['steps']>[number];

export type FloeTaskOptions = {
  readonly agent: TaskRequestInput['agent'];
  readonly backend: RuntimeBackend;
  /** The image of the task, and the working directory that it names; `null` when it names none. */
  readonly image: FloeImage;
  /** The image of the verifier's own sandbox; `null` for the image of the task. */
  readonly verifierImage: FloeImage | null;
  readonly hostVariables: HostVariables;
  /**
   * Whether tasks may use the network. When it is false, a task that asks for the public network is refused, and a task that does not state a
   * network runs without one.
   */
  readonly allowNetwork: boolean;
  /**
   * Whether the users that a task names are ignored when the sandboxes of the runtime have only one user. When this is false, such a task is
   * refused.
   */
  readonly ignoreUsers: boolean;
  /** Whether the agent gets the MCP servers and skills of the task. */
  readonly withTools: boolean;
};

/** Creates the directories that agents of Harbor write to. */
const MAKE_LOGS = exec('mkdir -p /logs/agent /logs/artifacts');

/** Converts a task of Harbor or Terminal-Bench to a task of floe. Throws `unsupported` for a part of the task that floe cannot run. */
export function floeTask(task: HarborTask, options: FloeTaskOptions): TaskRequest {
  const { file, steps } = task;
  const parts = steps.length === 0 ? [task] : steps;
  const agentSeconds = parts.reduce((sum, part) => sum + agentSecondsOf(part), 0);
  const evalSeconds = Math.max(...parts.map(({ verifier }) => verifier.seconds)) + EVALUATION_SECONDS;
  const request: TaskRequestInput = {
    instruction: task.instruction,
    duration_key: `harbor:${task.name}`.slice(0, 256),
    timeout_seconds: INIT_SECONDS + agentSeconds + (steps.length > 1 ? steps.length * INIT_SECONDS : 0),
    budgets: { init: INIT_SECONDS, agent: Math.max(...parts.map(agentSecondsOf)), eval: evalSeconds },
    agent: options.withTools ? withTools(task, options) : options.agent,
    runtime: {
      backend: options.backend,
      image: options.image.reference,
      user: userOf(task, 'agent.user', task.agentUser, options),
      workdir: workdirOf(task.workdir, options.image.workdir),
      env: resolveVariables(task.env, options.hostVariables, { file, key: 'environment.env' }),
      ...networkOf(task, options.allowNetwork),
      ...limitsOf(task.limits),
      prepare: [MAKE_LOGS, ...(steps.length === 0 ? prepareActions(task) : [])],
      ...verifierRuntime(task, options),
    },
    evaluator:
      steps.length === 0
        ? evaluatorOf(task, task, options)
        : { strategy: 'steps', config: { reward: task.stepReward } },
    steps: steps.map((step, index) => stepOf(task, step, index === 0, options)),
    artifacts: { paths: [...task.artifacts] },
    metadata: { ...task.metadata, harbor: { name: task.name, dir: task.dir } },
  };
  return parseAs(taskRequestSchema, request, file);
}

function agentSecondsOf({ agentSeconds }: HarborPart): number {
  return agentSeconds ?? AGENT_SECONDS;
}

function stepOf(task: HarborTask, step: HarborStep, isFirst: boolean, options: FloeTaskOptions): TaskStepInput {
  return {
    name: step.name,
    instruction: step.instruction,
    // The agent must see neither the tests nor the rewards of an earlier step.
    prepare: [...(isFirst ? [] : [exec('rm -rf /tests /logs/verifier', {}, 'root')]), ...prepareActions(step)],
    agent_seconds: agentSecondsOf(step),
    eval_seconds: step.verifier.seconds + EVALUATION_SECONDS,
    evaluator: evaluatorOf(task, step, options),
    ...(step.minReward === null ? {} : { min_reward: step.minReward }),
  };
}

function evaluatorOf(
  task: HarborTask,
  { verifier }: HarborPart,
  options: FloeTaskOptions,
): NonNullable<TaskRequestInput['evaluator']> {
  return {
    strategy: 'harbor',
    env: resolveVariables(verifier.env, options.hostVariables, { file: task.file, key: 'verifier.env' }),
    refresh_runtime: verifier.carried !== null,
    config: {
      tests: verifier.tests,
      script: verifier.script,
      grading: verifier.grading,
      timeout: verifier.seconds,
      user: userOf(task, 'verifier.user', verifier.user, options),
      artifacts: verifier.carried ?? [],
      collect: verifier.collect.map(({ command, seconds }) => ({ command, timeout: seconds })),
    },
  };
}

/**
 * Returns the user of the image that runs the commands of a task; `null` when the task names none, and for a runtime whose sandboxes have only
 * one user.
 */
function userOf(
  { file }: HarborTask,
  key: string,
  user: HarborTask['verifier']['user'],
  { backend, ignoreUsers }: FloeTaskOptions,
): HarborTask['verifier']['user'] {
  const only = ONLY_USERS[backend];
  if (only === undefined) return user;
  if (isRoot(user) || user === only || ignoreUsers) return null;
  throw unsupported(
    file,
    key,
    `is ${user}, and a sandbox of ${backend} has only the user ${only}; --ignore-users runs all as this one`,
  );
}

/** Returns the settings of the verifier's own sandbox. */
function verifierRuntime(
  { file, workdir, verifier }: HarborTask,
  { image, verifierImage, hostVariables }: FloeTaskOptions,
): Pick<NonNullable<TaskRequestInput['runtime']>, 'eval_prepare' | 'eval_overrides'> {
  const { environment } = verifier;
  if (environment === null) return {};
  const ofTask = verifierImage === null ? (workdir ?? image.workdir) : verifierImage.workdir;
  return {
    eval_prepare: [MAKE_LOGS, ...environment.healthchecks.map(checkAction)],
    eval_overrides: {
      ...(verifierImage === null ? {} : { image: verifierImage.reference }),
      workdir: workdirOf(environment.workdir, ofTask),
      env: resolveVariables(environment.env, hostVariables, { file, key: 'verifier.environment.env' }),
      ...limitsOf(environment.limits),
    },
  };
}

function limitsOf({ cpus, memoryMb, storageMb }: HarborLimits) {
  return {
    ...(cpus === null ? {} : { cpus }),
    ...(memoryMb === null ? {} : { memory_mb: memoryMb }),
    ...(storageMb === null ? {} : { storage_mb: storageMb }),
  };
}

function workdirOf(stated: string | null, ofImage: string | null): string {
  const workdir = stated ?? ofImage ?? '/';
  return workdir === '/' ? DEFAULT_WORKDIR : workdir;
}

function networkOf(
  { network, allowedHosts, file }: HarborTask,
  allowed: boolean,
): Pick<NonNullable<TaskRequestInput['runtime']>, 'network' | 'allowed_hosts'> {
  if (network === 'no-network' || (network === 'unstated' && !allowed)) return { network: 'none' };
  if (!allowed) throw unsupported(file, 'environment.network_mode', `is ${network}, which needs --allow-network`);
  return network === 'allowlist' ? { network, allowed_hosts: [...allowedHosts] } : { network: 'host' };
}

function exec(command: string, env: Record<string, string> = {}, user: 'agent' | 'root' = 'agent'): PrepareAction {
  return { type: 'exec', command, env, user, max_attempts: 1, retry_backoff_seconds: 0 };
}

function prepareActions({ workdirFiles: files, healthchecks }: HarborPart): PrepareAction[] {
  return [
    ...(files === null ? [] : [{ type: 'upload_dir' as const, source: files.dir, target: '.' }]),
    ...(files?.hasSetup ? [exec('bash ./setup.sh')] : []),
    ...healthchecks.map(checkAction),
  ];
}

function checkAction(check: Healthcheck): PrepareAction {
  return exec(HEALTHCHECK_SCRIPT, healthcheckVariables(check));
}

function healthcheckVariables(check: Healthcheck): Record<string, string> {
  return {
    CHECK: check.command,
    LIMIT: String(check.timeout_sec),
    INTERVAL: String(check.interval_sec),
    START_PERIOD: String(Math.floor(check.start_period_sec)),
    START_INTERVAL: String(check.start_interval_sec),
    RETRIES: String(check.retries),
  };
}

/** Adds the MCP servers and skills of the task to an agent. If the harness does not support them, its adapter refuses them. */
function withTools(task: HarborTask, { agent, hostVariables }: FloeTaskOptions): TaskRequestInput['agent'] {
  const servers = task.mcpServers.map((server) => mcpServer(task, server, hostVariables));
  return {
    ...agent,
    ...(servers.length === 0 ? {} : { mcp_servers: [...(agent.mcp_servers ?? []), ...servers] }),
    ...(task.skillsDir === null ? {} : { skills_path: task.skillsDir }),
  };
}

function mcpServer(
  task: HarborTask,
  { name, transport, url = '', command = '', args, headers }: HarborMcpServer,
  host: HostVariables,
): NonNullable<TaskRequestInput['agent']['mcp_servers']>[number] {
  if (transport === 'stdio') return { name, transport, command, args };
  const where = { file: task.file, key: `environment.mcp_servers.${name}.headers` };
  return { name, transport, url, headers: resolveVariables(headers, host, where) };
}
