import { randomBytes } from 'node:crypto';
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, removeTree, systemClock, undoAll } from '@floe-rl/core';
import { joinedWithin, MAX_SEARCH_CHARS, searchedText } from '@floe-rl/core/protocol';
import { type Recording, readRecordings } from '@floe-rl/data';
import { createLogger } from '@floe-rl/observe';
import {
  type BlobStore,
  createRolloutServer,
  type RecordedSession,
  SqliteStore,
  type Store,
  storeRecorded,
} from '@floe-rl/server';
import { bundledTokenizerPath, SIM_MODEL } from '@floe-rl/sim';
import type { Command } from 'commander';
import { loadTokenTexts } from '../up/token-texts.ts';
import { dashboardLink, openBrowser } from './dashboard-link.ts';
import { waitForSignal } from './lifetime.ts';
import { paint, printJson, printLine, printNote } from './print.ts';
import { RecordedBlobs } from './recorded-blobs.ts';

type Options = { port: string; open?: boolean; json?: boolean };

/** Number of sessions that are stored in one transaction. */
const BATCH = 200;
/** Maximum number of files without a session that are listed by name. */
const MAX_LISTED = 5;

export function registerView(program: Command): void {
  program
    .command('view <files...>')
    .description('show the sessions in files and folders on the dashboard, without a server')
    .option('--port <port>', 'port of the page on 127.0.0.1; 0: any free port', '0')
    .option('--open', 'open the page in the browser')
    .option('--json', 'print JSON')
    .action(view);
}

async function view(files: string[], options: Options): Promise<void> {
  const shown = await openView(files, Number(options.port));
  try {
    if (options.json) printJson({ url: shown.link, sessions: shown.sessions });
    else {
      printLine(`${shown.sessions} sessions  ${paint('bold', shown.link)}`);
      for (const note of shown.notes) printNote(note);
      printNote('Ctrl-C ends the page.');
    }
    if (options.open) openBrowser(shown.link);
    await waitForSignal();
  } finally {
    await shown.close();
  }
}

/** A page that shows the sessions of files. */
export type View = {
  /** Address of the page, with a token that may only read. */
  readonly link: string;
  readonly sessions: number;
  /** Descriptions of the sessions and data that were left out. */
  readonly notes: readonly string[];
  close(): Promise<void>;
};

/**
 * Reads the sessions of files into a store of this process, and serves the dashboard over it. Throws `bad_request` when the files have no
 * session, and as {@link readRecordings} does.
 */
export async function openView(files: readonly string[], port: number): Promise<View> {
  const closers: (() => Promise<unknown>)[] = [];
  try {
    const dir = await mkdtemp(join(tmpdir(), 'floe-view-'));
    closers.push(() => removeTree(dir));
    const blobs = await RecordedBlobs.create(join(dir, 'blobs'));
    closers.push(() => blobs.close());
    const store = SqliteStore.open(join(dir, 'floe.db'));
    closers.push(() => store.close());
    const { ids, notes } = await readInto(store, blobs, files);
    const [first] = ids;
    if (first === undefined) throw new FloeError('bad_request', `there is no session in ${files.join(', ')}`);
    const [admin, viewer] = [randomToken(), randomToken()];
    const server = await createRolloutServer(
      { port, token: admin, tokens: [{ token: viewer, role: 'viewer' }], retain_tasks_hours: null },
      {
        store,
        blobs,
        clock: systemClock,
        log: createLogger('floe', 'error'),
        tokenTexts: await loadTokenTexts({ [SIM_MODEL]: bundledTokenizerPath() }),
        validateTask: () => {},
      },
    );
    closers.push(() => server.close());
    const { url } = await server.listen();
    const place = ids.size === 1 ? `sessions/${first}` : 'sessions';
    return {
      link: dashboardLink(url, viewer, place),
      sessions: ids.size,
      notes,
      close: () => undoAll(closers),
    };
  } catch (error) {
    await undoAll(closers);
    throw error;
  }
}

function randomToken(): string {
  return randomBytes(24).toString('base64url');
}

type ReadSessions = { readonly ids: ReadonlySet<string>; readonly notes: readonly string[] };

async function readInto(store: Store, blobs: BlobStore, files: readonly string[]): Promise<ReadSessions> {
  const ids = new Set<string>();
  const samples = new Map<string, Set<number>>();
  const skipped: string[] = [];
  let repeated = 0;
  let batch: RecordedSession[] = [];
  const flush = async (): Promise<void> => {
    await storeRecorded(store, batch);
    batch = [];
  };
  for await (const recording of readRecordings(files, (file) => skipped.push(file))) {
    const { session_id: id, task_id: task } = recording.summary;
    if (ids.has(id)) {
      repeated++;
      continue;
    }
    ids.add(id);
    const taken = samples.get(task) ?? new Set();
    samples.set(task, taken);
    batch.push(await storedParts(recording, freeIndex(taken, recording.summary.sample_index), blobs));
    if (batch.length === BATCH) await flush();
  }
  await flush();
  const notes: string[] = [];
  if (repeated > 0) notes.push(`${repeated} sessions are in the files more than once; the first of each is shown.`);
  if (skipped.length > 0) {
    const more = skipped.length > MAX_LISTED ? ` and ${skipped.length - MAX_LISTED} more` : '';
    notes.push(`Without a session: ${skipped.slice(0, MAX_LISTED).join(', ')}${more}`);
  }
  return { ids, notes };
}

/** Takes the wanted index of a sample, or the next free one when another session of the task has it. */
function freeIndex(taken: Set<number>, wanted: number): number {
  let index = wanted;
  while (taken.has(index)) index++;
  taken.add(index);
  return index;
}

/** Returns the text of each message for searches, in order. */
function textsOf(records: Recording['records']): string[] {
  return records.flatMap(({ request, message }) => [
    ...request.messages.filter(({ role }) => role !== 'assistant').map(searchedText),
    searchedText(message),
  ]);
}

async function storedParts(recording: Recording, sampleIndex: number, blobs: BlobStore): Promise<RecordedSession> {
  const { summary, trajectory, records, source, format, lacks, harness, endedMs } = recording;
  const put = (part: unknown) => blobs.put(Buffer.from(JSON.stringify(part)));
  const origin = { file: source.where, format, lacks };
  return {
    summary: { ...summary, sample_index: sampleIndex, metadata: { ...summary.metadata, recording: origin } },
    blobs: {
      trajectory: trajectory === null ? null : await put(trajectory),
      completions: records.length === 0 ? null : await put(records),
      artifacts: null,
    },
    harness,
    text: joinedWithin(textsOf(records), MAX_SEARCH_CHARS),
    turns: summary.agent?.turns ?? records.length,
    sampledTokens:
      summary.audit?.tokens.sampled ?? records.reduce((sum, { usage }) => sum + usage.completion_tokens, 0),
    endedMs,
  };
}
