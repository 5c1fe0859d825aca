import { type FileHandle, open, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { systemError } from '@floe-rl/core';
import { syncFolder } from './journal.ts';

/** Number of characters that are collected before they are written to a file. */
const BUFFER_CHARS = 1 << 20;

type OutputFile = { readonly handle: FileHandle; readonly path: string; buffer: string; records: number };

/**
 * Writes the files of one output together. The files get their names when all of them are complete and on the disk. Files that only an earlier
 * output has are removed, because its rows may have been in other splits.
 */
export class OutputFiles {
  private readonly dir: string;
  private readonly isOutput: (name: string) => boolean;
  private readonly files = new Map<string, OutputFile>();

  /** `isOutput` recognizes the names of files of earlier outputs. */
  constructor(dir: string, isOutput: (name: string) => boolean) {
    this.dir = dir;
    this.isOutput = isOutput;
  }

  /** Creates an output file with the given name, which remains empty when no line is written to it. */
  async create(name: string): Promise<void> {
    await this.onDisk(name, async () => {
      const path = join(this.dir, `.${name}.unfinished`);
      this.files.set(name, { handle: await open(path, 'w'), path, buffer: '', records: 0 });
    });
  }

  async writeLine(name: string, value: unknown): Promise<void> {
    const file = this.file(name);
    file.buffer += `${JSON.stringify(value)}\n`;
    file.records++;
    if (file.buffer.length > BUFFER_CHARS) await this.flush(name, file);
  }

  /** Returns the number of lines of each file. */
  records(): Record<string, number> {
    return Object.fromEntries([...this.files].map(([name, { records }]) => [name, records]));
  }

  /** Makes all files durable and gives them their names. The output cannot be changed afterwards. */
  async commit(): Promise<void> {
    for (const [name, file] of this.files) {
      await this.flush(name, file);
      await this.onDisk(name, async () => {
        await file.handle.sync();
        await file.handle.close();
      });
    }
    for (const [name, { path }] of this.files) {
      await this.onDisk(name, () => rename(path, join(this.dir, name)));
    }
    for (const name of await readdir(this.dir)) {
      if (this.isOutput(name) && !this.files.has(name)) await rm(join(this.dir, name));
    }
    await syncFolder(this.dir);
    this.files.clear();
  }

  /** Removes all files that have not been committed. */
  async discard(): Promise<void> {
    for (const { handle, path } of this.files.values()) {
      await handle.close().catch(() => {});
      await rm(path, { force: true });
    }
    this.files.clear();
  }

  private async flush(name: string, file: OutputFile): Promise<void> {
    const { buffer } = file;
    file.buffer = '';
    await this.onDisk(name, () => file.handle.appendFile(buffer));
  }

  private file(name: string): OutputFile {
    const file = this.files.get(name);
    if (file === undefined) throw new Error(`the output has no file ${name}`);
    return file;
  }

  private async onDisk(name: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (thrown) {
      const remedy = 'repair this and run the same command to write the files; the samples in the journal are kept';
      throw systemError(thrown, { path: join(this.dir, name), verb: 'write to', remedy }) ?? thrown;
    }
  }
}
