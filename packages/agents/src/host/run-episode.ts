import { FloeError, messageOf, parseAs } from '@floe-rl/core';
import { type EpisodeReport, episodeReportSchema, type McpServer } from '@floe-rl/core/schema';
import { findAgent } from '../agents/registry.ts';
import type { Environment, Observation } from '../environments/environment.ts';
import { findEnvironment, parseEnvironmentConfig } from '../environments/registry.ts';
import { imageProblem } from '../image-url.ts';
import { mainConversation } from '../loop/conversation.ts';
import type { Episode, EpisodeResult } from '../loop/episode.ts';
import type { Model } from '../loop/model.ts';
import type { AnyTool, Box } from '../tools/tool.ts';
import type { Catalog } from './catalog.ts';
import { EpisodeTools } from './episode-tools.ts';
import type { EpisodeEnd, EpisodeOrder } from './protocol.ts';
import type { ToolsetPool } from './toolset-pool.ts';

/** What an episode runs with. */
export type EpisodeParts = {
  readonly catalog: Catalog;
  /** Toolsets that are kept between episodes. */
  readonly pool: ToolsetPool;
  readonly model: Model;
  readonly box: Box | null;
  readonly services: Readonly<Record<string, string>>;
  readonly mcpServers: readonly McpServer[];
  readonly signal: AbortSignal;
};

/**
 * Runs one episode of an agent: opens its tools and its environment, lets it work, and closes them. Rejects with `unknown_agent`,
 * `unknown_environment` or `unknown_tool`, and with `schema_violation` for settings that do not fit. Rejects with `plugin_failed` for a defect
 * of a plug-in, with the error of a model call, or with the reason of the signal.
 */
export async function runEpisode(order: EpisodeOrder, parts: EpisodeParts): Promise<EpisodeEnd> {
  const { catalog, signal } = parts;
  const agent = findAgent(order.agent, catalog.agents);
  const settings = parseAs(agent.settings, order.options, 'agent.settings.options', 'agent.settings.options');
  const metrics = new EpisodeMetrics();
  const opened: { close?(): Promise<void> }[] = [];
  try {
    const environment = await createEnvironment(order, parts);
    if (environment !== null) opened.push(environment);
    const episodeTools = new EpisodeTools(order, parts, { box: parts.box, environment });
    opened.push(episodeTools);
    const tools = await episodeTools.open(agent, settings);
    for (const name of episodeTools.leftOut) metrics.count(`tools.left_out.${name}`);
    const toolInstructions = episodeTools.instructions;
    const episode = episodeOf(order, parts, { settings, environment, tools, toolInstructions, metrics });
    // An agent that throws before its first promise must not end the process.
    const result = await (async () => agent.run(episode))();
    signal.throwIfAborted();
    return { result: checkedResult(order.agent, result), metrics: metrics.values() };
  } catch (error) {
    signal.throwIfAborted();
    throw FloeError.is(error) ? error : agentFailed(order.agent, error);
  } finally {
    await Promise.allSettled(opened.map(async (resource) => resource.close?.()));
  }
}

class EpisodeMetrics {
  /** Maximum number of metrics, and length of their names: agents choose the names. */
  private static readonly MAX_METRICS = 200;
  private static readonly MAX_NAME_CHARS = 100;
  private readonly byName = new Map<string, number>();

  readonly count = (name: string, value = 1): void => {
    this.measure(name, (this.byName.get(name) ?? 0) + value);
  };

  readonly measure = (name: string, value: number): void => {
    if (!Number.isFinite(value) || name.length > EpisodeMetrics.MAX_NAME_CHARS) return;
    if (!this.byName.has(name) && this.byName.size >= EpisodeMetrics.MAX_METRICS) return;
    this.byName.set(name, value);
  };

  values(): Record<string, number> {
    return Object.fromEntries(this.byName);
  }
}

type OpenedParts = {
  readonly settings: unknown;
  readonly environment: Environment | null;
  readonly tools: readonly AnyTool[];
  readonly toolInstructions: readonly string[];
  readonly metrics: EpisodeMetrics;
};

function episodeOf(order: EpisodeOrder, parts: EpisodeParts, opened: OpenedParts): Episode {
  const { limits, seed, instruction, systemPrompt, metadata, hints, endpoint } = order;
  const { box, services, signal, model } = parts;
  const { settings, environment, tools, toolInstructions, metrics } = opened;
  let turns = 0;
  let usedTokens = 0;
  const conversation = mainConversation(model, signal, ({ usage }, thread) => {
    if (thread !== conversation.thread) return;
    turns++;
    usedTokens = usage.prompt_tokens + usage.completion_tokens;
    metrics.measure('turns', turns);
  });
  return {
    ...{
      seed,
      instruction,
      systemPrompt,
      metadata,
      settings,
      hints,
      box,
      environment,
      tools,
      toolInstructions,
      conversation,
      endpoint,
      services,
      limits,
      signal,
    },
    left: () => ({
      turns: limits.turns === null ? null : Math.max(0, limits.turns - turns),
      contextTokens: limits.contextTokens === null ? null : Math.max(0, limits.contextTokens - usedTokens),
    }),
    count: metrics.count,
    measure: metrics.measure,
  };
}

async function createEnvironment(
  { environment: spec }: EpisodeOrder,
  parts: EpisodeParts,
): Promise<Environment | null> {
  if (spec === null) return null;
  const definition = findEnvironment(spec.type, [...parts.catalog.environments.values()]);
  const { signal, services } = parts;
  const environment = definition.create(parseEnvironmentConfig(definition, spec.config), { signal, services });
  return guarded(spec.type, environment);
}

/** Returns the environment with errors that name it, also for images that no engine can read. */
function guarded(name: string, environment: Environment): Environment {
  const named = async <T>(work: () => Promise<T>): Promise<T> => {
    try {
      return await work();
    } catch (error) {
      if (FloeError.is(error)) throw error;
      throw new FloeError('plugin_failed', `environment ${name}: ${messageOf(error)}`, { plugin: name }, error);
    }
  };
  const checked = <T extends Observation | null>(observation: T): T => {
    const problem = (observation?.messages ?? [])
      .map(({ content }) => imageProblem(content))
      .find((one) => one !== null);
    if (problem !== undefined) throw new TypeError(`its observation: ${problem}`);
    return observation;
  };
  return {
    reset: (seed) => named(async () => checked(await environment.reset(seed))),
    step: (action) => named(async () => checked(await environment.step(action))),
    close: () => environment.close().catch(() => undefined),
  };
}

/** Checks what an agent returned, which may be anything. */
function checkedResult(agent: string, result: EpisodeResult): EpisodeResult {
  const { status, score, seatScores = {}, replyRewards = [], stepScores = [], reason, answer } = result;
  const metrics = Object.fromEntries([
    ...replyRewards.map(({ completionId, reward }) => [completionId, reward] as const),
    ...stepScores.map((reward, index) => [`step ${index}`, reward] as const),
  ]);
  // The schema of the report checks the numbers: none may be NaN or infinite.
  const report = { status, score, seat_scores: seatScores, reason: reason ?? '', metrics };
  const checked = parsedReport(agent, report);
  return {
    status: checked.status,
    score: checked.score,
    seatScores: checked.seat_scores,
    replyRewards: replyRewards.map(({ completionId, reward, stateHash, seat }) => ({
      completionId,
      reward,
      ...(stateHash === undefined ? {} : { stateHash: String(stateHash) }),
      ...(seat === undefined ? {} : { seat: String(seat) }),
    })),
    ...(stepScores.length === 0 ? {} : { stepScores: [...stepScores] }),
    reason: checked.reason.slice(0, 1_000),
    ...(answer === undefined ? {} : { answer: String(answer) }),
  };
}

function parsedReport(agent: string, report: unknown): EpisodeReport {
  try {
    return parseAs(episodeReportSchema, report, 'its result');
  } catch (error) {
    throw agentFailed(agent, error);
  }
}

function agentFailed(agent: string, thrown: unknown): FloeError {
  return new FloeError('plugin_failed', `agent ${agent}: ${messageOf(thrown)}`, { plugin: agent }, thrown);
}
