import { randomUUID } from 'node:crypto';
import { open, rename, rm } from 'node:fs/promises';
import { systemError } from '@floe-rl/core';
import { readSessions, rowText } from '@floe-rl/data';
import type { Command } from 'commander';
import { interruptible } from './lifetime.ts';
import { printJson, printNote } from './print.ts';

type Options = { output: string; json?: boolean };

export function registerImport(program: Command): void {
  program
    .command('import <path>')
    .description('read an exported set of sessions, or a file of results, and write it as one file of results')
    .option('-o, --output <file>', 'file of JSON lines to write, or - for standard output', '-')
    .option('--json', 'print the counts as JSON')
    .action(async (path: string, options: Options) => {
      const counts = await interruptible((signal) => importSet(path, options.output, signal));
      if (counts === null) return printNote('Interrupted: nothing was written.');
      if (options.json === true && options.output !== '-') printJson(counts);
      else printNote(`Read ${counts.sessions} sessions with ${counts.traces} traces; all are complete.`);
    });
}

type Counts = { readonly sessions: number; readonly traces: number };

/** Writes all sessions or none: a file appears under its name when it is complete. */
async function importSet(path: string, output: string, signal: AbortSignal): Promise<Counts> {
  if (output === '-') return copyRows(path, writeOut, signal);
  const unfinished = `${output}.${randomUUID()}.tmp`;
  try {
    const file = await open(unfinished, 'wx');
    try {
      const counts = await copyRows(path, async (line) => void (await file.appendFile(line)), signal);
      await file.sync();
      await rename(unfinished, output);
      return counts;
    } finally {
      await file.close();
    }
  } catch (thrown) {
    await rm(unfinished, { force: true });
    throw systemError(thrown, { path: output, verb: 'write to' }) ?? thrown;
  }
}

async function copyRows(path: string, write: (line: string) => Promise<void>, signal: AbortSignal): Promise<Counts> {
  let sessions = 0;
  let traces = 0;
  for await (const row of readSessions(path)) {
    signal.throwIfAborted();
    await write(`${rowText(row)}\n`);
    sessions++;
    traces += row.trajectory?.traces.length ?? 0;
  }
  return { sessions, traces };
}

function writeOut(text: string): Promise<void> {
  return new Promise((resolve, reject) => {
    process.stdout.write(text, (error) => (error ? reject(error) : resolve()));
  });
}
