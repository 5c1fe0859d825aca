import { FloeError, systemClock } from '@floe-rl/core';
import { type BuildSummary, buildIndex, Embeddings } from '@floe-rl/search';
import type { Command } from 'commander';
import { interruptible } from './lifetime.ts';
import { printJson, printLine, printNote } from './print.ts';

/** Interval in milliseconds between two notes about the progress. */
const PROGRESS_MS = 2_000;
/** Number of bad rows that are printed. */
const PRINTED_BAD_ROWS = 20;

type Options = {
  output: string;
  embeddings?: string;
  embeddingModel?: string;
  force?: boolean;
  skipBadRows?: boolean;
  json?: boolean;
};

export function registerIndex(program: Command): void {
  program
    .command('index <source>')
    .description('make an index for the tools search and open_page, of a folder of texts or a file of rows')
    .requiredOption('-o, --output <file>', 'the index')
    .option(
      '--embeddings <url>',
      'service in the form of OpenAI that makes vectors of texts; key: $FLOE_EMBEDDINGS_KEY',
    )
    .option('--embedding-model <name>', 'model of that service')
    .option('--force', 'replace an existing file')
    .option('--skip-bad-rows', 'leave out rows and files that are no documents, instead of making no index')
    .option('--json', 'print JSON')
    .addHelpText(
      'after',
      `
The source is a folder with .txt, .md, .rst and .html files, or a .jsonl or .json file of rows {"id", "title", "url", "text"}, of which title and
url may be missing.`,
    )
    .action(index);
}

async function index(source: string, options: Options): Promise<void> {
  const badRows = { count: 0 };
  const onProgress = progressPrinter();
  const summary = await interruptible((signal) =>
    buildIndex(
      {
        source,
        output: options.output,
        replaces: options.force === true,
        embeddings: embeddingsOf(options),
        onBadRow: (_, error) => {
          badRows.count++;
          if (badRows.count <= PRINTED_BAD_ROWS) printNote(`bad row ${error.message}`);
        },
        onProgress,
        mayFinish: () => refuseBadRows(badRows.count, options),
      },
      signal,
    ),
  );
  if (summary === null) return printNote('Interrupted; no index was made.');
  const { documents, passages, embedded } = summary;
  const result = { index: options.output, documents, passages, embedded, bad_rows: badRows.count };
  if (options.json === true) printJson(result);
  else
    printLine(
      `${options.output}: ${counted(summary)}${badRows.count > 0 ? `, ${badRows.count} bad rows left out` : ''}`,
    );
}

function refuseBadRows(count: number, { skipBadRows }: Options): void {
  if (count === 0 || skipBadRows === true) return;
  const message = `${count} rows are no documents; mend them, or leave them out with --skip-bad-rows`;
  throw new FloeError('schema_violation', message, { bad_rows: count });
}

function embeddingsOf({ embeddings: url, embeddingModel: model }: Options): Embeddings | null {
  if (url === undefined && model === undefined) return null;
  if (url === undefined || model === undefined) {
    throw new FloeError('bad_request', '--embeddings and --embedding-model need each other');
  }
  if (!/^https?:\/\//.test(url))
    throw new FloeError('bad_request', `--embeddings: ${url} is no URL with http or https`);
  return new Embeddings(url, model, process.env.FLOE_EMBEDDINGS_KEY ?? null);
}

function progressPrinter(): (summary: BuildSummary) => void {
  let lastMs = systemClock.monotonicMs();
  return (summary) => {
    const nowMs = systemClock.monotonicMs();
    if (nowMs - lastMs < PROGRESS_MS) return;
    lastMs = nowMs;
    printNote(counted(summary));
  };
}

function counted({ documents, passages, embedded }: BuildSummary): string {
  return `${documents} documents, ${passages} passages${embedded > 0 ? `, ${embedded} vectors` : ''}`;
}
