import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '../client/index.ts';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import { undoAll } from '../core/promises.ts';
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
import { paint, printLine } from './print.ts';
import { startNode, startServer } from './stack.ts';

/** The result of one check. `remedy` is one line that describes how to fix a failure; `null` when nothing needs to be fixed. */
export type Finding = {
  readonly part: string;
  readonly ok: boolean;
  readonly text: string;
  readonly remedy: string | null;
};

/** Number of columns that a part's name is padded to, so that the texts are aligned. */
const PART_COLUMNS = 22;

function passed(part: string, text: string): Finding {
  return { part, ok: true, text, remedy: null };
}

function failed(part: string, text: string, remedy: string | null): Finding {
  return { part, ok: false, text, remedy };
}

/** Prints the result of a check, and its remedy in a second line. */
export function printFinding({ part, ok, text, remedy }: Finding): void {
  printLine(`${ok ? paint('green', 'ok  ') : paint('red', 'fail')}  ${part.padEnd(PART_COLUMNS)} ${text}`);
  if (remedy !== null) printLine(`      ${' '.repeat(PART_COLUMNS)} → ${remedy}`);
}

/**
 * Maximum number of characters from the end of each output stream of the agent that a hint quotes: the end mostly contains the reason of a
 * failure.
 */
const TAIL_CHARS = 600;

/** The options that describe the agent to check. `settings` is JSON text. */
export type HarnessOptions = {
  readonly harness: string;
  readonly dialect?: string | undefined;
  readonly settings?: string | undefined;
  readonly customShell?: string | undefined;
};

/** What a check of a harness uses of this machine. */
type Machine = {
  readonly harnessDir: string;
  chooseBackend(): Promise<BackendChoice>;
  /** Aborts the check. Everything that the check started is stopped before it rejects. */
  readonly signal: AbortSignal;
};

/**
 * Checks a harness on this machine with one scripted turn: whether the harness starts, its request arrives, it accepts the reply, and the
 * recorded tokens are those of the engine. Stops at the first failed check, because later checks depend on it. Rejects with
 * `unknown_harness`, `schema_violation`, `unsupported` or `malformed_json` for invalid options, and with the signal's reason when the
 * signal aborts.
 */
export async function examineHarness(options: HarnessOptions, machine: Machine): Promise<Finding[]> {
  const adapter = findHarness(options.harness);
  const agent = agentOf(options);
  adapter.checkAgent(agent);
  const installation = await installationFinding(adapter, agent, machine.harnessDir);
  if (!installation.ok) return [installation];
  const { backend, problem } = await machine.chooseBackend();
  const runtime = passed('runtime', problem === null ? backend : `${backend}, without isolation: ${problem.problem}`);
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
  if (install === null || adapter.inImage(agent)) return passed('installed', 'nothing to install');
  const { installed, path } = await harnessStatus(name, harnessDir);
  if (installed) return passed('installed', `${install.version} in ${path}`);
  return failed('installed', `${name} ${install.version} is not installed`, `floe harness install ${name}`);
}

/** Returns the results of the checks of a session in order, up to and including the first failed one. */
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
  if (result.agent !== null) return passed('sandbox', `started in ${result.timing.init_ms?.toFixed(0) ?? '?'} ms`);
  return failed('sandbox', problemOf(result), 'run floe doctor to check what sandboxes need on this machine');
}

function requestArrived({ result, completions }: Probe, dialect: DialectName): Finding {
  const part = 'request';
  const others = [...new Set(completions.map((completion) => completion.dialect))].filter((name) => name !== dialect);
  if (others.length > 0) {
    const remedy = 'the settings or variables of the harness choose another dialect than agent.dialect';
    return failed(part, `in ${others.join(' and ')} instead of ${dialect}`, remedy);
  }
  if (completions.length > 0) return passed(part, `${completions.length} in ${dialect}`);
  if (result.error?.code === 'harness_silent') {
    const remedy = `the program never called its model at $FLOE_BASE_URL; its output ends in: ${outputTail(result)}`;
    return failed(part, `none reached the proxy; exit code ${result.agent?.exit_code ?? 'none'}`, remedy);
  }
  const ended = `the output of the program ends in: ${outputTail(result)}`;
  return failed(part, `none was answered: ${problemOf(result)}`, ended);
}

function replyAccepted({ result, completions }: Probe): Finding {
  const accepted = completions.filter(({ abandoned, undelivered }) => !abandoned && !undelivered);
  if (accepted.length > 0) return passed('reply', accepted.length === 1 ? 'accepted' : `${accepted.length} accepted`);
  const repeated = completions.some(({ abandoned }) => abandoned);
  const text = repeated
    ? 'the harness repeated the request instead of using the reply'
    : 'the harness disconnected before the reply was complete';
  return failed('reply', text, `the output of the program ends in: ${outputTail(result)}`);
}

function harnessEnded({ result }: Probe): Finding {
  const exit = `exit code ${result.agent?.exit_code ?? 'none'}`;
  const seconds = ((result.timing.running_ms ?? 0) / 1000).toFixed(1);
  if (result.outcome === 'completed') return passed('session', `completed, ${exit}, ${seconds} s`);
  return failed('session', problemOf(result), `the output of the program ends in: ${outputTail(result)}`);
}

function tokensExact({ result, ledger }: Probe): Finding {
  const [first] = ledger.mismatches;
  if (first !== undefined) {
    const text = `${ledger.mismatches.length} differences from the engine, the first: ${first.what}: ${first.detail}`;
    return failed('tokens', text, 'this is a defect of floe; please report it with this output');
  }
  if (ledger.trainable_tokens > 0) return passed('tokens', `${ledger.trainable_tokens} trained, all as sampled`);
  const excluded = JSON.stringify(result.audit?.tokens.excluded ?? {});
  return failed('tokens', `none of the reply is trained; excluded: ${excluded}`, null);
}

function problemOf({ outcome, error }: Probe['result']): string {
  if (error === null) return outcome;
  // Joins the lines of the message, which may contain the output of a program, because a result is printed on one line.
  const reason = `${error.code}: ${error.message.replaceAll(/\s*\n\s*/g, ' ')}`;
  return outcome === error.code ? reason : `${outcome}: ${reason}`;
}

/** Returns the last characters of the agent's output on one line, because a hint is printed on one line. */
function outputTail({ agent }: Probe['result']): string {
  const tails = [agent?.stdout_tail, agent?.stderr_tail].map((text) => (text ?? '').trim().slice(-TAIL_CHARS));
  const quoted = tails.filter((text) => text !== '').map((text) => JSON.stringify(text));
  return quoted.length === 0 ? 'no output' : quoted.join(' and ');
}

/** Instruction for the checked agent. It needs no tool, so the agent ends after one turn. */
const INSTRUCTION = 'Answer with one short sentence. Do not use any tool.';

/** The reply of the simulated engine. Its text is sampled, so that the log-probabilities are not all 0. */
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

/** Context window of the simulated engine in tokens, larger than the system prompt of any harness. */
const WINDOW_TOKENS = 131_072;

/** Time limit of the checked session, s. The slowest harness needs about ten seconds. */
const TIMEOUT_SECONDS = 60;

/** What a check recorded of its one session: the result, the completions and the comparison with the engine's ledger. */
export type Probe = {
  readonly result: SessionResult;
  readonly completions: readonly CompletionRecord[];
  readonly ledger: LedgerReport;
};

/**
 * Runs one session of the agent on this machine. Starts a simulated engine, a server and a node for it, and closes them before it settles.
 * Rejects when one of them cannot start, when the submission is refused, and with the signal's reason when the signal aborts.
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
    await undoAll(closers);
  }
}

async function runOne(client: FloeClient, sim: SimServer, agent: AgentSpec, signal: AbortSignal): Promise<Probe> {
  await client.submit({ instruction: INSTRUCTION, timeout_seconds: TIMEOUT_SECONDS, max_attempts: 1, agent }, signal);
  for await (const result of client.results({ signal })) {
    const bytes = result.completion_count === 0 ? '[]' : await client.completions(result.session_id, { signal });
    // The reply is not validated, because it comes from floe's own server in this process.
    const completions = parseJson(bytes) as CompletionRecord[];
    return { result, completions, ledger: checkAgainstLedger([result], sim.ledger.entries(), 'processed') };
  }
  throw new Error('the server ended the results without the result of the session');
}
