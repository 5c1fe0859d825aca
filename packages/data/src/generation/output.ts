import { valueAt } from '@floe-rl/core';
import { readAllRows } from '@floe-rl/core/rows';
import { readResult } from './journal.ts';
import { OutputFiles } from './output-files.ts';
import { preferenceRecords, type RowFields, type RowSample, sftRecords, verifierRecord } from './records.ts';
import { rowDigest } from './run-file.ts';
import type { JournaledSample, SampleIndex } from './samples.ts';
import { assignSplits, type Split, type SplitRow } from './splits.ts';

export const OUTPUT_FORMATS = ['sft', 'preference', 'verifier'] as const;
export type OutputFormat = (typeof OUTPUT_FORMATS)[number];

const ACCEPTANCE_FILE = 'acceptance.json';
/** Matches the names of all files that an output may have. Files that a killed process did not complete are included. */
const OUTPUT_NAME = /^\.?((sft|preference|verifier)(-[\w-]+)?\.jsonl|acceptance\.json)(\.unfinished)?$/;

/** Maximum number of rows with a problem that the file lists. Further rows are only counted. */
const MAX_LISTED_ROWS = 1000;

/** Stratum of rows that lack the field `stratify`. */
const NO_STRATUM = '(none)';

export type OutputOptions = {
  readonly dir: string;
  readonly run: string;
  readonly data: string;
  readonly formats: readonly OutputFormat[];
  /** Parts of the output; empty for a single part without a name. */
  readonly splits: readonly Split[];
  /** Path of the field of rows whose values are counted and divided separately; `null` for none. */
  readonly stratify: readonly string[] | null;
  /** Names of fields of the row that each record repeats. */
  readonly rowFields: readonly string[];
  readonly seed: number;
  /** Maximum number of accepted samples of a row that become SFT records; `null` for all. */
  readonly keep: number | null;
  /** Whether the samples with the highest rewards are kept, instead of the first ones. */
  readonly best: boolean;
  /** Texts of the conditions for acceptance. */
  readonly conditions: readonly string[];
  /** Rows that the template could not make a task from: the reason, by the number of the row. */
  readonly invalid: ReadonlyMap<number, string>;
};

/** Counts of the rows with one value of the stratification field. `rate` is the share of accepted samples. */
export type AcceptanceGroup = {
  readonly value: string;
  readonly rows: number;
  readonly rows_accepted: number;
  readonly samples: number;
  readonly accepted: number;
  readonly rate: number | null;
};

/** The content of acceptance.json. */
export type Acceptance = {
  readonly run: string;
  readonly accept: readonly string[];
  readonly stratify: string | null;
  readonly total: AcceptanceGroup;
  /** One entry for each value of the stratification field, in alphabetical order. */
  readonly groups: readonly AcceptanceGroup[];
  readonly outcomes: Readonly<Record<string, number>>;
  /** Number of samples that were generated a second time because the first generation was empty. */
  readonly retried: number;
  readonly invalid_rows: number;
  /** The first rows without a task, with the reason. */
  readonly problems: readonly { readonly row: number; readonly message: string }[];
  /** Number of records of each file. */
  readonly files: Readonly<Record<string, number>>;
};

/**
 * Writes the output files of a run from its data set and journals. These are the records of each format and split, in the order of the rows,
 * and the counts of acceptance.json. The files depend on the input alone, so writing them twice gives equal files. Throws `setup_failed` when
 * they cannot be written, and the earlier files then remain.
 */
export async function writeOutput(options: OutputOptions, index: SampleIndex): Promise<Acceptance> {
  const { splits, formats, dir } = options;
  const counts = new AcceptanceCounts(options, index);
  const candidates: SplitRow[] = [];
  let row = 0;
  for await (const read of readAllRows(options.data)) {
    const samples = index.ofRow(row);
    const stratum = 'error' in read ? NO_STRATUM : stratumOf(read.fields, options.stratify);
    counts.add(row, stratum, samples);
    if (samples.length > 0) {
      // Rows with an accepted sample are divided separately, so that each format has the shares of the splits.
      const isAccepted = samples.some(({ accepted }) => accepted);
      candidates.push({ row, digest: rowDigest(read), stratum: JSON.stringify([isAccepted ? 0 : 1, stratum]) });
    }
    row++;
  }
  const splitOf = splits.length === 0 ? null : assignSplits(candidates, splits, options.seed);
  const files = new OutputFiles(dir, (name) => OUTPUT_NAME.test(name));
  try {
    const parts = splits.length === 0 ? [null] : splits.map(({ name }) => name);
    for (const part of parts) for (const format of formats) await files.create(fileName(format, part));
    let number = 0;
    for await (const read of readAllRows(options.data)) {
      const samples = index.ofRow(number);
      if (samples.length > 0 && !('error' in read)) {
        const fields = { row: number, ...selected(read.fields, options.rowFields) };
        await writeRow(options, files, splitOf?.get(number) ?? null, fields, samples);
      }
      number++;
    }
    const acceptance = counts.result(files.records());
    await files.create(ACCEPTANCE_FILE);
    await files.writeLine(ACCEPTANCE_FILE, acceptance);
    await files.commit();
    return acceptance;
  } finally {
    await files.discard();
  }
}

async function writeRow(
  { formats, keep, best }: OutputOptions,
  files: OutputFiles,
  split: string | null,
  fields: RowFields,
  samples: readonly JournaledSample[],
): Promise<void> {
  const loaded = new Map<JournaledSample, RowSample>();
  for (const entry of samples) {
    if (!entry.accepted && entry.reward === null) continue;
    loaded.set(entry, { fields, sample: entry.sample, result: await readResult(entry.location) });
  }
  const of = (entries: readonly JournaledSample[]): RowSample[] =>
    entries.flatMap((entry) => {
      const sample = loaded.get(entry);
      return sample === undefined ? [] : [sample];
    });
  const accepted = samples.filter((entry) => entry.accepted);
  const ranked = best
    ? [...accepted].sort((a, b) => (b.reward ?? 0) - (a.reward ?? 0) || a.sample - b.sample)
    : accepted;
  for (const format of formats) {
    const name = fileName(format, split);
    if (format === 'sft') {
      for (const sample of of(ranked.slice(0, keep ?? ranked.length))) {
        for (const record of sftRecords(sample)) await files.writeLine(name, record);
      }
    } else if (format === 'preference') {
      for (const record of preferenceRecords(of(accepted), of(samples))) await files.writeLine(name, record);
    } else {
      for (const [entry, sample] of loaded) {
        const record = verifierRecord(sample, entry.accepted);
        if (record !== null) await files.writeLine(name, record);
      }
    }
  }
}

function fileName(format: OutputFormat, split: string | null): string {
  return split === null ? `${format}.jsonl` : `${format}-${split}.jsonl`;
}

function selected(fields: Readonly<Record<string, unknown>>, names: readonly string[]): Record<string, unknown> {
  return names.length === 0
    ? {}
    : { row_fields: Object.fromEntries(names.map((name) => [name, fields[name] ?? null])) };
}

function stratumOf(fields: Readonly<Record<string, unknown>>, path: readonly string[] | null): string {
  if (path === null) return '';
  const value = valueAt(fields, path);
  if (value === undefined || value === null) return NO_STRATUM;
  return typeof value === 'string' ? value : JSON.stringify(value);
}

type Counts = { rows: number; rowsAccepted: number; samples: number; accepted: number };

/** Collects the content of acceptance.json. */
class AcceptanceCounts {
  private readonly options: OutputOptions;
  private readonly index: SampleIndex;
  private readonly groups = new Map<string, Counts>();
  private readonly total: Counts = { rows: 0, rowsAccepted: 0, samples: 0, accepted: 0 };
  private readonly outcomes: Record<string, number> = {};
  private readonly problems: { row: number; message: string }[] = [];
  private retried = 0;

  constructor(options: OutputOptions, index: SampleIndex) {
    this.options = options;
    this.index = index;
  }

  add(row: number, stratum: string, samples: readonly JournaledSample[]): void {
    const problem = this.options.invalid.get(row) ?? this.index.refusalOf(row);
    if (problem !== null) this.problems.push({ row, message: problem });
    if (samples.length === 0) return;
    const group = this.groups.get(stratum) ?? { rows: 0, rowsAccepted: 0, samples: 0, accepted: 0 };
    this.groups.set(stratum, group);
    const accepted = samples.filter((entry) => entry.accepted).length;
    for (const counts of [group, this.total]) {
      counts.rows++;
      counts.rowsAccepted += accepted > 0 ? 1 : 0;
      counts.samples += samples.length;
      counts.accepted += accepted;
    }
    for (const { outcome, retry } of samples) {
      this.outcomes[outcome] = (this.outcomes[outcome] ?? 0) + 1;
      if (retry > 0) this.retried++;
    }
  }

  result(files: Readonly<Record<string, number>>): Acceptance {
    const { run, conditions, stratify } = this.options;
    return {
      run,
      accept: conditions,
      stratify: stratify === null ? null : ['row', ...stratify].join('.'),
      total: groupOf('', this.total),
      groups: stratify === null ? [] : [...this.groups].sort(byValue).map(([value, counts]) => groupOf(value, counts)),
      outcomes: Object.fromEntries(Object.entries(this.outcomes).sort(byValue)),
      retried: this.retried,
      invalid_rows: this.problems.length,
      problems: this.problems.slice(0, MAX_LISTED_ROWS),
      files,
    };
  }
}

function groupOf(value: string, { rows, rowsAccepted, samples, accepted }: Counts): AcceptanceGroup {
  const rate = samples === 0 ? null : Number((accepted / samples).toFixed(4));
  return { value, rows, rows_accepted: rowsAccepted, samples, accepted, rate };
}

function byValue([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : 1;
}
