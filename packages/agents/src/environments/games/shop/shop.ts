import { canonicalJson } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';
import { callReply, checkCall } from '../../action.ts';
import { defineEnvironment, type Environment, type Observation, type StepResult } from '../../environment.ts';
import { hashOf, MAX_STEPS } from '../../game.ts';
import { ShopDatabase } from './database.ts';
import { makeTicket, type PlannedCall, POLICY, TICKET_KINDS, type Ticket } from './tickets.ts';
import { CLOSING_TOOL, SHOP_CHAT_TOOLS, SHOP_SCHEMAS, SHOP_TOOLS } from './tools.ts';

const configSchema = z.strictObject({
  max_steps: z.int().min(1).max(MAX_STEPS).default(20),
  invalid_action_reward: z.number().default(0),
  success_reward: z.number().default(1),
  /** Kinds of tickets. Each seed has one of them. */
  kinds: z
    .array(z.enum(TICKET_KINDS))
    .min(1)
    .default([...TICKET_KINDS]),
  /** Number of customers in the database. */
  customers: z.int().min(2).max(500).default(12),
});
type Config = z.infer<typeof configSchema>;

/** Maximum number of tool calls of one reply that are run. */
const MAX_CALLS = 16;

type Episode = {
  readonly ticket: Ticket;
  readonly database: ShopDatabase;
  steps: number;
  invalidCalls: number;
  end: 'terminated' | 'truncated' | null;
};

function promptOf({ world, email, text }: Ticket, maxSteps: number): string {
  return `You handle the tickets of an online shop by calling tools. Today is ${world.today}.

${POLICY}

The ticket is finished when you call ${CLOSING_TOOL}. You have at most ${maxSteps} replies.

Ticket from ${email}:
${text}`;
}

/** Calls a tool whose arguments have been checked. */
function runTool(database: ShopDatabase, name: string, args: object): string {
  return SHOP_TOOLS.get(name)?.run(args as never, database) ?? '';
}

class Shop implements Environment {
  private readonly config: Config;
  private episode: Episode | null = null;

  constructor(config: Config) {
    this.config = config;
  }

  async reset(seed: number): Promise<Observation> {
    await this.close();
    const ticket = makeTicket(this.config.kinds, this.config.customers, seed);
    const database = await ShopDatabase.open(ticket.world);
    this.episode = { ticket, database, steps: 0, invalidCalls: 0, end: null };
    const introduction = promptOf(ticket, this.config.max_steps);
    return { introduction, messages: [], tools: SHOP_CHAT_TOOLS, stateHash: hashOf(database.state()) };
  }

  async step(reply: AssistantMessage): Promise<StepResult> {
    const { episode } = this;
    if (episode === null) throw new Error('step was called before reset');
    if (episode.end !== null) return ended(episode, reply);
    const invalidBefore = episode.invalidCalls;
    const messages = this.answers(episode, reply);
    episode.steps++;
    const isClosed = hasResolution(episode.database);
    if (isClosed) episode.end = 'terminated';
    else if (episode.steps >= this.config.max_steps) episode.end = 'truncated';
    const hasFailed = episode.invalidCalls - invalidBefore >= Math.max(1, reply.tool_calls?.length ?? 0);
    const verdict = isClosed ? await verdictOf(episode) : { success: 0 };
    const reward = verdict.success * this.config.success_reward + (hasFailed ? this.config.invalid_action_reward : 0);
    return {
      messages,
      stateHash: hashOf(episode.database.state()),
      reward,
      terminated: isClosed,
      truncated: episode.end === 'truncated',
      metrics: { ...verdict, invalid_actions: episode.invalidCalls },
    };
  }

  async close(): Promise<void> {
    this.episode?.database.dispose();
    this.episode = null;
  }

  private answers(episode: Episode, reply: AssistantMessage): ChatMessage[] {
    const calls = reply.tool_calls ?? [];
    if (calls.length === 0) {
      episode.invalidCalls++;
      const names = [...SHOP_TOOLS.keys()].join(', ');
      return [{ role: 'user', content: `The reply calls no tool. Call one of the tools: ${names}.` }];
    }
    return calls.map((call, i) => ({ role: 'tool', tool_call_id: call.id, content: this.answer(episode, call, i) }));
  }

  private answer(episode: Episode, call: ToolCall, index: number): string {
    if (index >= MAX_CALLS) return `Not run: at most ${MAX_CALLS} calls of a reply are run.`;
    if (hasResolution(episode.database)) return 'Not run: the ticket is closed.';
    const checked = checkCall(call, SHOP_SCHEMAS);
    if (!('problem' in checked)) return runTool(episode.database, checked.name, readable(checked.args));
    episode.invalidCalls++;
    return checked.problem;
  }
}

/** Returns arguments whose texts are valid Unicode, which the database and the observations need. */
function readable(args: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const entries = Object.entries(args).map(([name, value]) => [
    name,
    typeof value === 'string' ? value.toWellFormed() : value,
  ]);
  return Object.fromEntries(entries) as Record<string, unknown>;
}

function hasResolution(database: ShopDatabase): boolean {
  return database.rows('select resolution from ticket where resolution is not null').length > 0;
}

/**
 * Compares the database with one in which only perfect play has changed the data. An order that was changed by another tool counts as
 * a forbidden change, even if it was changed back.
 */
async function verdictOf({ ticket, database }: Episode) {
  const expected = await ShopDatabase.open(ticket.world);
  try {
    for (const [tool, args] of ticket.solution) runTool(expected, tool, args);
    const allowed = new Set(expected.changes());
    const forbidden_changes = database.changes().filter((change) => !allowed.has(change)).length;
    const state_matches = canonicalJson(database.state()) === canonicalJson(expected.state()) ? 1 : 0;
    return { success: state_matches === 1 && forbidden_changes === 0 ? 1 : 0, state_matches, forbidden_changes };
  } finally {
    expected.dispose();
  }
}

function ended({ database, end }: Episode, reply: AssistantMessage): StepResult {
  const content = 'The episode has ended.';
  const calls = reply.tool_calls ?? [];
  const answers = calls.map((call): ChatMessage => ({ role: 'tool', tool_call_id: call.id, content }));
  return {
    messages: answers.length > 0 ? answers : [{ role: 'user', content }],
    stateHash: hashOf(database.state()),
    reward: 0,
    terminated: end === 'terminated',
    truncated: end === 'truncated',
  };
}

function replyFor([tool, args]: PlannedCall, index: number): AssistantMessage {
  return callReply(`call_${index}`, tool, args);
}

export const shop = defineEnvironment<Config>({
  name: 'shop',
  description: 'Handle a customer ticket of an online shop with tools over a database, by its policy.',
  config: configSchema,
  create: (config) => new Shop(config),
  perfectPlay(config, seed) {
    const { solution } = makeTicket(config.kinds, config.customers, seed);
    const fits = solution.length <= config.max_steps;
    return { replies: fits ? solution.map(replyFor) : [], score: fits ? config.success_reward : 0 };
  },
});
