import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { hostPatternSchema } from '@floe-rl/core/schema';
import {
  type EnvironmentConfig,
  environmentConfigSchema,
  type HarborConfig,
  harborConfigSchema,
  type StepConfig,
} from './config.ts';
import type {
  HarborLimits,
  HarborPart,
  HarborStep,
  HarborTask,
  ImageSource,
  NetworkMode,
  VerifierEnvironment,
} from './task.ts';
import { isFile, isFolder, isRoot, missingFile, unsupported } from './task-file.ts';
import { readTomlFile } from './toml-file.ts';

/** Directory in the sandbox into which a Harbor agent writes files that are always kept. */
const CONVENTION_ARTIFACTS = '/logs/artifacts';

/** A task, or one of its steps. `folder` has its files: the folder of the task, or the folder of the step. */
type Phase = {
  readonly folder: string;
  readonly agent: HarborConfig['agent'];
  readonly verifier: HarborConfig['verifier'];
  /** Key of the phase in `task.toml`, such as `steps.0.`. */
  readonly key: string;
  readonly step: StepConfig | null;
};

type Place = { readonly dir: string; readonly file: string; readonly artifacts: readonly string[] };

/** Reads a task folder of Harbor: `task.toml`, `instruction.md`, `environment/`, `tests/` and `solution/`, or a folder for each step. */
export async function loadHarborLayout(dir: string): Promise<HarborTask> {
  const file = join(dir, 'task.toml');
  const config = await readTomlFile(file, harborConfigSchema);
  const phases = phasesOf(config, dir);
  refuseUnsupported(config, phases, file);
  const users = phases.map((phase) => phase.agent.user ?? config.agent.user);
  const otherUser = users.findIndex((user) => user !== users[0]);
  if (otherUser > 0) throw unsupported(file, `steps.${otherUser}.agent.user`, 'is another one than of the first step');
  const { environment, task, metadata } = config;
  const place = { dir, file, artifacts: artifactPaths(config, file) };
  const parts = await Promise.all(phases.map((phase) => partOf(config, phase, place)));
  const networks = phases.map((phase) => networkOf(config, phase, file));
  const [first] = parts as [HarborPart];
  const [network] = networks as [Network];
  const other = networks.findIndex((one) => !isDeepStrictEqual(one, network));
  if (other > 0) throw unsupported(file, `steps.${other}`, 'has another network than the first step');
  const hasSteps = parts.length > 1;
  return {
    ...first,
    name: task?.name ?? basename(dir),
    dir,
    file,
    image: await imageSource(join(dir, 'environment'), environment.docker_image),
    buildSeconds: environment.build_timeout_sec,
    workdir: environment.workdir ?? null,
    env: environment.env,
    network: network.mode,
    allowedHosts: network.hosts,
    agentUser: users[0] ?? null,
    limits: limitsOf(environment),
    mcpServers: environment.mcp_servers,
    skillsDir: await skillsDir(dir, environment.skills_dir, file),
    artifacts: place.artifacts,
    steps: hasSteps ? parts.map((part, index) => stepOf(part, phases[index] as Phase)) : [],
    stepReward: config.multi_step_reward_strategy ?? 'mean',
    metadata: { ...metadata, ...(task === undefined ? {} : { harbor_task: task.name, keywords: task.keywords }) },
  };
}

async function partOf(config: HarborConfig, phase: Phase, place: Place): Promise<HarborPart> {
  const { environment, solution } = config;
  const instructionFile = join(phase.folder, 'instruction.md');
  const instruction = await readFile(instructionFile, 'utf8').catch(() => {
    throw missingFile(instructionFile, 'it is the instruction of the agent');
  });
  // The environment is started once, before the first step.
  const own = phase.key === '' || phase.key === 'steps.0.' ? environment.healthcheck : undefined;
  return {
    instruction,
    healthchecks: [own, phase.step?.healthcheck].filter((check) => check !== undefined),
    workdirFiles: phase.step === null ? null : await workdirFiles(phase.folder),
    agentSeconds: phase.agent.timeout_sec ?? config.agent.timeout_sec ?? null,
    verifier: await verifierOf(config, phase, place),
    solution: await solutionOf([phase.folder, place.dir], solution.env),
  };
}

function stepOf(part: HarborPart, { step }: Phase): HarborStep {
  return { ...part, name: step?.name ?? '', minReward: step?.min_reward ?? null };
}

function phasesOf(config: HarborConfig, dir: string): Phase[] {
  const { agent, verifier, steps } = config;
  if (steps.length === 0) return [{ folder: dir, agent, verifier, key: '', step: null }];
  return steps.map((step, index) => {
    const folder = join(dir, 'steps', step.name);
    const user = step.verifier.user ?? verifier.user;
    const env = { ...verifier.env, ...step.verifier.env };
    return { folder, agent: step.agent, verifier: { ...step.verifier, user, env }, key: `steps.${index}.`, step };
  });
}

function refuseUnsupported(config: HarborConfig, phases: readonly Phase[], file: string): void {
  const refuse = (key: string, message: string): never => {
    throw unsupported(file, key, message);
  };
  refuseDevices(config.environment, 'environment', file);
  for (const { verifier, key } of [{ ...config, key: '' }, ...phases]) {
    const mode = verifier.environment_mode ?? config.verifier.environment_mode;
    const own = `${key}verifier.environment`;
    if (verifier.environment !== undefined) {
      if (mode !== 'separate') refuse(own, 'has an effect only with environment_mode = "separate"');
      refuseDevices(verifier.environment, own, file);
      if (verifier.environment.mcp_servers.length > 0) refuse(`${own}.mcp_servers`, 'a verifier has no tools');
      if (verifier.environment.skills_dir !== undefined) refuse(`${own}.skills_dir`, 'a verifier has no skills');
    }
    if (mode === 'separate' && phases.length > 1) {
      refuse(
        `${key}verifier.environment_mode`,
        'is separate, and floe evaluates several steps in the sandbox of the agent',
      );
    }
  }
}

function refuseDevices({ os, gpus = 0, tpu }: EnvironmentConfig, key: string, file: string): void {
  if (os === 'windows') throw unsupported(file, `${key}.os`, 'is windows');
  if (gpus > 0) throw unsupported(file, `${key}.gpus`, 'sandboxes have no GPU');
  if (tpu !== undefined) throw unsupported(file, `${key}.tpu`, 'sandboxes have no TPU');
}

function limitsOf(environment: EnvironmentConfig): HarborLimits {
  return {
    cpus: environment.cpus ?? null,
    memoryMb: environment.memory_mb ?? environment.memory ?? null,
    storageMb: environment.storage_mb ?? environment.storage ?? null,
  };
}

/** Returns where an image comes from: a reference, or a Dockerfile in the folder `context`. */
async function imageSource(context: string, reference: string | undefined): Promise<ImageSource> {
  for (const name of ['docker-compose.yaml', 'docker-compose.yml']) {
    const compose = join(context, name);
    if (await isFile(compose)) throw unsupported(compose, 'services', 'floe runs one container for each session');
  }
  if (reference !== undefined) return { kind: 'reference', reference };
  const dockerfile = join(context, 'Dockerfile');
  if (await isFile(dockerfile)) return { kind: 'build', context, dockerfile: 'Dockerfile' };
  throw missingFile(dockerfile, 'a task needs it unless environment.docker_image names an image');
}

type Network = { readonly mode: NetworkMode; readonly hosts: readonly string[] };

function networkOf(config: HarborConfig, phase: Phase, file: string): Network {
  const { environment } = config;
  const baseline = baselineOf(environment);
  const ofVerifier = phase.verifier.environment ?? config.verifier.environment;
  const of = (...levels: readonly { network_mode?: string | undefined; allowed_hosts?: string[] | undefined }[]) => {
    const level = levels.find(({ network_mode }) => network_mode !== undefined);
    const mode = (level?.network_mode ?? 'unstated') as NetworkMode;
    return { mode, hosts: mode === 'allowlist' ? (level?.allowed_hosts ?? environment.allowed_hosts ?? []) : [] };
  };
  const agent = of(phase.agent, config.agent, baseline);
  const ownBaseline = ofVerifier === undefined ? {} : baselineOf(ofVerifier);
  const verifier = of(phase.verifier, config.verifier, ownBaseline, baseline);
  const invalid = agent.hosts.find((host) => !hostPatternSchema.safeParse(host).success);
  if (invalid !== undefined) throw unsupported(file, 'allowed_hosts', `${invalid} is no host, with an optional port`);
  if (agent.mode === 'allowlist' && agent.hosts.length === 0) {
    throw unsupported(file, 'allowed_hosts', 'must name a host where network_mode is allowlist');
  }
  if (isDeepStrictEqual(agent, verifier)) return agent;
  const modes =
    agent.mode === verifier.mode
      ? 'the agent and the verifier have different hosts'
      : `the agent's is ${agent.mode} and the verifier's is ${verifier.mode}`;
  throw unsupported(file, 'verifier.network_mode', `${modes}; in floe both have the same network`);
}

function baselineOf({ network_mode: mode, allow_internet: internet, allowed_hosts: hosts }: EnvironmentConfig) {
  const legacy = internet === undefined ? undefined : internet ? 'public' : 'no-network';
  return { network_mode: mode ?? legacy, allowed_hosts: hosts };
}

function artifactPaths(config: HarborConfig, file: string): string[] {
  const all = [...config.artifacts, ...config.steps.flatMap(({ artifacts }) => artifacts)];
  const paths = all.map(({ source, service, exclude }, index) => {
    const key = `artifacts.${index}`;
    if (service !== 'main') throw unsupported(file, `${key}.service`, 'floe runs one container for each session');
    if (exclude.length > 0) throw unsupported(file, `${key}.exclude`, 'floe keeps whole folders');
    return source;
  });
  return [...new Set(paths)];
}

async function skillsDir(dir: string, inImage: string | undefined, file: string): Promise<string | null> {
  if (inImage === undefined) return null;
  const source = join(dir, 'environment', basename(inImage));
  if (await isFolder(source)) return source;
  throw unsupported(
    file,
    'environment.skills_dir',
    `floe reads skills from the build context, and ${source} is no folder`,
  );
}

async function workdirFiles(folder: string): Promise<HarborTask['workdirFiles']> {
  const dir = join(folder, 'workdir');
  return (await isFolder(dir)) ? { dir, hasSetup: await isFile(join(dir, 'setup.sh')) } : null;
}

async function verifierOf(
  config: HarborConfig,
  { verifier, folder, key }: Phase,
  { dir, file, artifacts }: Place,
): Promise<HarborTask['verifier']> {
  const folders = [...new Set([join(dir, 'tests'), join(folder, 'tests')])];
  const scripts = await Promise.all(folders.map((tests) => isFile(join(tests, 'test.sh'))));
  if (!scripts.includes(true)) throw missingFile(join(folder, 'tests', 'test.sh'), 'it is the verifier of the task');
  const found = await Promise.all(folders.map(async (tests) => ((await isFolder(tests)) ? [tests] : [])));
  const mode = verifier.environment_mode ?? config.verifier.environment_mode ?? 'shared';
  const collect = mode === 'separate' ? [...config.verifier.collect, ...(key === '' ? [] : verifier.collect)] : [];
  for (const [index, { service, user }] of collect.entries()) {
    const at = `verifier.collect.${index}`;
    if (service !== 'main') throw unsupported(file, `${at}.service`, 'floe runs one container for each session');
    if (!isRoot(user)) {
      throw unsupported(file, `${at}.user`, 'floe runs the command as root');
    }
  }
  return {
    tests: found.flat(),
    script: 'test.sh',
    grading: 'reward_file',
    seconds: verifier.timeout_sec,
    env: verifier.env,
    user: verifier.user,
    carried: mode === 'separate' ? [...new Set([CONVENTION_ARTIFACTS, ...artifacts])] : null,
    environment:
      mode === 'separate'
        ? await verifierEnvironment(verifier.environment ?? config.verifier.environment, folders)
        : null,
    collect: collect.map(({ command, timeout_sec }) => ({ command, seconds: timeout_sec })),
  };
}

/** Returns the settings of a verifier's sandbox. Its image is built from the Dockerfile in the last of the tests' folders that has one. */
async function verifierEnvironment(
  stated: EnvironmentConfig | undefined,
  folders: readonly string[],
): Promise<VerifierEnvironment | null> {
  const withDockerfile = await Promise.all(folders.map((folder) => isFile(join(folder, 'Dockerfile'))));
  const context = folders.findLast((_, index) => withDockerfile[index]);
  if (stated === undefined && context === undefined) return null;
  const environment = stated ?? environmentConfigSchema.parse({});
  const reference = environment.docker_image;
  return {
    image: reference === undefined && context === undefined ? null : await imageSource(context ?? '', reference),
    buildSeconds: environment.build_timeout_sec,
    workdir: environment.workdir ?? null,
    env: environment.env,
    limits: limitsOf(environment),
    healthchecks: environment.healthcheck === undefined ? [] : [environment.healthcheck],
  };
}

async function solutionOf(
  folders: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<HarborTask['solution']> {
  for (const folder of folders) {
    const solution = join(folder, 'solution');
    if (await isFile(join(solution, 'solve.sh'))) return { dir: solution, text: null, env };
  }
  return null;
}
