import { expect } from 'vitest';
import type { ProxySessionSpec } from '../../../src/proxy/session/session.ts';
import type { Audit, LinkKind, TaskEngine, Trajectory } from '../../../src/schema/index.ts';
import type { SimOptions } from '../../../src/sim/index.ts';
import type { Mode } from '../modes.ts';
import { assistant, type Golden, type GoldenSession, type Judged, results, user } from '../session.ts';
import type { Ask, Said, Speaker, Turn } from '../speakers.ts';

export type SceneOptions = { readonly retention?: TaskEngine['thinking_retention'] } & Partial<ProxySessionSpec>;

/** Where a case plays: an engine mode, and a client of one dialect that streams or does not. */
export type Scene = {
  readonly golden: Golden;
  readonly mode: Mode;
  readonly speaker: Speaker;
  readonly stream: boolean;
  open(options?: SceneOptions): Promise<GoldenSession>;
};

export type GoldenCase = {
  /** As the specification numbers them. */
  readonly letter: string;
  readonly title: string;
  /** What the simulated engine needs beside the mode's own settings. Cases with the same settings share an engine. */
  readonly sim?: SimOptions;
  /** Clients that can play it; default: all. */
  readonly plays?: (speaker: Speaker, stream: boolean) => boolean;
  run(scene: Scene): Promise<void>;
};

export const SYSTEM = 'You are careful.';
export const START = user('Read both files.');

export function ask(turns: readonly Turn[], over: Partial<Omit<Ask, 'stream'>> = {}): Omit<Ask, 'stream'> {
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
 * Whether turns with tool calls come back as they were sampled. In chat mode SGLang writes their arguments anew, and clients that keep
 * them as text send that back.
 */
export function comesBack({ mode, speaker }: Pick<Scene, 'mode' | 'speaker'>): boolean {
  return mode.tokens || mode.kind !== 'sglang' || !speaker.dialect.startsWith('openai');
}

/** The chains of the traces; where turns do not come back, all that can be said is that nothing is pretended. */
export function expectChains(scene: Pick<Scene, 'mode' | 'speaker'>, judged: Judged, chains: LinkKind[][]): void {
  const { trajectory, audit, report } = judged;
  if (comesBack(scene)) {
    expect(linksOf(trajectory)).toEqual(chains);
  } else {
    expect(audit.drift.retokenized).toBeUndefined();
    expect(audit.links.rerendered + audit.links.fork).toBeGreaterThan(0);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
  }
}

/** The first two turns of the main agent, echoed as `echo` would have them. */
export async function begin(session: GoldenSession, echo: (said: Said) => Said = (said) => said): Promise<Turn[]> {
  const first = await session.say(ask([START]));
  expect(first.text).toContain('I look at both.');
  expect(first.reasoning).not.toBe('');
  expect(first.calls).toHaveLength(2);
  const history = [START, assistant(echo(first)), results(first)];
  const second = await session.say(ask(history));
  expect(second.calls).toHaveLength(1);
  return [...history, assistant(echo(second)), results(second)];
}
