import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type HarborConfig, type HarborStep, harborConfigSchema } from './config.ts';
import type { HarborTask, ImageSource, NetworkMode } from './task.ts';
import { isFile, isFolder, isRoot, missingFile, unsupported } from './task-file.ts';
import { readTomlFile } from './toml-file.ts';

/** Directory in the sandbox into which a Harbor agent writes files that are always kept. */
const CONVENTION_ARTIFACTS = '/logs/artifacts';

/** The files of a task with one step, which are in the folder itself or in that of its only step. */
type Phase = {
  readonly folder: string;
  readonly agent: HarborConfig['agent'];
  readonly verifier: HarborConfig['verifier'];
  /** Key of the phase in `task.toml`, such as `steps.0.`. */
  readonly key: string;
  readonly step: HarborStep | null;
};

/** Reads a task folder of Harbor: `task.toml`, `instruction.md`, `environment/`, `tests/` and `solution/`. */
export async function loadHarborLayout(dir: string): Promise<HarborTask> {
  const file = join(dir, 'task.toml');
  const config = await readTomlFile(file, harborConfigSchema);
  refuseUnsupported(config, file);
  const { environment, task, metadata, solution } = config;
  const phase = phaseOf(config, dir);
  const instructionFile = join(phase.folder, 'instruction.md');
  const instruction = await readFile(instructionFile, 'utf8').catch(() => {
    throw missingFile(instructionFile, 'it is the instruction of the agent');
  });
  const artifacts = artifactPaths(config, phase, file);
  return {
    name: task?.name ?? basename(dir),
    dir,
    file,
    instruction,
    image: await imageSource(dir, environment.docker_image),
    buildSeconds: environment.build_timeout_sec,
    workdir: environment.workdir ?? null,
    env: environment.env,
    network: networkOf(config, phase, file),
    cpus: environment.cpus ?? null,
    memoryMb: environment.memory_mb ?? environment.memory ?? null,
    storageMb: environment.storage_mb ?? environment.storage ?? null,
    healthchecks: [environment.healthcheck, phase.step?.healthcheck].filter((check) => check !== undefined),
    mcpServers: environment.mcp_servers,
    skillsDir: await skillsDir(dir, environment.skills_dir, file),
    workdirFiles: phase.step === null ? null : await workdirFiles(phase.folder),
    agentSeconds: phase.agent.timeout_sec ?? config.agent.timeout_sec ?? null,
    artifacts,
    verifier: await verifierOf(config, phase, { dir, file, artifacts }),
    solution: await solutionOf([phase.folder, dir], solution.env),
    metadata: { ...metadata, ...(task === undefined ? {} : { harbor_task: task.name, keywords: task.keywords }) },
  };
}

function phaseOf(config: HarborConfig, dir: string): Phase {
  const [step] = config.steps;
  if (step === undefined) return { folder: dir, agent: config.agent, verifier: config.verifier, key: '', step: null };
  const folder = join(dir, 'steps', step.name);
  const user = step.verifier.user ?? config.verifier.user;
  const env = { ...config.verifier.env, ...step.verifier.env };
  return { folder, agent: step.agent, verifier: { ...step.verifier, user, env }, key: 'steps.0.', step };
}

function refuseUnsupported(config: HarborConfig, file: string): void {
  const { environment, steps } = config;
  const refuse = (key: string, message: string): never => {
    throw unsupported(file, key, message);
  };
  if (steps.length > 1) refuse('steps', `has ${steps.length} steps, and floe runs an agent once in a session`);
  if (environment.os === 'windows') refuse('environment.os', 'is windows');
  if ((environment.gpus ?? 0) > 0) refuse('environment.gpus', 'sandboxes have no GPU');
  if (environment.tpu !== undefined) refuse('environment.tpu', 'sandboxes have no TPU');
  for (const phase of [config, ...steps]) {
    const key = phase === config ? '' : 'steps.0.';
    const { user } = phase.agent;
    if (!isRoot(user)) {
      refuse(
        `${key}agent.user`,
        `is ${user}, and floe runs agents as the user of the sandbox, which is root in a container`,
      );
    }
    if (phase.verifier.environment !== undefined) {
      refuse(`${key}verifier.environment`, 'the verifier runs in the environment of the agent, or in a copy of it');
    }
  }
}

async function imageSource(dir: string, reference: string | undefined): Promise<ImageSource> {
  const context = join(dir, 'environment');
  for (const name of ['docker-compose.yaml', 'docker-compose.yml']) {
    const compose = join(context, name);
    if (await isFile(compose)) throw unsupported(compose, 'services', 'floe runs one container for each session');
  }
  if (reference !== undefined) return { kind: 'reference', reference };
  const dockerfile = join(context, 'Dockerfile');
  if (await isFile(dockerfile)) return { kind: 'build', context, dockerfile: 'Dockerfile' };
  throw missingFile(dockerfile, 'a task needs it unless environment.docker_image names an image');
}

function networkOf(config: HarborConfig, phase: Phase, file: string): NetworkMode {
  const { environment } = config;
  const legacy =
    environment.allow_internet === undefined ? undefined : environment.allow_internet ? 'public' : 'no-network';
  const baseline = environment.network_mode ?? legacy;
  const agent = phase.agent.network_mode ?? config.agent.network_mode ?? baseline;
  const verifier = phase.verifier.network_mode ?? config.verifier.network_mode ?? baseline;
  if (agent === 'allowlist' || verifier === 'allowlist') {
    throw unsupported(file, 'network_mode', 'is allowlist; floe gives a sandbox the whole network or none');
  }
  if (agent !== verifier) {
    const modes = `the agent's is ${agent ?? 'unstated'} and the verifier's is ${verifier ?? 'unstated'}`;
    throw unsupported(file, 'verifier.network_mode', `${modes}; in floe both have the same network`);
  }
  return agent ?? 'unstated';
}

function artifactPaths(config: HarborConfig, phase: Phase, file: string): string[] {
  return [...config.artifacts, ...(phase.step?.artifacts ?? [])].map(({ source, service, exclude }, index) => {
    const key = `artifacts.${index}`;
    if (service !== 'main') throw unsupported(file, `${key}.service`, 'floe runs one container for each session');
    if (exclude.length > 0) throw unsupported(file, `${key}.exclude`, 'floe keeps whole folders');
    return source;
  });
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
  { dir, file, artifacts }: { readonly dir: string; readonly file: string; readonly artifacts: readonly string[] },
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
      throw unsupported(file, `${at}.user`, 'the command runs as the user of the sandbox');
    }
  }
  if (mode === 'separate') {
    for (const tests of folders) {
      const own = join(tests, 'Dockerfile');
      if (await isFile(own))
        throw unsupported(own, 'FROM', 'the verifier runs in a copy of the environment of the agent');
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
    collect: collect.map(({ command, timeout_sec }) => ({ command, seconds: timeout_sec })),
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
