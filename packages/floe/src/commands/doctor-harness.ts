import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { FloeError, makeTempDir, parseAs, parseJson, undoAll } from '@floe-rl/core';
import {
  type AgentSpec,
  agentSpecSchema,
  type CompletionRecord,
  type DialectName,
  type RuntimeBackend,
  type SessionResult,
} from '@floe-rl/core/schema';
import { findHarness, type HarnessAdapter, harnessStatus } from '@floe-rl/node';
import { silentLogger } from '@floe-rl/observe';
import { checkAgainstLedger, type LedgerReport, type ScenarioInput, type SimServer, startSim } from '@floe-rl/sim';
import { startNode, startServer } from '../up/stack.ts';
import type { BackendChoice } from './backend.ts';
import { paint, printLine } from './print.ts';

/**
 * The result of one check. `remedy` is one line that explains what to change; `null` when nothing needs to be changed. A check that
 * passed with a remedy is a warning.
 */
export type Finding = {
  readonly part: string;
  readonly ok: boolean;
  readonly text: string;
  readonly remedy: string | null;
};

/** Column width to which the name of a checked part is padded, so that the texts after the names are aligned. */
const PART_COLUMNS = 22;

function passed(part: string, text: string): Finding {
  return { part, ok: true, text, remedy: null };
}

function failed(part: string, text: string, remedy: string | null): Finding {
  return { part, ok: false, text, remedy };
}

/** Prints the result of a check, and its remedy in a second line. */
export function printFinding({ part, ok, text, remedy }: Finding): void {
  const result = !ok ? paint('red', 'fail') : remedy === null ? paint('green', 'ok  ') : paint('yellow', 'warn');
  printLine(`${result}  ${part.padEnd(PART_COLUMNS)} ${text}`);
  if (remedy !== null) printLine(`      ${' '.repeat(PART_COLUMNS)} → ${remedy}`);
}

/**
 * Maximum number of characters that a hint quotes of each of the agent's output streams. It quotes the end of the stream, which usually
 * contains the reason of a failure.
 */
const TAIL_CHARS = 600;

/** The command-line options that describe the agent to check. `settings` is JSON text. */
export type HarnessOptions = {
  readonly harness: string;
  readonly dialect?: string | undefined;
  readonly settings?: string | undefined;
  readonly customShell?: string | undefined;
  /** Directory of the root file system in which the agent runs. Default: the host's programs in `/usr`. */
  readonly image?: string | undefined;
};

/** The harness directory and the choice of runtime on this machine, which the check of a harness uses. */
type Machine = {
  readonly harnessDir: string;
  chooseBackend(): Promise<BackendChoice>;
  /** Signal that aborts the check of a harness. The check rejects after everything that it started has stopped. */
  readonly signal: AbortSignal;
};

/**
 * Checks a harness on this machine with one scripted turn. The harness must start, its request must reach the proxy, and it must accept the
 * reply. The recorded tokens must equal the tokens that the simulated engine sampled. Stops at the first failed check, because later checks
 * depend on it.
 *
 * Rejects with `bad_request` when a harness that needs a command gets none, and with `unknown_harness`, `schema_violation`, `unsupported` or
 * `malformed_json` for other invalid options. When the signal aborts, rejects with the signal's reason.
 */
export async function examineHarness(options: HarnessOptions, machine: Machine): Promise<Finding[]> {
  const adapter = findHarness(options.harness);
  refuseWithoutCommand(adapter, options);
  const agent = agentOf(options);
  adapter.checkAgent(agent);
  const installation = await installationFinding(adapter, agent, machine.harnessDir);
  if (!installation.ok) return [installation];
  const { backend, problem } = await machine.chooseBackend();
  const runtime = passed('runtime', problem === null ? backend : `${backend}, without isolation: ${problem.problem}`);
  const probe = await probeAgent({ agent, image: options.image ?? null }, backend, machine.harnessDir, machine.signal);
  return [installation, runtime, ...findingsOf(probe, agent.dialect ?? adapter.dialects[0])];
}

function refuseWithoutCommand({ name, features, runsOnNode }: HarnessAdapter, { customShell }: HarnessOptions): void {
  if (runsOnNode) {
    const hint = 'run one with `floe agent run <agent> --base-url <url>`';
    throw new FloeError(
      'bad_request',
      `--harness ${name}: its agents run on the node and need no installation; ${hint}`,
    );
  }
  if (!features.includes('custom_shell') || customShell !== undefined) return;
  const example = `floe doctor --harness ${name} --custom-shell "my-agent --model \\$FLOE_MODEL"`;
  throw new FloeError('bad_request', `--harness ${name} requires the command of the agent, for example: ${example}`);
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
  // A finding is printed on one line, so the lines of the message are joined. The message may contain the output of a program.
  const reason = `${error.code}: ${error.message.replaceAll(/\s*\n\s*/g, ' ')}`;
  return outcome === error.code ? reason : `${outcome}: ${reason}`;
}

/** Returns the last characters of the agent's output on one line, because a hint is printed on one line. */
function outputTail({ agent }: Probe['result']): string {
  const tails = [agent?.stdout_tail, agent?.stderr_tail].map((text) => (text ?? '').trim().slice(-TAIL_CHARS));
  const quoted = tails.filter((text) => text !== '').map((text) => JSON.stringify(text));
  return quoted.length === 0 ? 'no output' : quoted.join(' and ');
}

/** Prompt of the checked agent. It needs no tool, so the agent ends after one turn. */
const INSTRUCTION = 'Answer with one short sentence. Do not use any tool.';

/** Scripted reply of the simulated engine. Its parts are chosen at random, because log-probabilities of a fixed text would all be 0. */
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

/** Time limit of the checked session, s. The slowest harness needs about 10 s. */
const TIMEOUT_SECONDS = 60;

/**
 * The recorded data of the one session that a check runs: the result, the completions, and the comparison with the simulated engine's
 * ledger of sampled tokens.
 */
export type Probe = {
  readonly result: SessionResult;
  readonly completions: readonly CompletionRecord[];
  readonly ledger: LedgerReport;
};

/** An agent to check. `image` is the directory of the sandbox's root file system; `null` when the sandbox uses the programs of the host. */
type CheckedAgent = { readonly agent: AgentSpec; readonly image: string | null };

/**
 * Runs one session of the agent on this machine. Starts a simulated engine, a rollout server and a node for it, and closes them before the
 * promise settles. Rejects when one of them cannot start, when the submission is refused, and with the signal's reason when the signal
 * aborts.
 */
export async function probeAgent(
  checked: CheckedAgent,
  backend: RuntimeBackend,
  harnessDir: string,
  signal: AbortSignal,
): Promise<Probe> {
  const dir = makeTempDir('floe-doctor-');
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
    return await runOne(client, sim, checked, signal);
  } finally {
    await undoAll(closers);
  }
}

async function runOne(
  client: FloeClient,
  sim: SimServer,
  { agent, image }: CheckedAgent,
  signal: AbortSignal,
): Promise<Probe> {
  const limits = { timeout_seconds: TIMEOUT_SECONDS, max_attempts: 1 };
  const runtime = image === null ? {} : { runtime: { image } };
  await client.submit({ instruction: INSTRUCTION, ...limits, agent, ...runtime }, signal);
  for await (const result of client.results({ signal })) {
    const bytes = result.completion_count === 0 ? '[]' : await client.completions(result.session_id, { signal });
    // The reply is not validated, because it comes from floe's own server in this process.
    const completions = parseJson(bytes) as CompletionRecord[];
    return { result, completions, ledger: checkAgainstLedger([result], sim.ledger.entries(), 'processed') };
  }
  throw new Error('the server ended the results without the result of the session');
}
