import type { AgentHost, EpisodeBackend, EpisodeEnd, EpisodeOrder, EpisodeResult, ReplyReward } from '@floe-rl/agents';
import { callDirectly, MAIN_THREAD, type ProxySession } from '@floe-rl/capture';
import { FloeError } from '@floe-rl/core';
import type { Runtime, RuntimeTools } from '@floe-rl/sandbox';
import { floeAgentSettings } from '../../harnesses/floe.ts';
import { type AgentRun, excuseFor, failedAtCallLimit, report } from './agent-stage.ts';
import type { Attempt } from './attempt.ts';
import { sessionError } from './failure.ts';

/** `proxyOrigin` is the address of the proxy on the node. */
type FloeAgentRun = Pick<AgentRun, 'instruction' | 'contextWindow' | 'skills' | 'session' | 'key'> & {
  readonly proxyOrigin: string;
};

/**
 * Runs one episode of an agent of the harness `floe`. Sets the agent report and the episode of the attempt and, if the episode failed, the
 * failure. Rejects with an error for which the agent is not to blame.
 */
export async function runFloeAgent(
  attempt: Attempt,
  runtime: Runtime,
  run: FloeAgentRun,
  host: Pick<AgentHost, 'run'>,
  signal: AbortSignal,
): Promise<void> {
  const { session } = run;
  const opened: RuntimeTools[] = [];
  try {
    const end = await host.run(orderOf(attempt, runtime, run), backendOf(attempt, runtime, session, opened), signal);
    judge(attempt, runtime, session, end);
  } catch (error) {
    attempt.agent = report(session.completionCount, runtime, null);
    if (failedAtCallLimit(attempt, run, error) || failedAtContext(attempt, session)) return;
    const excuse = excuseFor(session, false);
    if (excuse !== null) attempt.fail(excuse);
    else if (!signal.aborted && failedAtTools(attempt, session, opened)) return;
    throw error;
  }
}

function orderOf(
  { lease }: Attempt,
  runtime: Runtime,
  { instruction, contextWindow, skills, key, proxyOrigin }: FloeAgentRun,
): EpisodeOrder {
  const { agent, environment, metadata } = lease.task;
  const { agent: name, options, tools, hints } = floeAgentSettings(agent);
  return {
    ...{ sessionId: lease.session_id, taskId: lease.task_id, agent: name, options, tools, hints, metadata },
    systemPrompt: agent.system_prompt ?? null,
    seed: environment?.seed ?? 0,
    ...{ instruction, environment, skills },
    limits: { turns: agent.max_turns ?? null, contextTokens: contextWindow },
    endpoint: { baseUrl: `${proxyOrigin}/s/${key}`, apiKey: key },
    workdir: runtime.backend === 'none' ? null : runtime.paths.workdir,
  };
}

/** `opened` receives the tools that the episode opens. */
function backendOf(attempt: Attempt, runtime: Runtime, session: ProxySession, opened: RuntimeTools[]): EpisodeBackend {
  const openTools = async (signal: AbortSignal): Promise<RuntimeTools> => {
    const tools = await runtime.openTools(signal);
    opened.push(tools);
    return tools;
  };
  return {
    ask: async (request, signal) => {
      const { completionId, message, finishReason, usage } = await callDirectly(session, request, signal);
      return { completionId, message, finishReason, usage };
    },
    openTools: runtime.backend === 'none' ? null : openTools,
    onActivity: attempt.recordProgress,
  };
}

/** Sets the episode of the attempt, and its failure from how the episode ended. docs/outcomes.md lists all cases. */
function judge(attempt: Attempt, runtime: Runtime, session: ProxySession, { result, metrics }: EpisodeEnd): void {
  const { status, score, seatScores = {}, reason } = result;
  attempt.episode = { ...result, replyRewards: replyRewardsOf(result, session) };
  attempt.agent = {
    ...report(session.completionCount, runtime, null),
    episode: { status, score, seat_scores: { ...seatScores }, reason, metrics: { ...metrics } },
  };
  const excuse = excuseFor(session, status !== 'failed');
  if (excuse !== null) attempt.fail(excuse);
  else if (status === 'no_data') attempt.fail({ outcome: 'env_error', error: failure('not_found', reason) });
  else if (session.completionCount === 0)
    attempt.fail({ outcome: 'no_completions', error: failure('no_completions', reason) });
  else if (status === 'truncated') attempt.fail({ outcome: 'truncated_turns', error: failure('turn_limit', reason) });
  else if (status === 'timeout')
    attempt.fail({ outcome: 'agent_timeout', error: failure('deadline_exceeded', reason) });
  else if (status === 'failed') attempt.fail({ outcome: 'agent_error', error: failure('harness_failed', reason) });
}

/**
 * Returns the rewards of replies. An agent may have given them in the order of its replies (`stepScores`) instead of by id. Throws
 * `plugin_failed` when the number of these scores is not the number of the agent's replies.
 */
function replyRewardsOf(
  { replyRewards = [], stepScores = [] }: EpisodeResult,
  session: ProxySession,
): readonly ReplyReward[] {
  if (stepScores.length === 0) return replyRewards;
  const replies = session.completions().filter(({ callKind, thread }) => callKind === 'main' && thread === MAIN_THREAD);
  if (replies.length !== stepScores.length) {
    const counts = `${stepScores.length} scores of steps, and its model gave ${replies.length} replies`;
    throw new FloeError('plugin_failed', `the result of the agent has ${counts}`);
  }
  return replies.map(({ completionId }, index) => ({ completionId, reward: stepScores[index] ?? 0 }));
}

function failure(code: FloeError['code'], reason: EpisodeResult['reason']): ReturnType<typeof sessionError> {
  return sessionError(new FloeError(code, `the agent's episode: ${reason}`), 'agent');
}

/**
 * Fails the attempt and returns true when the box server of the tools was lost after the agent had done something in the sandbox. An agent
 * that ends its box server must not get another attempt. A failure of the host or of the container engine does not count.
 */
function failedAtTools(attempt: Attempt, session: ProxySession, opened: readonly RuntimeTools[]): boolean {
  const loss = opened.map((tools) => tools.loss).find((one) => one?.byAgent === true);
  // Before the first reply, floe's own tools have used the sandbox. The agent of an earlier step may have left something in it.
  const wasUsed = attempt.steps.length > 0 || (loss?.wasUsed === true && session.completionCount > 0);
  if (loss == null || !wasUsed) return false;
  const message = `the agent's commands ended or stopped the tools of its sandbox: ${loss.error.message}`;
  const error = new FloeError('harness_failed', message, loss.error.details);
  attempt.fail({ outcome: 'agent_error', error: sessionError(error, 'agent') });
  return true;
}

/** Fails the attempt and returns true when the conversation no longer fits into the context of the model. */
function failedAtContext(attempt: Attempt, { failures }: ProxySession): boolean {
  const error = failures.ofMain;
  if (error?.details.context_overflow !== true) return false;
  attempt.fail({ outcome: 'truncated_context', error: sessionError(error, 'agent') });
  return true;
}
