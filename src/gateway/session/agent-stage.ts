import { FloeError } from '../../core/errors.ts';
import type { HarnessAdapter, HarnessVerdict } from '../../harnesses/harness.ts';
import { sessionEnv } from '../../harnesses/session-env.ts';
import type { ProxySession } from '../../proxy/session/session.ts';
import type { ExecResult, Runtime } from '../../runtimes/runtime.ts';
import type { AgentReport, Skill } from '../../schema/index.ts';
import type { Attempt } from './attempt.ts';
import { excuseOf, sessionError } from './failure.ts';

/**
 * Maximum number of characters of each output stream in the agent report, taken from the end: enough to show why a run ended, few enough
 * for a database row.
 */
const TAIL_CHARS = 4_000;

export type AgentRun = {
  readonly adapter: HarnessAdapter;
  /**
   * Directory of the installed harness, which has the same path in the sandbox and on the host; `null` for a harness that needs no
   * installation.
   */
  readonly installDir: string | null;
  /** Largest context of the model in tokens; `null` when the engine does not report it. */
  readonly contextWindow: number | null;
  readonly skills: readonly Skill[];
  /** Session key. The agent also receives it as its API key. */
  readonly key: string;
  readonly session: ProxySession;
  /** Returns the error with which an engine failed the model call that is still unanswered; `null` when there is no such error. */
  readonly pendingCallFailure: () => FloeError | null;
};

/**
 * Runs the harness until it ends, and sets the attempt's agent report and, when the run failed, its failure. Rejects as `Runtime.exec` and
 * `HarnessAdapter.launch` do.
 */
export async function runAgent(attempt: Attempt, runtime: Runtime, run: AgentRun, signal: AbortSignal): Promise<void> {
  const { task } = attempt.lease;
  const baseUrl = `${runtime.proxyOrigin}/s/${run.key}`;
  const launch = run.adapter.launch({
    instruction: task.instruction,
    agent: task.agent,
    skills: run.skills,
    baseUrl,
    apiKey: run.key,
    contextWindow: run.contextWindow,
    paths: runtime.paths,
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
    const result = await runtime.exec({ command: launch.command, env, stdin: launch.stdin, withProxy: true }, signal);
    judge(attempt, run, runtime, result);
  } catch (error) {
    attempt.agent = report(run.session.completionCount, runtime, null);
    if (FloeError.is(error) && error.code === 'turn_limit') {
      attempt.fail({ outcome: 'truncated_turns', error: sessionError(error, 'agent') });
      return;
    }
    // When no engine answered the pending model call, the engine is the cause of the timeout, not the agent.
    const excuse = excuseOf(run.pendingCallFailure() ?? run.session.lastError);
    if (excuse !== null && FloeError.is(error) && error.code === 'deadline_exceeded') attempt.fail(excuse);
    throw error;
  }
}

function report(turns: number, runtime: Runtime, result: ExecResult | null): AgentReport {
  return {
    exit_code: result?.exitCode ?? null,
    turns,
    stdout_tail: result?.stdout.slice(-TAIL_CHARS) ?? '',
    stderr_tail: result?.stderr.slice(-TAIL_CHARS) ?? '',
    isolation: runtime.isolation,
  };
}

function judge(attempt: Attempt, run: AgentRun, runtime: Runtime, result: ExecResult): void {
  const { completionCount: turns, lastError } = run.session;
  attempt.agent = report(turns, runtime, result);
  const verdict: HarnessVerdict =
    result.killedBy === null
      ? run.adapter.judge({ exitCode: result.exitCode, stdout: result.stdout, stderr: result.stderr, turns })
      : { ok: false, message: `a command exceeded the limit on ${result.killedBy}` };

  if (lastError?.code === 'engine_rejected' && lastError.details.context_overflow === true) {
    attempt.fail({ outcome: 'truncated_context', error: sessionError(lastError, 'agent') });
    return;
  }
  const excuse = excuseOf(lastError);
  if (excuse !== null && (!verdict.ok || turns === 0)) {
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

/** Returns the error for a run in which the model answered no call. */
function noTurnError(attempt: Attempt, run: AgentRun, result: ExecResult, verdict: HarnessVerdict): FloeError {
  const { lastError, requests } = run.session;
  const { harness } = attempt.lease.task.agent;
  const ended = verdict.ok ? `exit code ${result.exitCode}` : verdict.message;
  const details = { harness, exit_code: result.exitCode, proxy_requests: requests };
  if (requests === 0) {
    const hint =
      `run \`floe doctor --harness ${harness}\` on the node; if that works, check agent.env and agent.settings, ` +
      'which may point the harness to another model';
    return new FloeError(
      'harness_silent',
      `${harness} ended (${ended}) without any request to its model; ${hint}`,
      details,
    );
  }
  const why =
    lastError !== null
      ? `its calls were refused: ${lastError.message}`
      : `${requests} requests reached the proxy, none of them a model call`;
  return new FloeError(
    'no_completions',
    `${harness} ended (${ended}) without any answered model call: ${why}`,
    details,
  );
}
