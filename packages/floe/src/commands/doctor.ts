import { asFloeError, ensureWritableDir, FloeError, MIB, systemClock } from '@floe-rl/core';
import { callHttp, type HttpLimits } from '@floe-rl/core/http';
import { sessionMemoryMb } from '@floe-rl/core/protocol';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { harnessRegistry, harnessStatus, lockedStatus, MATH_VERIFY, machineMemoryMb } from '@floe-rl/node';
import type { Enforcement, RuntimeCapabilities } from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { type BackendReport, chooseBackend, probeBackends } from './backend.ts';
import { examineHarness, type Finding, printFinding } from './doctor-harness.ts';
import { CHOOSE_HOME, floeHome, harnessDir } from './home.ts';
import { interruptible } from './lifetime.ts';
import { printJson } from './print.ts';
import { findProgram } from './programs.ts';

type Options = {
  engine?: string;
  harness?: string;
  dialect?: string;
  settings?: string;
  customShell?: string;
  image?: string;
  json?: boolean;
};

/** Programs that sessions use from the host's /usr, each with its purpose. */
const PROGRAMS = [
  ['git', 'to carry an agent’s changes to a fresh runtime'],
  ['tar', 'to copy files into a sandbox'],
] as const;

/** Limits of the call of an engine. */
const ENGINE_LIMITS: HttpLimits = {
  clock: systemClock,
  limitMs: 5_000,
  late: () => new FloeError('deadline_exceeded', 'no answer within 5 s'),
  maxBytes: 16 * MIB,
  tooLarge: () => new FloeError('engine_error', 'the answer has more than 16 MiB'),
};

export function registerDoctor(program: Command): void {
  program
    .command('doctor')
    .description('check what floe needs on this machine, and show the command that fixes each problem')
    .option('--engine <url>', 'check this inference server as well')
    .option('--harness <name>', 'check only this harness, with one scripted turn in a sandbox')
    .option('--dialect <name>', 'dialect that the harness uses (default: its first one)')
    .option('--settings <json>', 'agent.settings of the harness')
    .option('--custom-shell <command>', 'agent.custom_shell; the command to check with --harness shell')
    .option('--image <directory>', 'runtime.image: root file system that contains the program')
    .option('--json', 'print JSON')
    .action(async (options: Options) => {
      const findings = await interruptible((signal) => examine(options, signal));
      if (findings === null) return;
      if (options.json) printJson({ findings });
      else for (const finding of findings) printFinding(finding);
      if (findings.some((finding) => !finding.ok)) process.exitCode = 1;
    });
}

async function examine({ engine, harness, json: _, ...agent }: Options, signal: AbortSignal): Promise<Finding[]> {
  if (harness !== undefined) {
    if (engine !== undefined)
      throw new FloeError('bad_request', '--harness starts a simulated engine: remove --engine');
    return examineHarness({ ...agent, harness }, { harnessDir: harnessDir(), chooseBackend, signal });
  }
  const misplaced = [
    ['--dialect', agent.dialect],
    ['--settings', agent.settings],
    ['--custom-shell', agent.customShell],
    ['--image', agent.image],
  ].find(([, value]) => value !== undefined);
  if (misplaced !== undefined) throw new FloeError('bad_request', `${misplaced[0]} requires --harness <name>`);
  return [
    node(),
    home(),
    memory(),
    ...(await backends()),
    ...(await programs()),
    ...(await harnesses()),
    await mathVerify(),
    ...(engine === undefined ? [] : [await engineFinding(engine)]),
  ];
}

function node(): Finding {
  return { part: 'node', ok: true, text: process.version, remedy: null };
}

function home(): Finding {
  const path = floeHome();
  try {
    ensureWritableDir(path, CHOOSE_HOME);
    return { part: 'floe home', ok: true, text: path, remedy: null };
  } catch (error) {
    return { part: 'floe home', ok: false, text: asFloeError(error).message, remedy: CHOOSE_HOME };
  }
}

/** Reports how many sessions with default limits fit into the memory of this machine. */
function memory(): Finding {
  const total = machineMemoryMb();
  const needed = sessionMemoryMb(null, false);
  const count = Math.floor(total / needed);
  const text = `${total} MiB for sessions; ${count} sessions with the default limits of ${needed} MiB can run at the same time`;
  return { part: 'memory', ok: true, text, remedy: count > 0 ? null : 'lower runtime.memory_mb of the tasks' };
}

/** Whether floe can do without a backend. A machine without a container engine lacks nothing that floe needs. */
const IS_OPTIONAL: Readonly<Record<RuntimeBackend, boolean>> = {
  bubblewrap: false,
  local: false,
  none: false,
  docker: true,
  podman: true,
  apptainer: true,
};

async function backends(): Promise<Finding[]> {
  const reports = await probeBackends();
  return [...reports].flatMap(([backend, report]) => backendFindings(backend, report));
}

/**
 * Returns whether a runtime works. For a working runtime, it also returns each limit of tasks that this machine cannot fully enforce.
 */
export function backendFindings(backend: RuntimeBackend, report: BackendReport): Finding[] {
  const part = `runtime ${backend}`;
  if (report.problem !== null) {
    const { problem, remedy } = report.problem;
    const isOptional = IS_OPTIONAL[backend];
    return [{ part, ok: isOptional, text: isOptional ? `not available: ${problem}` : problem, remedy }];
  }
  const { isolation, weaknesses, capabilities } = report.description;
  return [
    { part, ok: true, text: `works, ${isolation}${limitsText(capabilities)}`, remedy: null },
    ...weaknesses.map(({ problem, remedy }) => ({ part, ok: true, text: problem, remedy })),
  ];
}

/** Returns which limits a runtime enforces, and how. */
function limitsText({ limits }: RuntimeCapabilities): string {
  if (limits === null) return '';
  const by = (how: Enforcement): string =>
    Object.entries(limits)
      .filter(([, enforcement]) => enforcement === how)
      .map(([field]) => field)
      .join(', ') || 'none';
  return `; limits by the kernel: ${by('kernel')}; by checks: ${by('checks')}; not enforced: ${by('none')}`;
}

async function programs(): Promise<Finding[]> {
  return Promise.all(
    PROGRAMS.map(async ([name, purpose]): Promise<Finding> => {
      const { path, problem } = await findProgram(name, 'bubblewrap');
      if (problem === null) return { part: name, ok: true, text: path, remedy: null };
      return { part: name, ok: false, text: `${problem.problem}; it is needed ${purpose}`, remedy: problem.remedy };
    }),
  );
}

async function harnesses(): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const adapter of harnessRegistry().values()) {
    if (adapter.install === null) continue;
    const status = await harnessStatus(adapter.name, harnessDir());
    findings.push({
      part: `harness ${adapter.name}`,
      ok: status.installed,
      text: status.installed ? `${adapter.install.version} in ${status.path}` : 'not installed',
      remedy: status.installed ? null : `floe harness install ${adapter.name}`,
    });
  }
  return findings;
}

async function mathVerify(): Promise<Finding> {
  const { installed, path } = await lockedStatus(MATH_VERIFY, harnessDir());
  return {
    part: 'math-verify',
    ok: true,
    text: installed
      ? `${MATH_VERIFY.install.version} in ${path}`
      : 'not installed; the evaluator answer needs it for kind: math',
    remedy: installed ? null : 'floe evaluator install math_verify',
  };
}

async function engineFinding(url: string): Promise<Finding> {
  try {
    const reply = await callHttp(`${url}/v1/models`, { method: 'GET' }, ENGINE_LIMITS);
    const body = JSON.parse(new TextDecoder().decode(reply.body)) as { data?: { id?: string }[] };
    const model = body.data?.[0]?.id;
    if (reply.status === 200 && model !== undefined)
      return { part: 'engine', ok: true, text: `${url} serves ${model}`, remedy: null };
    return {
      part: 'engine',
      ok: false,
      text: `${url}/v1/models answered ${reply.status} and listed no model`,
      remedy: 'pass the URL without /v1',
    };
  } catch (error) {
    return {
      part: 'engine',
      ok: false,
      text: `${url}: ${(error as Error).message}`,
      remedy: 'start the server, or correct the URL',
    };
  }
}
