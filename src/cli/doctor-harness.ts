import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '../client/index.ts';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import type { HarnessAdapter } from '../harnesses/harness.ts';
import { harnessStatus } from '../harnesses/install/install.ts';
import { findHarness } from '../harnesses/registry.ts';
import { silentLogger } from '../observe/log.ts';
import {
  type AgentSpec,
  agentSpecSchema,
  type CompletionRecord,
  type DialectName,
  type RuntimeBackend,
  type SessionResult,
} from '../schema/index.ts';
import { checkAgainstLedger, type LedgerReport, type ScenarioInput, type SimServer, startSim } from '../sim/index.ts';
import type { BackendChoice } from './backend.ts';
import { line, paint } from './print.ts';
import { startNode, startServer } from './stack.ts';

/** One thing that was looked at. `remedy`: what to do, one line; null when there is nothing to do. */
export type Finding = {
  readonly part: string;
  readonly ok: boolean;
  readonly text: string;
  readonly remedy: string | null;
};

/** As wide as the longest part, so that the texts stand below each other. */
const PART_COLUMNS = 22;

export function found(part: string, text: string): Finding {
  return { part, ok: true, text, remedy: null };
}

export function lacking(part: string, text: string, remedy: string | null): Finding {
  return { part, ok: false, text, remedy };
}

export function printFinding({ part, ok, text, remedy }: Finding): void {
  line(`${ok ? paint('green', 'ok  ') : paint('red', 'lack')}  ${part.padEnd(PART_COLUMNS)} ${text}`);
  if (remedy !== null) line(`      ${' '.repeat(PART_COLUMNS)} → ${remedy}`);
}

/** Of each output stream, what a hint shows: a program's last words are mostly the reason. */
const TAIL_CHARS = 600;

/** What the command line says of the agent; `settings` is JSON text. */
export type HarnessOptions = {
  readonly harness: string;
  readonly dialect?: string | undefined;
  readonly settings?: string | undefined;
  readonly customShell?: string | undefined;
};

export type Machine = {
  readonly harnessDir: string;
  chooseBackend(): Promise<BackendChoice>;
  /** Ends the turn early; everything that was started is taken down first. */
  readonly signal: AbortSignal;
};

/**
 * Proves that a harness works on this machine, with one scripted turn: it starts, its request comes in, its reply is taken,
 * and the tokens are the engine's. Ends at the first step that all later ones need. Rejects with `unknown_harness`,
 * `schema_violation`, `unsupported` or `malformed_json` when the options ask for something that there is not, and with
 * the signal's reason.
 */
export async function examineHarness(options: HarnessOptions, machine: Machine): Promise<Finding[]> {
  const adapter = findHarness(options.harness);
  const agent = agentOf(options);
  adapter.checkAgent(agent);
  const installation = await installationFinding(adapter, agent, machine.harnessDir);
  if (!installation.ok) return [installation];
  const { backend, problem } = await machine.chooseBackend();
  const runtime = found('runtime', problem === null ? backend : `${backend}, without isolation: ${problem.problem}`);
  const probe = await probeAgent(agent, backend, machine.harnessDir, machine.signal);
  return [installation, runtime, ...findingsOf(probe, agent.dialect ?? adapter.dialects[0])];
}

function agentOf({ harness, dialect, settings, customShell }: HarnessOptions): AgentSpec {
  const input = {
    harness,
    ...(dialect === undefined ? {} : { dialect }),
    ...(settings === undefined ? {} : { settings: settingsOf(settings) }),
    ...(customShell === undefined ? {} : { custom_shell: customShell }),
  };
  return parseAs(agentSpecSchema, input, 'agent', 'agent');
}

function settingsOf(text: string): unknown {
  try {
    return parseJson(text);
  } catch (cause) {
    throw new FloeError('malformed_json', `--settings: ${(cause as Error).message}`, {}, cause);
  }
}

async function installationFinding(adapter: HarnessAdapter, agent: AgentSpec, harnessDir: string): Promise<Finding> {
  const { install, name } = adapter;
  if (install === null || adapter.inImage(agent)) return found('installed', 'nothing to install');
  const { installed, path } = await harnessStatus(name, harnessDir);
  if (installed) return found('installed', `${install.version} in ${path}`);
  return lacking('installed', `${name} ${install.version} is not installed`, `floe harness install ${name}`);
}

/** What a session of one turn proves, step by step, up to the first step without which the next means nothing. */
export function findingsOf(probe: Probe, dialect: DialectName): Finding[] {
  const findings: Finding[] = [];
  for (const step of STEPS) {
    const finding = step(probe, dialect);
    findings.push(finding);
    if (!finding.ok) break;
  }
  return findings;
}

type Step = (probe: Probe, dialect: DialectName) => Finding;

const STEPS: readonly Step[] = [sandboxStarted, requestArrived, replyAccepted, harnessEnded, tokensExact];

function sandboxStarted({ result }: Probe): Finding {
  if (result.agent !== null) return found('sandbox', `started in ${result.timing.init_ms?.toFixed(0) ?? '?'} ms`);
  return lacking('sandbox', problemOf(result), 'floe doctor says what this machine lacks for its sandboxes');
}

function requestArrived({ result, completions }: Probe, dialect: DialectName): Finding {
  const part = 'request';
  const others = [...new Set(completions.map((completion) => completion.dialect))].filter((name) => name !== dialect);
  if (others.length > 0) {
    const remedy = 'the settings or variables of the harness choose another interface than agent.dialect';
    return lacking(part, `in ${others.join(' and ')} instead of ${dialect}`, remedy);
  }
  if (completions.length > 0) return found(part, `${completions.length} in ${dialect}`);
  if (result.error?.code === 'harness_silent') {
    const remedy = `the program never called its model at $FLOE_BASE_URL; its output ends in: ${outputTail(result)}`;
    return lacking(part, `none reached the proxy; exit code ${result.agent?.exit_code ?? 'none'}`, remedy);
  }
  const ended = `the output of the program ends in: ${outputTail(result)}`;
  return lacking(part, `none was answered: ${problemOf(result)}`, ended);
}

function replyAccepted({ result, completions }: Probe): Finding {
  const taken = completions.filter(({ abandoned, undelivered }) => !abandoned && !undelivered);
  if (taken.length > 0) return found('reply', taken.length === 1 ? 'accepted' : `${taken.length} accepted`);
  const repeated = completions.some(({ abandoned }) => abandoned);
  const text = repeated
    ? 'the harness asked again instead of using it'
    : 'the harness went away before it was complete';
  return lacking('reply', text, `the output of the program ends in: ${outputTail(result)}`);
}

function harnessEnded({ result }: Probe): Finding {
  const exit = `exit code ${result.agent?.exit_code ?? 'none'}`;
  const seconds = ((result.timing.running_ms ?? 0) / 1000).toFixed(1);
  if (result.outcome === 'completed') return found('session', `completed, ${exit}, ${seconds} s`);
  return lacking('session', problemOf(result), `the output of the program ends in: ${outputTail(result)}`);
}

function tokensExact({ result, ledger }: Probe): Finding {
  const [first] = ledger.mismatches;
  if (first !== undefined) {
    const text = `${ledger.mismatches.length} differences from the engine, the first: ${first.what}: ${first.detail}`;
    return lacking('tokens', text, 'this is a defect of floe; please report it with this output');
  }
  if (ledger.trainable_tokens > 0) return found('tokens', `${ledger.trainable_tokens} trained, all as sampled`);
  const excluded = JSON.stringify(result.audit?.tokens.excluded ?? {});
  return lacking('tokens', `none of the reply is trained; excluded: ${excluded}`, null);
}

function problemOf({ outcome, error }: Probe['result']): string {
  if (error === null) return outcome;
  // Messages may quote a program's output.
  const why = `${error.code}: ${error.message.replaceAll(/\s*\n\s*/g, ' ')}`;
  return outcome === error.code ? why : `${outcome}: ${why}`;
}

/** On one line: hints are lists of one line each, also in logs. */
function outputTail({ agent }: Probe['result']): string {
  const tails = [agent?.stdout_tail, agent?.stderr_tail].map((text) => (text ?? '').trim().slice(-TAIL_CHARS));
  const said = tails.filter((text) => text !== '').map((text) => JSON.stringify(text));
  return said.length === 0 ? 'nothing at all' : said.join(' and ');
}

/** Nothing that a harness would want a tool for: its first turn is its last. */
const INSTRUCTION = 'Answer with one short sentence. Do not use any tool.';

/** The one turn; it is sampled, so that its log-probabilities are worth comparing. */
const SCENARIO: ScenarioInput = {
  name: 'doctor',
  rules: [
    {
      reply: [
        { think: { noise: 16 } },
        {
          choice: {
            id: 'answer',
            options: [
              { reply: [{ text: 'All is well here.' }] },
              { reply: [{ text: 'There is nothing to be done.' }] },
            ],
          },
        },
      ],
    },
  ],
};

/** More than any harness's own prompt. */
const WINDOW_TOKENS = 131_072;

/** The slowest harness needs about ten seconds; one that waits for something that never comes is ended here. */
const TIMEOUT_SECONDS = 60;

/** What one session of one turn brought to light. */
export type Probe = {
  readonly result: SessionResult;
  readonly completions: readonly CompletionRecord[];
  readonly ledger: LedgerReport;
};

/**
 * Runs one session of the agent on this machine against the simulated engine, with a server and a node of its own, all
 * of which are gone when it settles. Rejects with what submission refuses, with what starting failed with, or with the
 * signal's reason.
 */
export async function probeAgent(
  agent: AgentSpec,
  backend: RuntimeBackend,
  harnessDir: string,
  signal: AbortSignal,
): Promise<Probe> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-doctor-'));
  const closers: (() => Promise<unknown>)[] = [() => rm(dir, { recursive: true, force: true, maxRetries: 3 })];
  try {
    const sim = await startSim({
      scenarios: [SCENARIO],
      maxModelLen: WINDOW_TOKENS,
      weightVersion: 'doctor',
      scaleOut: true,
    });
    closers.push(() => sim.close());
    const server = await startServer(join(dir, 'server'), { port: 0 }, silentLogger);
    closers.push(() => server.close());
    const node = await startNode(
      {
        node_id: 'doctor',
        server_url: server.url,
        state_dir: join(dir, 'gateway'),
        harness_dir: harnessDir,
        engines: [{ base_url: sim.url }],
        default_backend: backend,
      },
      silentLogger,
    );
    closers.push(() => node.close());
    const client = new FloeClient({ url: server.url });
    closers.push(() => client.close());
    return await runOne(client, sim, agent, signal);
  } finally {
    for (let close = closers.pop(); close !== undefined; close = closers.pop()) await close();
  }
}

async function runOne(client: FloeClient, sim: SimServer, agent: AgentSpec, signal: AbortSignal): Promise<Probe> {
  await client.submit({ instruction: INSTRUCTION, timeout_seconds: TIMEOUT_SECONDS, max_attempts: 1, agent }, signal);
  for await (const result of client.results({ signal })) {
    const bytes = result.completion_count === 0 ? '[]' : await client.completions(result.session_id, { signal });
    // Our own server's answer in our own form.
    const completions = parseJson(bytes) as CompletionRecord[];
    return { result, completions, ledger: checkAgainstLedger([result], sim.ledger.entries(), 'processed') };
  }
  throw new Error('the server ended its results before the only one came');
}
