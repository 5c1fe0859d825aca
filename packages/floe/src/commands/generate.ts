import { join } from 'node:path';
import { acquireLock, ensureWritableDir, FloeError, systemClock } from '@floe-rl/core';
import { metadataSchema } from '@floe-rl/core/schema';
import {
  type Acceptance,
  addLine,
  type CheckedRows,
  CONDITION_FIELDS,
  type Condition,
  checkRows,
  checkTemplate,
  DEFAULT_CONDITIONS,
  Journal,
  journalHeader,
  OUTPUT_FORMATS,
  type OutputFormat,
  openRun,
  ownsRow,
  parseCondition,
  parseShard,
  parseSplits,
  RowPlan,
  readShards,
  rowsOf,
  SampleIndex,
  type SamplePolicy,
  SamplingRun,
  type Shard,
  type Split,
  sampleTask,
  shardFile,
  shardName,
  type TaskTemplate,
  writeOutput,
} from '@floe-rl/data';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { interruptible } from './lifetime.ts';
import { countOption, listed, secondsOption } from './options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { readYamlFile, withSources } from './yaml-file.ts';

type Options = ConnectionOptions & {
  task: string;
  output: string;
  harness?: string;
  samples?: string;
  keep?: string;
  bestOf?: string;
  accept: string[];
  concurrency: string;
  limit?: string;
  shard?: string;
  merge?: string | true;
  partial?: boolean;
  formats: string;
  split?: string;
  stratify?: string;
  rowFields?: string;
  seed: string;
  serverWait: string;
};

const HELP = `
The directory of -o keeps a journal of all finished sessions. Run the same command again after an interruption: finished
sessions are not repeated. The output files are written from the journal at the end, so a later run can change --accept,
--formats, --split and --stratify, or raise --samples, --keep and --limit, without repeating sessions.

Examples:
  floe generate rows.jsonl --task task.yaml -o out
  floe generate rows.jsonl --task task.yaml -o out --samples 8 --keep 2 --split train=0.9,test=0.1 --stratify row.repo
  floe generate rows.jsonl --task task.yaml -o out --best-of 4 --formats sft,preference
  floe generate rows.jsonl --task task.yaml -o out --shard 1/4     # on four machines, each with its own number
  floe generate rows.jsonl --task task.yaml -o out --merge 4       # when all four have ended`;

export function registerGenerate(program: Command): void {
  withConnectionOptions(
    program
      .command('generate <data>')
      .description(
        'generate training data from a data set: sample a task for each row and keep what its evaluator accepts',
      )
      .requiredOption('--task <file>', 'YAML or JSON file with a task, with placeholders such as {{row.problem}}')
      .requiredOption('-o, --output <dir>', 'directory of the journal and the output files')
      .option('--harness <name>', 'harness, instead of that of the task')
      .option('-n, --samples <n>', 'maximum number of samples of each row (default: 1)')
      .option('--keep <k>', 'rejection sampling: stop sampling a row when it has k accepted samples')
      .option('--best-of <n>', 'sample each row n times, and keep the accepted sample with the highest reward')
      .option(
        '--accept <condition...>',
        `conditions that an accepted sample fulfils, all of them (default: ${DEFAULT_CONDITIONS.join(' ')}); on ` +
          listed(CONDITION_FIELDS),
        [],
      )
      .option('--concurrency <n>', 'maximum number of sessions that are submitted and not finished', '64')
      .option('--limit <n>', 'only the first n rows')
      .option('--shard <i/n>', 'only every n-th row, beginning with row i; the processes may share the directory')
      .option('--merge [n]', 'sample nothing, and write the output files from the journals of n shards (default: 1)')
      .option('--partial', 'with --merge: also when samples are missing')
      .option('--formats <list>', 'output files to write', OUTPUT_FORMATS.join(','))
      .option('--split <list>', 'divide the rows among files: train=0.9,test=0.1')
      .option('--stratify <field>', 'field such as row.repo: count acceptance, and divide rows, for each of its values')
      .option('--row-fields <list>', 'fields of the row that each record repeats, such as instance_id,repo')
      .option('--seed <n>', 'number that decides which rows are in which split', '0')
      .option('--server-wait <seconds>', 'how long to wait for a server that cannot be reached', '3600'),
  )
    .addHelpText('after', HELP)
    .action(generate);
}

/** The parsed options of a run. */
type Plan = {
  readonly data: string;
  readonly dir: string;
  readonly template: TaskTemplate;
  readonly templatePath: string;
  readonly policy: SamplePolicy;
  readonly best: boolean;
  readonly conditions: readonly Condition[];
  readonly shard: Shard;
  readonly limit: number;
  readonly formats: readonly OutputFormat[];
  readonly splits: readonly Split[];
  readonly stratify: readonly string[] | null;
  readonly rowFields: readonly string[];
  readonly seed: number;
};

async function generate(data: string, options: Options): Promise<void> {
  const plan = await planOf(data, options);
  const checked = await checkRows(data, plan.template);
  const { digests: rows, invalid } = checked;
  for (const message of [...invalid.values()].slice(0, MAX_PRINTED_ROWS)) printNote(paint('yellow', message));
  if (invalid.size > MAX_PRINTED_ROWS)
    printNote(`and ${invalid.size - MAX_PRINTED_ROWS} more rows; acceptance.json lists them`);
  if (invalid.size === rows.length) {
    throw new FloeError('schema_violation', `${data} has no row that fits ${plan.templatePath}`, { data });
  }
  const input = { data, shards: plan.shard.count, template: plan.template, rows };
  if (options.merge !== undefined) {
    const { run } = await openRun(plan.dir, input, null);
    await merge(plan, run, checked, options);
    return;
  }
  ensureWritableDir(plan.dir, 'choose another directory with -o');
  const unlock = await acquireLock(
    join(plan.dir, shardFile(plan.shard, 'generate', 'lock')),
    `the directory ${plan.dir}`,
  );
  try {
    const { run } = await openRun(plan.dir, input, systemClock);
    const isDone = await sample(plan, run, checked, options);
    if (!isDone) return;
    if (plan.shard.count === 1) await merge(plan, run, checked, options);
    else
      printNote(
        `Shard ${shardName(plan.shard)} is complete. When all are: the same command with --merge ${plan.shard.count}`,
      );
  } finally {
    await unlock();
  }
}

/** Number of rows with a problem that are printed. */
const MAX_PRINTED_ROWS = 20;

async function planOf(data: string, options: Options): Promise<Plan> {
  const template: Record<string, unknown> = await readYamlFile(options.task, metadataSchema);
  checkTemplate(template, options.task);
  if (options.harness !== undefined) template.agent = { ...(template.agent as object), harness: options.harness };
  if (options.bestOf !== undefined && (options.samples ?? options.keep) !== undefined) {
    throw new FloeError('bad_request', '--best-of sets the number of samples; leave out --samples and --keep');
  }
  const texts = options.accept.length === 0 ? DEFAULT_CONDITIONS : options.accept;
  const conditions = texts.map(parseCondition);
  if (template.evaluator == null && texts.some((text) => /^\s*(reward|components\.)/.test(text))) {
    throw new FloeError(
      'bad_request',
      `${options.task} has no evaluator, so no sample has a reward; add one, or accept by outcome: --accept outcome=completed`,
    );
  }
  const samples = countOption(
    options.bestOf === undefined ? '--samples' : '--best-of',
    options.bestOf ?? options.samples ?? '1',
  );
  const best = options.bestOf !== undefined;
  const keep = options.keep === undefined ? null : countOption('--keep', options.keep);
  if (options.merge !== undefined && options.shard !== undefined) {
    throw new FloeError('bad_request', '--merge is for all shards; leave out --shard');
  }
  if (options.partial === true && options.merge === undefined)
    throw new FloeError('bad_request', '--partial needs --merge');
  const shards = typeof options.merge === 'string' ? countOption('--merge', options.merge) : 1;
  return {
    data,
    dir: options.output,
    template,
    templatePath: options.task,
    policy: { samples, keep },
    best,
    conditions,
    shard: options.shard === undefined ? { index: 0, count: shards } : parseShard(options.shard),
    limit: options.limit === undefined ? Number.POSITIVE_INFINITY : countOption('--limit', options.limit),
    formats: listOption(options.formats).map(formatOf),
    splits: options.split === undefined ? [] : parseSplits(options.split),
    stratify: options.stratify === undefined ? null : rowPath(options.stratify),
    rowFields: listOption(options.rowFields ?? ''),
    seed: seedOption(options.seed),
  };
}

function seedOption(text: string): number {
  const seed = Number(text);
  if (text.trim() !== '' && Number.isInteger(seed)) return seed;
  throw new FloeError('bad_request', `--seed: ${text} is not an integer`);
}

function listOption(text: string): string[] {
  return text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
}

function formatOf(name: string): OutputFormat {
  const format = OUTPUT_FORMATS.find((known) => known === name);
  if (format !== undefined) return format;
  throw new FloeError('bad_request', `--formats: ${name} is not one of ${OUTPUT_FORMATS.join(', ')}`);
}

function rowPath(text: string): string[] {
  if (/^row(\.[\w-]+)+$/.test(text)) return text.split('.').slice(1);
  throw new FloeError('bad_request', `--stratify: ${text} is not a field of the row; write for instance row.repo`);
}

/** Least time in milliseconds between two lines of progress. */
const PROGRESS_INTERVAL_MS = 10_000;

/** Generates the samples of the plan's shard. Returns whether all are in the journal; false after an interruption. */
async function sample(plan: Plan, run: string, checked: CheckedRows, options: Options): Promise<boolean> {
  const { shard, conditions, policy, template, templatePath } = plan;
  const index = new SampleIndex();
  const onDamage = (place: string): void =>
    printNote(paint('yellow', `${place} is damaged; its sample is fetched or generated again`));
  const header = journalHeader(run, shard);
  const path = join(plan.dir, shardFile(shard, 'journal', 'jsonl'));
  const journal = await Journal.open(path, header, (line) => addLine(index, line, conditions, onDamage));
  const owner = { run, trainer: shard.count === 1 ? run : `${run}-${shard.index + 1}` };
  const trainer = typeof template.trainer === 'string' ? template.trainer : owner.trainer;
  let finished = 0;
  let printedMs = systemClock.monotonicMs();
  const retry = {
    retrySeconds: secondsOption('--server-wait', options.serverWait),
    onRetry: outageNotes(),
  };
  try {
    const done = await interruptible((signal) =>
      withClient(
        options,
        async (client) => {
          const sampling = new SamplingRun(
            {
              client,
              clock: systemClock,
              run,
              trainer,
              consumer: owner.trainer,
              policy,
              concurrency: countOption('--concurrency', options.concurrency),
              conditions,
              ownsRow: (row) => ownsRow(shard, row),
              taskOf: (row, id) => withSources(sampleTask(template, row, owner, id), templatePath),
              journal,
              onSample: () => {
                finished++;
                if (systemClock.monotonicMs() - printedMs < PROGRESS_INTERVAL_MS) return;
                printedMs = systemClock.monotonicMs();
                printNote(`▸ ${finished} samples finished, ${sampling.runningCount} running`);
              },
              onRefused: (row, error) => printNote(paint('yellow', `${row.where}: ${error.message}`)),
            },
            index,
          );
          await sampling.generate(rowsOf(plan, checked), signal).catch((thrown) => {
            throw withAdvice(thrown);
          });
          return true;
        },
        retry,
      ),
    );
    if (done === null)
      printNote('Interrupted. Sessions that are running continue; run the same command to collect them.');
    return done !== null;
  } finally {
    await journal.close();
  }
}

/** Adds advice for the user to the last error of an outage of the server. */
function withAdvice(thrown: unknown): unknown {
  if (!FloeError.is(thrown) || !thrown.retryable || thrown.code === 'internal') return thrown;
  const message = `${thrown.message}; finished samples are in the journal: run the same command when the server works`;
  return new FloeError(thrown.code, message, thrown.details, thrown);
}

/** Returns a function that prints the first failure of each outage of the server, with advice for the user. */
function outageNotes(): (failure: FloeError) => void {
  let lastMs = Number.NEGATIVE_INFINITY;
  return ({ message }) => {
    const nowMs = systemClock.monotonicMs();
    if (nowMs - lastMs > PROGRESS_INTERVAL_MS) {
      printNote(
        paint('yellow', `${message}; waiting for the server. If it does not run, start it: this run then continues`),
      );
    }
    lastMs = nowMs;
  };
}

/** Writes the output files from the journals of all shards, and prints the acceptance. */
async function merge(plan: Plan, run: string, checked: CheckedRows, options: Options): Promise<void> {
  const { dir, conditions, policy, best, shard } = plan;
  const unlock = await acquireLock(join(dir, 'output.lock'), `the output in ${dir}`);
  try {
    const index = new SampleIndex();
    await readShards(dir, run, shard.count, index, conditions, (place) =>
      printNote(paint('yellow', `${place} is damaged`)),
    );
    const missing = await missingRows(plan, checked, index);
    if (missing > 0 && options.partial !== true) {
      throw new FloeError(
        'not_ready',
        `${missing} rows lack samples; run the shards to their end, or write what there is with --merge --partial`,
        { missing },
      );
    }
    const acceptance = await writeOutput(
      {
        ...plan,
        run,
        keep: best ? 1 : policy.keep,
        conditions: conditions.map(({ text }) => text),
        invalid: checked.invalid,
      },
      index,
    );
    if (options.json === true) printJson(acceptance);
    else printAcceptance(acceptance, dir);
  } finally {
    await unlock();
  }
}

/** Returns the number of rows of all shards that lack samples. A row whose task was refused does not count. */
async function missingRows(plan: Plan, checked: CheckedRows, index: SampleIndex): Promise<number> {
  let missing = 0;
  for await (const { number } of rowsOf({ ...plan, shard: { index: 0, count: 1 } }, checked)) {
    if (index.refusalOf(number) === null && !new RowPlan(number, plan.policy, index.ofRow(number)).isDone) missing++;
  }
  return missing;
}

function printAcceptance(
  { stratify, groups, total, files, invalid_rows: invalid, outcomes }: Acceptance,
  dir: string,
): void {
  const rows = [...groups, { ...total, value: 'Total' }].map((group) => [
    group.value,
    group.rows,
    group.samples,
    group.accepted,
    group.rate === null ? '-' : `${(100 * group.rate).toFixed(1)}%`,
  ]);
  printLine(formatTable([stratify ?? '', 'rows', 'samples', 'accepted', 'rate'], rows));
  printLine(
    `outcomes: ${Object.entries(outcomes)
      .map(([name, count]) => `${name} ${count}`)
      .join(', ')}`,
  );
  if (invalid > 0) printLine(`rows without a task: ${invalid}; see ${join(dir, 'acceptance.json')}`);
  for (const [name, count] of Object.entries(files)) printLine(`${join(dir, name)}: ${count} records`);
}
