import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import type { HarnessAdapter } from '../harnesses/harness.ts';
import { harnessStatus } from '../harnesses/install/install.ts';
import { findHarness } from '../harnesses/registry.ts';
import { type AgentSpec, agentSpecSchema, type DialectName } from '../schema/index.ts';
import type { BackendChoice } from './backend.ts';
import { type Finding, found, lacking } from './doctor-finding.ts';
import { type Probe, probeAgent } from './doctor-probe.ts';

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
