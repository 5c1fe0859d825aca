// Fills a database with the rows that finished sessions leave, by SQL alone. Each session is a copy of a session that a server and a node ran.
import Libsql from 'libsql';
import pg from 'pg';
import type { BlobRef } from '#server/store/rows';

/** Number of sessions of each task. */
export const GROUP = 8;

/** Number of tasks that one statement adds. */
const BATCH = 12_500;

/** Age in milliseconds of service time that the oldest tasks have when a new server starts. */
const OLD_MS = 36_000_000;

/** Measures of a coding session with three tools, in the form in which `session_facts` has them. */
const MEASURES = JSON.stringify([
  ...['root', 'exact'].map((name) => ['link', name, -1, 20, 0, 0, 0]),
  ...['first', 'spliced'].map((name) => ['rendered', name, -1, 20, 0, 0, 0]),
  ...['tests', 'format'].map((name) => ['reward', name, -1, 1, 0, 0.5, 0.25]),
  ...['bash', 'edit', 'search'].flatMap((name) => [
    ['tool', name, -1, 0, 1, 6000, 0],
    ...[21, 27, 33].map((bin) => ['tool', name, bin, 7, 0, 0, 0]),
  ]),
]);

/** Runs SQL in the database of a server that is not running, or beside a server that is. */
export interface Sql {
  run(text: string): Promise<void>;
  rows(text: string): Promise<Record<string, unknown>[]>;
  close(): Promise<void>;
  /** SQL for the rows `task (i)` with the whole numbers from `from` to before `to`. */
  series(from: number, to: number): string;
  /** SQL for an integer as 24 hexadecimal digits. */
  digits(number: string): string;
  /** SQL for a name of a blob that no other row has, as random as a hash. */
  hash(seed: string): string;
  /** SQL before and after the rows are copied. It switches the triggers off where that is possible, because they take half of the time. */
  readonly triggers: { readonly off: string; readonly on: (tasks: number) => string };
  /** SQL that updates the database's statistics about its tables, as in a database that sessions filled. */
  readonly settle: string;
}

export async function openSql(dir: string, database: string | null): Promise<Sql> {
  return database === null ? sqliteSql(`${dir}/floe.db`) : postgresSql(database);
}

function sqliteSql(path: string): Sql {
  const raw = new Libsql(path);
  return {
    run: async (text) => void raw.exec(text),
    rows: async (text) => raw.prepare(text).all() as Record<string, unknown>[],
    close: async () => void raw.close(),
    series: (from, to) =>
      `(with recursive n (i) as (select ${from} union all select i + 1 from n where i + 1 < ${to}) select i from n) as task`,
    digits: (number) => `printf('%024x', ${number})`,
    hash: () => 'lower(hex(randomblob(32)))',
    // The triggers count the copies as uncollected.
    triggers: { off: '', on: () => 'delete from uncollected' },
    settle: 'pragma wal_checkpoint(truncate)',
  };
}

async function postgresSql(url: string): Promise<Sql> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return {
    run: async (text) => void (await client.query(text)),
    rows: async (text) => (await client.query(text)).rows,
    close: () => client.end(),
    series: (from, to) => `generate_series(${from}::bigint, ${to - 1}::bigint) as task (i)`,
    digits: (number) => `lpad(to_hex(${number}), 24, '0')`,
    hash: (seed) => `encode(sha256(convert_to(${seed}, 'UTF8')), 'hex')`,
    triggers: {
      off: 'set session_replication_role = replica',
      on: (tasks) =>
        `set session_replication_role = origin; insert into task_counts values ('completed', ${tasks}); delete from uncollected`,
    },
    settle: 'vacuum analyze',
  };
}

/** A range of tasks whose trajectories can be read: from number `from` up to, but not including, `to`. Each trajectory is one of `blobs`. */
export type BlobRange = { readonly from: number; readonly to: number; readonly blobs: readonly BlobRef[] };

export type Filling = {
  /** The task whose rows are copied. It has {@link GROUP} completed sessions. */
  readonly taskId: string;
  readonly tasks: number;
  /** Number of the first tasks, which ended {@link OLD_MS} before all other tasks. */
  readonly oldTasks: number;
  /** Tasks whose trajectories can be read. The trajectories of all other tasks name blobs that do not exist. */
  readonly readable: readonly BlobRange[];
};

/** Adds the rows of finished tasks to all tables except the table of words. Their ids come before the ids of any later task. */
export async function addFinished(sql: Sql, filling: Filling, onBatch: (tasks: number) => void): Promise<void> {
  const tables: ((from: number, to: number) => string)[] = [];
  for (const copy of tableCopies(sql, filling)) tables.push(await statementOf(sql, filling.taskId, copy));
  await sql.run(sql.triggers.off);
  for (let from = 0; from < filling.tasks; from += BATCH) {
    const to = Math.min(filling.tasks, from + BATCH);
    await sql.run('begin');
    for (const statement of tables) await sql.run(statement(from, to));
    await sql.run('commit');
    onBatch(to);
  }
  await sql.run(sql.triggers.on(filling.tasks));
  await sql.run(sql.settle);
}

type Copy = {
  readonly table: string;
  /** The column that the database numbers; `null` when the table has none. */
  readonly numbered: string | null;
  /** SQL for the columns that a copy changes. */
  readonly changed: Readonly<Record<string, string>>;
};

function tableCopies(sql: Sql, { taskId, oldTasks, readable }: Filling): Copy[] {
  const task_id = `'task_00' || ${sql.digits('task.i')}`;
  const session_id = `'ses_00' || ${sql.digits(`${GROUP} * task.i + base.sample_index`)}`;
  const summary = `replace(replace(one.summary, one.session_id, ${session_id}), '${taskId}', ${task_id})`;
  const ids = { task_id, session_id };
  return [
    {
      table: 'tasks',
      numbered: 'order_no',
      changed: {
        task_id,
        // A client makes a random key for each submission.
        idempotency_key: `substr(${sql.hash(`'k' || task.i`)}, 1, 36)`,
        ended_ms: `case when task.i < ${oldTasks} then task.i - ${OLD_MS}.0 else one.ended_ms end`,
      },
    },
    { table: 'sessions', numbered: 'queue_order', changed: { ...ids, summary } },
    {
      table: 'results',
      numbered: 'cursor',
      changed: {
        ...ids,
        trajectory_ref: readableOr(readable, ({ ref }) => `'${ref}'`, sql.hash(`'t' || ${session_id}`)),
        trajectory_bytes: readableOr(readable, ({ bytes }) => String(bytes), '40000'),
        completions_ref: sql.hash(`'c' || ${session_id}`),
        completions_bytes: '60000',
      },
    },
    { table: 'deliveries', numbered: null, changed: { session_id } },
    {
      table: 'session_facts',
      numbered: 'fact_no',
      changed: {
        ...ids,
        source: "'dataset-' || (task.i % 6)",
        version: "'' || (task.i / 4096)",
        reward: '((task.i * 7919 + base.sample_index * 13) % 100) / 99.0',
        turns: '1 + (task.i * 31 + base.sample_index) % 40',
        sampled_tokens: '220 * (1 + (task.i * 31 + base.sample_index) % 40)',
        total_ms: '10000.0 + 1000 * ((task.i * 7 + base.sample_index) % 300)',
        ended_ms: 'one.ended_ms - 86400000 + 10 * task.i',
        measures: `'${MEASURES}'`,
      },
    },
  ];
}

/** Returns SQL that chooses the value for the blob of a session, by the number of its task; `other` for a session without a readable blob. */
function readableOr(ranges: readonly BlobRange[], value: (blob: BlobRef) => string, other: string): string {
  const cases = ranges.flatMap(({ from, to, blobs }) =>
    blobs.map((blob, k) => {
      const isChosen = `(${GROUP} * task.i + base.sample_index) % ${blobs.length} = ${k}`;
      return `when task.i >= ${from} and task.i < ${to} and ${isChosen} then ${value(blob)}`;
    }),
  );
  return cases.length === 0 ? other : `case ${cases.join(' ')} else ${other} end`;
}

/** Returns a function that makes the statement which copies the rows of the tasks of a range. */
async function statementOf(
  sql: Sql,
  taskId: string,
  { table, numbered, changed }: Copy,
): Promise<(from: number, to: number) => string> {
  const [example] = await sql.rows(`select * from ${table} limit 1`);
  if (example === undefined) throw new Error(`the table ${table} has no row to copy`);
  const columns = Object.keys(example).filter((name) => name !== numbered);
  const values = columns.map((name) => changed[name] ?? `one.${name}`);
  const [source, order] =
    table === 'tasks'
      ? [`tasks as one cross join`, 'task.i']
      : [
          `sessions as base join ${table} as one on one.session_id = base.session_id cross join`,
          'task.i, base.sample_index',
        ];
  const isCopied = `${table === 'tasks' ? 'one' : 'base'}.task_id = '${taskId}'`;
  return (from, to) => `insert into ${table} (${columns.join(', ')}) select ${values.join(', ')}
    from ${source} ${sql.series(from, to)} where ${isCopied} order by ${order}`;
}
