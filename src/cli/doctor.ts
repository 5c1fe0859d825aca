import { access, constants, mkdir } from 'node:fs/promises';
import type { Command } from 'commander';
import { request } from 'undici';
import { FloeError } from '../core/errors.ts';
import { harnessStatus } from '../harnesses/install/install.ts';
import { harnessRegistry } from '../harnesses/registry.ts';
import { chooseBackend, probeBackends } from './backend.ts';
import { examineHarness, type Finding, printFinding } from './doctor-harness.ts';
import { floeHome, harnessDir } from './home.ts';
import { waitForSignal } from './lifetime.ts';
import { printJson } from './print.ts';

type Options = {
  engine?: string;
  harness?: string;
  dialect?: string;
  settings?: string;
  customShell?: string;
  json?: boolean;
};

/** Exit code after Ctrl-C, the same as in shells. */
const INTERRUPTED_EXIT_CODE = 130;

/** Programs that sessions use from the host's /usr, each with its purpose. */
const PROGRAMS = [
  ['git', 'to carry an agent’s changes to a fresh runtime'],
  ['tar', 'to copy files into a sandbox'],
] as const;

export function registerDoctor(program: Command): void {
  program
    .command('doctor')
    .description('check what floe needs on this machine, and show the command that fixes each problem')
    .option('--engine <url>', 'check this inference server as well')
    .option('--harness <name>', 'check only this harness, with one scripted turn in a sandbox')
    .option('--dialect <name>', 'dialect that the harness uses (default: its first one)')
    .option('--settings <json>', 'agent.settings of the harness')
    .option('--custom-shell <command>', 'agent.custom_shell of the harness')
    .option('--json', 'print JSON')
    .action(async (options: Options) => {
      const stopping = new AbortController();
      void waitForSignal().then(() => stopping.abort());
      const findings = await examine(options, stopping.signal).catch((error: unknown) => {
        if (!stopping.signal.aborted) throw error;
        return null;
      });
      if (findings === null) {
        process.exitCode = INTERRUPTED_EXIT_CODE;
        return;
      }
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
  ].find(([, value]) => value !== undefined);
  if (misplaced !== undefined) throw new FloeError('bad_request', `${misplaced[0]} requires --harness <name>`);
  return [
    node(),
    await home(),
    ...(await backends()),
    ...(await programs()),
    ...(await harnesses()),
    ...(engine === undefined ? [] : [await engineFinding(engine)]),
  ];
}

function node(): Finding {
  return { part: 'node', ok: true, text: process.version, remedy: null };
}

async function home(): Promise<Finding> {
  const path = floeHome();
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    await access(path, constants.W_OK);
    return { part: 'floe home', ok: true, text: path, remedy: null };
  } catch (error) {
    return {
      part: 'floe home',
      ok: false,
      text: (error as Error).message,
      remedy: 'set FLOE_HOME to a directory that you can write to',
    };
  }
}

async function backends(): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const [backend, problem] of await probeBackends()) {
    const part = `runtime ${backend}`;
    if (problem !== null) findings.push({ part, ok: false, text: problem.problem, remedy: problem.remedy });
    else
      findings.push({ part, ok: true, text: backend === 'local' ? 'works, without isolation' : 'works', remedy: null });
  }
  return findings;
}

async function programs(): Promise<Finding[]> {
  const path = (process.env.PATH ?? '/usr/bin:/bin').split(':');
  return Promise.all(
    PROGRAMS.map(async ([name, purpose]) => {
      for (const dir of path) {
        const isExecutable = await access(`${dir}/${name}`, constants.X_OK).then(
          () => true,
          () => false,
        );
        if (isExecutable) return { part: name, ok: true, text: `${dir}/${name}`, remedy: null };
      }
      return {
        part: name,
        ok: false,
        text: `is not installed; it is needed ${purpose}`,
        remedy: `install the package ${name}`,
      };
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

async function engineFinding(url: string): Promise<Finding> {
  try {
    const reply = await request(`${url}/v1/models`, { headersTimeout: 5_000, bodyTimeout: 5_000 });
    const body = (await reply.body.json()) as { data?: { id?: string }[] };
    const model = body.data?.[0]?.id;
    if (reply.statusCode === 200 && model !== undefined)
      return { part: 'engine', ok: true, text: `${url} serves ${model}`, remedy: null };
    return {
      part: 'engine',
      ok: false,
      text: `${url}/v1/models answered ${reply.statusCode} and listed no model`,
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
