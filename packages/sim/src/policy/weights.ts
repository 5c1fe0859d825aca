import { FloeError } from '@floe-rl/core';
import type { VersionSpan } from '@floe-rl/core/schema';
import { hashText } from '../random.ts';
import type { Scenario, Segment } from './scenario.ts';

/** Logits of every random choice in the scenarios, one number per option, keyed by scenario name and choice id. */
export type LogitTable = Readonly<Record<string, Readonly<Record<string, readonly number[]>>>>;

/** One immutable set of weights of the simulated policy. */
export type Weights = {
  readonly version: string;
  readonly logits: LogitTable;
  /**
   * Varies the logits of noise tokens (randomly drawn thinking tokens), so that each policy version assigns different probabilities to
   * them.
   */
  readonly noiseSalt: number;
};

/** Holds all weights that the server has ever used, and the weights currently in effect. */
export class WeightStore {
  private readonly versions = new Map<string, Weights>();
  /** For each version that took effect without an announcement, the version that the server reports instead. */
  private readonly reportedAs = new Map<string, string>();
  private active: Weights;

  /** Creates the first version with the logits stated in the scenarios. */
  constructor(scenarios: readonly Scenario[], version: string) {
    this.active = { version, logits: statedLogits(scenarios), noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
  }

  /** The weights currently in effect. */
  get current(): Weights {
    return this.active;
  }

  /** The version that the server reports. It differs from the version of {@link current} only after {@link swapUnannounced}. */
  get reportedVersion(): string {
    return this.reportedAs.get(this.active.version) ?? this.active.version;
  }

  /** Replaces each version in `spans` by the name under which the server reports it, and merges neighbours with the same name. */
  reportedSpans(spans: readonly VersionSpan[]): VersionSpan[] {
    const reported: VersionSpan[] = [];
    for (const { version, start, end } of spans) {
      const name = version === null ? null : (this.reportedAs.get(version) ?? version);
      const last = reported.at(-1);
      if (last !== undefined && last.version === name) last.end = end;
      else reported.push({ version: name, start, end });
    }
    return reported;
  }

  /** Returns the weights of a version. Throws `not_found` for a version that was never in effect. */
  get(version: string): Weights {
    const weights = this.versions.get(version);
    if (weights === undefined) throw new FloeError('not_found', `weights version ${version} was never in effect`);
    return weights;
  }

  /**
   * Puts a version of the weights in effect. A new version starts with the logits of the version that the engine reports now, and
   * `overrides` changes some of them. When `overrides` is left out and the version was in effect before, its earlier logits are restored.
   * Throws `conflict` when the version was in effect with other logits, because a version names one set of weights. Throws
   * `schema_violation` when an override names an unknown choice or has the wrong number of logits.
   */
  update(version: string, overrides?: LogitTable): Weights {
    const known = this.versions.get(version);
    if (known !== undefined && overrides === undefined) {
      this.active = known;
      return known;
    }
    const logits = overridden(this.get(this.reportedVersion).logits, overrides ?? {});
    if (known !== undefined && JSON.stringify(known.logits) !== JSON.stringify(logits)) {
      throw new FloeError('conflict', `weights version ${version} exists with other logits; use a new name`);
    }
    this.active = known ?? { version, logits, noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
    return this.active;
  }

  /**
   * Puts other weights in effect while the server continues to report the earlier version. The new logits are the current logits, changed
   * by `overrides`; when `overrides` is left out, every logit is negated. Throws `schema_violation` as {@link update} does.
   */
  swapUnannounced(overrides?: LogitTable): Weights {
    const { reportedVersion } = this;
    const version = `${reportedVersion} (unannounced ${this.reportedAs.size + 1})`;
    const logits =
      overrides === undefined
        ? mapLogits(this.active.logits, (logit) => -logit)
        : overridden(this.active.logits, overrides);
    this.active = { version, logits, noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
    this.reportedAs.set(version, reportedVersion);
    return this.active;
  }

  /** Gives the current weights another version name without changing any probability. Throws `conflict` when the name is in use. */
  relabel(version: string): Weights {
    if (version === this.active.version) return this.active;
    if (this.versions.has(version)) throw new FloeError('conflict', `weights version ${version} exists already`);
    this.active = { ...this.active, version };
    this.versions.set(version, this.active);
    return this.active;
  }
}

/**
 * Returns the logits stated in the scenarios. Throws `schema_violation` for a repeated scenario name, or a choice id with two sets of
 * logits.
 */
function statedLogits(scenarios: readonly Scenario[]): LogitTable {
  const table: Record<string, Record<string, readonly number[]>> = {};
  for (const scenario of scenarios) {
    if (table[scenario.name] !== undefined) {
      throw new FloeError('schema_violation', `scenario ${scenario.name}: the name is used twice`);
    }
    const choices: Record<string, readonly number[]> = {};
    for (const rule of scenario.rules) collectLogits(rule.reply, scenario.name, choices);
    table[scenario.name] = choices;
  }
  return table;
}

function collectLogits(segments: readonly Segment[], scenario: string, into: Record<string, readonly number[]>): void {
  for (const segment of segments) {
    if (segment.choice === undefined) continue;
    const { id, options } = segment.choice;
    const logits = options.map((option) => option.logit);
    const known = into[id];
    if (known !== undefined && JSON.stringify(known) !== JSON.stringify(logits)) {
      throw new FloeError(
        'schema_violation',
        `scenario ${scenario}: choice ${id} appears twice with different logits; use one set of logits or two ids`,
      );
    }
    into[id] = logits;
    for (const option of options) collectLogits(option.reply, scenario, into);
  }
}

function mapLogits(table: LogitTable, change: (logit: number) => number): LogitTable {
  const choices = (byChoice: LogitTable[string]): LogitTable[string] =>
    Object.fromEntries(Object.entries(byChoice).map(([choice, logits]) => [choice, logits.map(change)]));
  return Object.fromEntries(Object.entries(table).map(([scenario, byChoice]) => [scenario, choices(byChoice)]));
}

function overridden(base: LogitTable, overrides: LogitTable): LogitTable {
  const table: Record<string, Record<string, readonly number[]>> = {};
  for (const [scenario, choices] of Object.entries(base)) table[scenario] = { ...choices };
  for (const [scenario, choices] of Object.entries(overrides)) {
    for (const [choice, logits] of Object.entries(choices)) {
      const known = table[scenario]?.[choice];
      const path = `logits.${scenario}.${choice}`;
      if (known === undefined) throw new FloeError('schema_violation', `${path}: no scenario has this choice`);
      if (logits.length !== known.length) {
        throw new FloeError(
          'schema_violation',
          `${path}: has ${logits.length} logits, the choice has ${known.length} options`,
        );
      }
      table[scenario] = { ...table[scenario], [choice]: [...logits] };
    }
  }
  return table;
}

/** Returns log(exp(a) + exp(b) + …) without overflow; -Infinity for an empty list. */
export function logSumExp(values: readonly number[]): number {
  let max = Number.NEGATIVE_INFINITY;
  for (const value of values) if (value > max) max = value;
  if (max === Number.NEGATIVE_INFINITY) return max;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - max);
  return max + Math.log(sum);
}
