import { FloeError } from '../core/errors.ts';
import type { VersionSpan } from '../schema/index.ts';
import { hashText } from './random.ts';
import type { Scenario, Segment } from './scenario.ts';

/** Logits of every choice point: scenario name -> choice id -> one number per option. */
export type LogitTable = Readonly<Record<string, Readonly<Record<string, readonly number[]>>>>;

/** One set of weights of the simulated policy. Immutable. */
export type Weights = {
  readonly version: string;
  readonly logits: LogitTable;
  /** Shifts the logits of noise, so that every version assigns its own probabilities there too. */
  readonly noiseSalt: number;
};

/** All weights that the server ever had, and which are in effect. */
export class WeightStore {
  private readonly versions = new Map<string, Weights>();
  /** By the name of a version that was put in effect without a word: the name that the server goes on telling. */
  private readonly told = new Map<string, string>();
  private active: Weights;

  /** Takes the logits that the scenarios state as the first version. */
  constructor(scenarios: readonly Scenario[], version: string) {
    this.active = { version, logits: statedLogits(scenarios), noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
  }

  get current(): Weights {
    return this.active;
  }

  /** What the server says is in effect. Another name than that of {@link current} only after {@link swap}. */
  get announced(): string {
    return this.told.get(this.active.version) ?? this.active.version;
  }

  /** Spans as the server tells them. */
  announcedSpans(spans: readonly VersionSpan[]): VersionSpan[] {
    const told: VersionSpan[] = [];
    for (const { version, start, end } of spans) {
      const name = version === null ? null : (this.told.get(version) ?? version);
      const last = told.at(-1);
      if (last !== undefined && last.version === name) last.end = end;
      else told.push({ version: name, start, end });
    }
    return told;
  }

  /** Throws `not_found` for a version that was never in effect. */
  get(version: string): Weights {
    const weights = this.versions.get(version);
    if (weights === undefined) throw new FloeError('not_found', `weights version ${version} was never in effect`);
    return weights;
  }

  /**
   * Puts a version in effect: the current logits with `overrides`. A known name without overrides goes back to that
   * version. Throws `conflict` when a known name comes with other logits (a version means one set of weights), and
   * `schema_violation` when an override names no choice or has the wrong number of logits.
   */
  update(version: string, overrides?: LogitTable): Weights {
    const known = this.versions.get(version);
    if (known !== undefined && overrides === undefined) {
      this.active = known;
      return known;
    }
    const logits = overridden(this.get(this.announced).logits, overrides ?? {});
    if (known !== undefined && JSON.stringify(known.logits) !== JSON.stringify(logits)) {
      throw new FloeError('conflict', `weights version ${version} exists with other logits; use a new name`);
    }
    this.active = known ?? { version, logits, noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
    return this.active;
  }

  /**
   * Puts other weights in effect while the server goes on telling the version before: with `overrides`, or with every logit
   * negated. Throws `schema_violation` as {@link update}.
   */
  swap(overrides?: LogitTable): Weights {
    const { announced } = this;
    const version = `${announced} (unannounced ${this.told.size + 1})`;
    const logits =
      overrides === undefined
        ? mapLogits(this.active.logits, (logit) => -logit)
        : overridden(this.active.logits, overrides);
    this.active = { version, logits, noiseSalt: hashText(version) };
    this.versions.set(version, this.active);
    this.told.set(version, announced);
    return this.active;
  }

  /** Names the current weights anew without changing any probability. */
  relabel(version: string): Weights {
    if (version === this.active.version) return this.active;
    if (this.versions.has(version)) throw new FloeError('conflict', `weights version ${version} exists already`);
    this.active = { ...this.active, version };
    this.versions.set(version, this.active);
    return this.active;
  }
}

/** The logits written in the scenarios. Throws `schema_violation` when one choice id has different options in two places. */
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
      if (known === undefined) throw new FloeError('schema_violation', `${path}: there is no such choice`);
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

/** log(exp(a) + exp(b) + …) without overflow; -Infinity for an empty list. */
export function logSumExp(values: readonly number[]): number {
  let max = Number.NEGATIVE_INFINITY;
  for (const value of values) if (value > max) max = value;
  if (max === Number.NEGATIVE_INFINITY) return max;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - max);
  return max + Math.log(sum);
}
