import { FloeError, wellFormedJson } from '@floe-rl/core';
import { atifFiles } from '../atif/writer.ts';
import { type Condition, isAccepted } from '../generation/acceptance-conditions.ts';
import { AcceptanceTable } from './acceptance.ts';
import { datasetCard } from './card.ts';
import {
  type JudgedRow,
  preferenceRecords,
  type RecordMaker,
  sftRecords,
  shareGptRecords,
  verifierRecords,
} from './chat-records.ts';
import { ImageFiles } from './images.ts';
import { MANIFEST_FILE, type Manifest, SET_VERSION, type SetEncoding, type SetFormat } from './manifest.ts';
import { SetFolder } from './set-folder.ts';
import { rowText, type SetRow } from './set-row.ts';
import { LineShards, ParquetShards, SHARD_BYTES } from './shards.ts';
import { type SplitRule, splitRule } from './splits.ts';

export type SetOptions = {
  /** Folder of the set. It must not exist, or be empty. */
  readonly dir: string;
  readonly format: SetFormat;
  readonly encoding: SetEncoding;
  /** Shares or a field; see {@link splitRule}. */
  readonly split: string | null;
  /** Path of the field whose value decides the split of a row, when the set is divided by shares. */
  readonly splitKey: string;
  readonly conditions: readonly Condition[];
  /** Path of the field whose values group the counts of accepted sessions. */
  readonly by: string;
  /** Least difference of the rewards of a preference pair. */
  readonly minMargin: number;
  /** Size at which a file is complete, before compression. Default: {@link SHARD_BYTES}. */
  readonly shardBytes?: number;
  /** Returns the number of sessions that the source did not yield, by reason. It is called when the source has ended. */
  readonly skipped: () => Readonly<Record<string, number>>;
};

/**
 * Writes a set of sessions. Sessions of one task must follow each other in the source. Memory holds the sessions of one task at a time. The
 * folder appears under its name when everything is written. Throws `conflict` for a folder with files, `unsupported` for content that a format
 * cannot hold, and `setup_failed` for an error of the disk. Nothing of the set remains after an error.
 */
export async function writeSet(source: AsyncIterable<SetRow>, options: SetOptions): Promise<Manifest> {
  if (options.encoding === 'parquet' && options.format !== 'sessions') {
    throw new FloeError('unsupported', `Parquet holds sessions only; write the format ${options.format} as JSON lines`);
  }
  const rule = splitRule(options.split, options.splitKey);
  const folder = await SetFolder.create(options.dir);
  try {
    const writer = new SetWriter(folder, options, rule);
    for await (const group of groupsOf(source)) await writer.add(group);
    const manifest = await writer.finish();
    await folder.commit();
    return manifest;
  } finally {
    await folder.discard();
  }
}

/** Yields the rows of each task together. Throws `unsupported` when the rows of a task do not follow each other. */
async function* groupsOf(rows: AsyncIterable<SetRow>): AsyncGenerator<SetRow[]> {
  const done = new Set<string>();
  let group: SetRow[] = [];
  for await (const row of rows) {
    const [first] = group;
    if (first !== undefined && first.task_id !== row.task_id) {
      yield group;
      done.add(first.task_id);
      group = [];
      if (done.has(row.task_id)) {
        const advice = 'sort the file by task_id, for instance with jq -s -c "sort_by(.task_id)[]"';
        throw new FloeError(
          'unsupported',
          `the sessions of the task ${row.task_id} do not follow each other; ${advice}`,
        );
      }
    }
    group.push(row);
  }
  if (group.length > 0) yield group;
}

class SetWriter {
  private readonly folder: SetFolder;
  private readonly options: SetOptions;
  private readonly rule: SplitRule;
  private readonly images: ImageFiles;
  private readonly lines: LineShards;
  private readonly parquet: ParquetShards;
  private readonly acceptance: AcceptanceTable;
  private readonly splits: Record<string, number> = {};
  private sessions = 0;
  private rows = 0;
  private tokens = 0;

  constructor(folder: SetFolder, options: SetOptions, rule: SplitRule) {
    this.folder = folder;
    this.options = options;
    this.rule = rule;
    this.images = new ImageFiles(folder);
    this.lines = new LineShards(folder, options.shardBytes ?? SHARD_BYTES);
    this.parquet = new ParquetShards(folder, options.shardBytes ?? SHARD_BYTES);
    this.acceptance = new AcceptanceTable(
      options.by,
      options.conditions.map(({ text }) => text),
    );
  }

  /** Writes the sessions of one task. */
  async add(group: readonly SetRow[]): Promise<void> {
    const judged: JudgedRow[] = [];
    for (const row of group) {
      const accepted = isAccepted(row, this.options.conditions);
      this.acceptance.add(row, accepted);
      this.sessions++;
      for (const { prompt_ids, response_ids } of row.trajectory?.traces ?? []) {
        this.tokens += prompt_ids.length + response_ids.length;
      }
      judged.push({ row: await this.withImageFiles(row), accepted });
    }
    for (const [split, rows] of this.bySplit(judged)) await this.writeGroup(split, rows);
  }

  private async withImageFiles(row: SetRow): Promise<SetRow> {
    const { trajectory } = row;
    if (trajectory === null || Object.keys(trajectory.images).length === 0) return row;
    return { ...row, trajectory: { ...trajectory, images: await this.images.store(trajectory.images) } };
  }

  private bySplit(group: readonly JudgedRow[]): Map<string, JudgedRow[]> {
    const parts = new Map<string, JudgedRow[]>();
    for (const judged of group) {
      const split = this.rule(judged.row);
      const part = parts.get(split);
      if (part === undefined) parts.set(split, [judged]);
      else part.push(judged);
    }
    return parts;
  }

  private async writeGroup(split: string, group: readonly JudgedRow[]): Promise<void> {
    const { format, encoding } = this.options;
    if (format === 'sessions') {
      for (const { row } of group) {
        if (encoding === 'parquet') await this.parquet.write(split, row);
        else await this.lines.write(split, rowText(row));
        this.count(split);
      }
    } else if (format === 'atif') {
      for (const { row } of group) await this.writeAtif(split, row);
    } else {
      for (const record of this.recordMaker(format)(group)) {
        await this.lines.write(split, wellFormedJson(record));
        this.count(split);
      }
    }
  }

  private async writeAtif(split: string, row: SetRow): Promise<void> {
    for (const { name, trajectory } of atifFiles(row)) {
      const path = `data/${split}/${name}`;
      await this.folder.write(path, `${wellFormedJson(trajectory)}\n`, 1);
      await this.folder.close(path);
      this.count(split);
    }
  }

  private recordMaker(format: Exclude<SetFormat, 'sessions' | 'atif'>): RecordMaker {
    switch (format) {
      case 'sft':
        return sftRecords;
      case 'sharegpt':
        return shareGptRecords;
      case 'verifier':
        return verifierRecords;
      case 'preference':
        return (group) => preferenceRecords(group, this.options.minMargin);
    }
  }

  private count(split: string): void {
    this.rows++;
    this.splits[split] = (this.splits[split] ?? 0) + 1;
  }

  async finish(): Promise<Manifest> {
    await this.lines.finish();
    await this.parquet.finish();
    const manifest: Manifest = {
      floe_set: SET_VERSION,
      format: this.options.format,
      encoding: this.options.encoding,
      sessions: this.sessions,
      rows: this.rows,
      tokens: this.tokens,
      skipped: { ...this.options.skipped() },
      splits: { ...this.splits },
      files: this.folder.files(),
      acceptance: this.acceptance.result(),
    };
    await this.folder.write('README.md', datasetCard(manifest), 0);
    await this.folder.write(MANIFEST_FILE, `${JSON.stringify(manifest, null, 2)}\n`, 0);
    return manifest;
  }
}
