/** A private PostgreSQL server. It ends, and its files go, with the process that started it, however that ends. */
export type PostgresCluster = {
  /** Of its first database, with user and password. */
  readonly url: string;
  readonly port: number;
  /** Its files, `log` among them. */
  readonly dir: string;
  /** Of its main process; null while it is down. */
  readonly pid: number | null;
  /** Takes the server down in order, breaking connections; the data stays. */
  halt(): Promise<void>;
  /** kill -9. */
  kill(): Promise<void>;
  /** After `halt` or `kill`, on the same port; resolves when it takes connections. */
  start(): Promise<void>;
  restart(options?: { readonly kill?: boolean }): Promise<void>;
  /** Stops every process of the server where it stands (SIGSTOP): connections stay open and get no answer. */
  pause(): void;
  resume(): void;
  /** A new, empty database; resolves to its URL. */
  createDatabase(): Promise<string>;
  /** Runs SQL as the superuser, in the database of `url` or the first one, and returns the rows. */
  query(text: string, url?: string): Promise<Record<string, unknown>[]>;
  /** Ends the server and removes its files. */
  stop(): Promise<void>;
};

/** The folder with `initdb` and `postgres`, or null. */
export function findPostgres(): string | null;

/** Why no server can be started here, or null. */
export function whyNoPostgres(): string | null;

/**
 * Starts a server on a free port of loopback, with a password, syncing to disk as by default. As root it runs as the user
 * `postgres`. `settings` are those of postgresql.conf. Rejects when there is none or it does not start.
 */
export function startPostgres(options?: {
  readonly settings?: Readonly<Record<string, string | number>>;
}): Promise<PostgresCluster>;
