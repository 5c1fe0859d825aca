import type { ProxySessionSpec } from '@floe-rl/capture';
import type { Audit, LinkKind, TaskEngine, Trajectory } from '@floe-rl/core/schema';
import type { SimOptions } from '@floe-rl/sim';
import { expect } from 'vitest';
import type { ChatRequest, ConversationTurn, DialectClient, ParsedReply } from '../dialect-clients.ts';
import type { Mode } from '../modes.ts';
import { assistant, type Golden, type GoldenSession, type Judged, results, user } from '../session.ts';

export type SceneOptions = { readonly retention?: TaskEngine['thinking_retention'] } & Partial<ProxySessionSpec>;

/**
 * The environment in which a golden test case runs: an engine in one capture mode, and a client of one dialect, with or without streaming.
 */
export type Scene = {
  readonly golden: Golden;
  readonly mode: Mode;
  readonly client: DialectClient;
  readonly stream: boolean;
  open(options?: SceneOptions): Promise<GoldenSession>;
};

export type GoldenCase = {
  /** The letter of the case in the project's specification of token fidelity. */
  readonly letter: string;
  readonly title: string;
  /**
   * Settings of the simulated engine for this case. They are added to the settings of the mode in which the proxy captures model calls
   * (`Mode.sim`). Cases with the same settings share an engine.
   */
  readonly sim?: SimOptions;
  /** Whether the case can run with this client. Default: it runs with every client. */
  readonly plays?: (client: DialectClient, stream: boolean) => boolean;
  run(scene: Scene): Promise<void>;
};

const SYSTEM = 'You are careful.';
export const START = user('Read both files.');

export function ask(
  turns: readonly ConversationTurn[],
  over: Partial<Omit<ChatRequest, 'stream'>> = {},
): Omit<ChatRequest, 'stream'> {
  return { system: SYSTEM, turns, tools: ['bash'], ...over };
}

export function linksOf(trajectory: Trajectory): LinkKind[][] {
  return trajectory.traces.map((trace) => trace.metadata.links as LinkKind[]);
}

export function expectAllTrained(audit: Audit): void {
  expect(audit.tokens.sampled).toBeGreaterThan(0);
  expect(audit.tokens.trained).toBe(audit.tokens.sampled);
  expect(audit.completions.trained).toBe(audit.completions.recorded);
}

/**
 * Whether the client sends turns with tool calls back exactly as the engine sampled them. In chat mode SGLang reserializes the arguments of
 * calls, and a client that keeps arguments as text sends back the reserialized text.
 */
export function comesBack({ mode, client }: Pick<Scene, 'mode' | 'client'>): boolean {
  return mode.tokens || mode.kind !== 'sglang' || !client.dialect.startsWith('openai');
}

/**
 * Checks that the links of each trace equal `chains`. If the client does not send turns back as sampled, only checks that some links are
 * inexact, and that every sampled token is trained in the context of its sampling.
 */
export function expectChains(scene: Pick<Scene, 'mode' | 'client'>, judged: Judged, chains: LinkKind[][]): void {
  const { trajectory, audit, report } = judged;
  if (comesBack(scene)) {
    expect(linksOf(trajectory)).toEqual(chains);
  } else {
    expect(audit.drift.retokenized).toBeUndefined();
    expect(audit.links.rerendered + audit.links.fork).toBeGreaterThan(0);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
  }
}

/**
 * Runs the first two turns of the main agent, and returns the history after them. `echo` converts each parsed reply to the turn that the
 * agent puts into its history; by default the turn equals the reply.
 */
export async function begin(
  session: GoldenSession,
  echo: (parsed: ParsedReply) => ParsedReply = (parsed) => parsed,
): Promise<ConversationTurn[]> {
  const first = await session.say(ask([START]));
  expect(first.text).toContain('I look at both.');
  expect(first.reasoning).not.toBe('');
  expect(first.calls).toHaveLength(2);
  const history = [START, assistant(echo(first)), results(first)];
  const second = await session.say(ask(history));
  expect(second.calls).toHaveLength(1);
  return [...history, assistant(echo(second)), results(second)];
}
