import type { ProxySession } from '@floe-rl/capture';
import { asFloeError, type ErrorCode, FloeError } from '@floe-rl/core';
import type { AgentReport, Skill } from '@floe-rl/core/schema';
import type { ExecResult, Runtime } from '@floe-rl/sandbox';
import type { HarnessAdapter, HarnessVerdict } from '../../harnesses/harness.ts';
import { sessionEnv } from '../../harnesses/session-env.ts';
import type { Attempt } from './attempt.ts';
import { excuseOf, type Failure, sessionError } from './failure.ts';
import { Mailbox } from './mailbox.ts';

/**
 * Maximum number of characters of stdout and of stderr in the agent report, taken from the end. They suffice to show why a run ended and
 * fit into a database row.
 */
const TAIL_CHARS = 4_000;

/** Codes of the errors that end a run because the agent has reached a limit of its task on model calls. */
const CALL_LIMITS: readonly ErrorCode[] = ['turn_limit', 'record_limit'];

export type AgentRun = {
  readonly instruction: string;
  readonly adapter: HarnessAdapter;
  /**
   * Directory of the installed harness, which has the same path in the sandbox and on the host; `null` for a harness that needs no
   * installation.
   */
  readonly installDir: string | null;
  /** Context window of the model in tokens; `null` when the engine does not report it. */
  readonly contextWindow: number | null;
  readonly skills: readonly Skill[];
  /** Secret of the session, which is part of the proxy's URL and also the agent's API key. */
  readonly key: string;
  readonly session: ProxySession;
  /** Variables that direct programs to the session's egress proxy; empty when the session has none. */
  readonly egressEnv: Readonly<Record<string, string>>;
};

/**
 * Runs the harness until it ends. Sets the agent report of the attempt and, if the run failed, the failure. Rejects as `Runtime.exec` and
 * `HarnessAdapter.launch` do.
 */
export async function runAgent(attempt: Attempt, runtime: Runtime, run: AgentRun, signal: AbortSignal): Promise<void> {
  const { task } = attempt.lease;
  const baseUrl = `${runtime.proxyOrigin}/s/${run.key}`;
  const launch = run.adapter.launch({
    instruction: run.instruction,
    agent: task.agent,
    skills: run.skills,
    baseUrl,
    apiKey: run.key,
    contextWindow: run.contextWindow,
    paths: runtime.paths,
    toolServer: {
      command: runtime.mcpCommand,
      env: { ...run.egressEnv, ...attempt.spec.env, ...task.agent.env },
    },
    installDir: run.installDir,
  });
  await runtime.writeFiles(launch.files, signal);
  const env = {
    ...sessionEnv({ lease: attempt.lease, baseUrl, apiKey: run.key, paths: runtime.paths }),
    ...attempt.spec.env,
    ...launch.env,
    ...task.agent.env,
  };
  try {
    const { command, stdin, mailbox: dir } = launch;
    const exec = (withProxy: boolean, ended: AbortSignal) => runtime.exec({ command, env, stdin, withProxy }, ended);
    const result =
      dir === undefined
        ? await exec(true, signal)
        : await Mailbox.during({ runtime, session: run.session, dir }, (ended) => exec(false, ended), signal);
    judge(attempt, run, runtime, result, signal);
  } catch (error) {
    attempt.agent = report(run.session.completionCount, runtime, null);
    if (failedAtCallLimit(attempt, run, error)) return;
    if (FloeError.is(error) && error.code === 'harness_failed') {
      attempt.fail({ outcome: 'agent_error', error: sessionError(error, 'agent') });
      return;
    }
    const excuse = excuseFor(run.session, false);
    if (excuse !== null && FloeError.is(error) && error.code === 'deadline_exceeded') attempt.fail(excuse);
    throw error;
  }
}

/** Returns the report on a run; `result` is `null` for an agent without a command, or whose command has no result. */
export function report(turns: number, runtime: Runtime, result: ExecResult | null): AgentReport {
  return {
    exit_code: result?.exitCode ?? null,
    turns,
    stdout_tail: result?.stdout.slice(-TAIL_CHARS) ?? '',
    stderr_tail: result?.stderr.slice(-TAIL_CHARS) ?? '',
    isolation: runtime.isolation,
  };
}

/**
 * Fails the attempt and returns true when `reason` is that the agent has used up its turns or the maximum size of its record. The run
 * counts as truncated, unless its first request was already too large.
 */
export function failedAtCallLimit(attempt: Attempt, { session }: Pick<AgentRun, 'session'>, reason: unknown): boolean {
  if (!FloeError.is(reason) || !CALL_LIMITS.includes(reason.code)) return false;
  const outcome = session.completionCount === 0 ? 'no_completions' : 'truncated_turns';
  attempt.fail({ outcome, error: sessionError(reason, 'agent') });
  return true;
}

/**
 * Returns the failure of the main agent's last model call if the engine or floe caused the failure, and otherwise `null`. The session then
 * ends with this failure instead of an outcome that blames the agent. The agent's exit code does not show whether its model failed, because
 * some programs end successfully after such a failure. When the run has failed (`succeeded` is false), the last model call of a sub-agent
 * counts as well.
 */
export function excuseFor(session: ProxySession, succeeded: boolean): Failure | null {
  const { failures } = session;
  const ofMain = excuseOf(session.pendingFailure('main') ?? failures.ofMain) ?? excuseOf(failures.refusal);
  if (ofMain !== null || succeeded) return ofMain;
  return excuseOf(session.pendingFailure('agents') ?? failures.ofAgents);
}

function verdictOn({ adapter }: AgentRun, result: ExecResult, turns: number): HarnessVerdict {
  if (result.killedBy !== null) return { ok: false, message: `a command exceeded the limit on ${result.killedBy}` };
  try {
    return adapter.judge({ exitCode: result.exitCode, stdout: result.stdout, stderr: result.stderr, turns });
  } catch (error) {
    // Any program in the sandbox can write to the harness's output, so output that cannot be judged is not a failure of the node.
    return { ok: false, message: `the output cannot be judged: ${asFloeError(error).message}` };
  }
}

/**
 * Sets the failure of the attempt from the harness's verdict and from how the last model calls ended. docs/outcomes.md lists all cases.
 */
function judge(attempt: Attempt, run: AgentRun, runtime: Runtime, result: ExecResult, signal: AbortSignal): void {
  const { completionCount: turns, failures } = run.session;
  attempt.agent = report(turns, runtime, result);
  const verdict = verdictOn(run, result, turns);

  // The signal has aborted with the limit if the agent has reached one of its limits on model calls. The run then counts as truncated, even
  // if the agent ended by itself.
  if (failedAtCallLimit(attempt, run, signal.reason)) return;
  if (failures.ofMain?.details.context_overflow === true) {
    attempt.fail({ outcome: 'truncated_context', error: sessionError(failures.ofMain, 'agent') });
    return;
  }
  const excuse = excuseFor(run.session, verdict.ok);
  if (excuse !== null) {
    attempt.fail(excuse);
    return;
  }
  if (turns === 0) {
    attempt.fail({
      outcome: 'no_completions',
      error: sessionError(noTurnError(attempt, run, result, verdict), 'agent'),
    });
    return;
  }
  if (!verdict.ok) {
    const error = new FloeError('harness_failed', `${run.adapter.name}: ${verdict.message}`, {
      exit_code: result.exitCode,
      signal: result.signal,
      killed_by: result.killedBy,
    });
    attempt.fail({ outcome: 'agent_error', error: sessionError(error, 'agent') });
  }
}

/** Returns the command that checks the agent of this attempt with one scripted turn. The agent's own command may be long, so it is not quoted. */
function doctorCommand({ lease, spec }: Attempt): string {
  const { harness, custom_shell: command } = lease.task.agent;
  const options = [
    ...(command === undefined ? [] : ['--custom-shell "<agent.custom_shell>"']),
    ...(spec.image === null ? [] : [`--image ${spec.image}`]),
  ];
  return ['floe doctor', `--harness ${harness}`, ...options].join(' ');
}

/** Returns the error for a run of the agent in which no model call was answered. */
function noTurnError(attempt: Attempt, run: AgentRun, result: ExecResult, verdict: HarnessVerdict): FloeError {
  const { failures, requests } = run.session;
  const refusal = failures.ofAgents ?? failures.refusal;
  const { harness } = attempt.lease.task.agent;
  const ended = verdict.ok ? `exit code ${result.exitCode}` : verdict.message;
  const details = { harness, exit_code: result.exitCode, proxy_requests: requests };
  if (requests === 0) {
    const hint =
      `run \`${doctorCommand(attempt)}\` on the node; if that works, check agent.env and agent.settings, ` +
      'which may point the harness to another model';
    return new FloeError(
      'harness_silent',
      `${harness} ended (${ended}) without any request to its model; ${hint}`,
      details,
    );
  }
  const why =
    refusal !== null
      ? `its calls were refused: ${refusal.message}`
      : `${requests} requests reached the proxy, none of them a model call`;
  return new FloeError(
    'no_completions',
    `${harness} ended (${ended}) without any answered model call: ${why}`,
    details,
  );
}
