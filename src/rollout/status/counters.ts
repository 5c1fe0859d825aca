/** What the server counts since it started; shown by `GET /rollout/status` and, as `floe_server_<name>_total`, by its metrics. */
export const COUNTERS = {
  stale_results: 'results refused because another epoch owns the session',
  late_results: 'results refused because the session was cancelled or had ended',
  partials_kept: 'remains of attempts that lost their lease, kept as evidence',
  stale_processes: 'calls refused because a newer process holds the node id',
  takeovers: 'node ids taken over by a new process',
  leases_expired: 'leases that ran out because a node was silent',
  retries: 'new attempts after a failure of the infrastructure',
  given_up: 'sessions that ended because their attempts were used up',
  refills: 'samples added in place of unusable ones',
  early_stops: 'tasks that had enough usable samples before all had ended',
  deadlines: 'tasks cancelled at their deadline',
  claims_held_back: 'times a node asked in vain because a trainer does not collect its results',
  callbacks_delivered: 'callbacks that were acknowledged',
  callbacks_failed: 'tries of callbacks that were not acknowledged',
  unauthorized: 'requests without a valid token',
  forbidden: 'requests whose token is not of a role that may make them',
  connections_refused: 'connections closed because there were too many',
  rate_limited: 'requests refused by a rate limit, or because too many results were arriving',
  store_failures: 'transactions that the store refused',
  blobs_removed: 'blobs removed because nothing refers to them',
  tasks_removed: 'ended tasks removed because their retention is over',
} as const satisfies Readonly<Record<string, string>>;

export type CounterName = keyof typeof COUNTERS;

export class Counters {
  private readonly values = new Map<CounterName, number>();

  add(name: CounterName, by = 1): void {
    this.values.set(name, (this.values.get(name) ?? 0) + by);
  }

  get(name: CounterName): number {
    return this.values.get(name) ?? 0;
  }

  /** Every counter, those at 0 too. */
  all(): Record<CounterName, number> {
    const names = Object.keys(COUNTERS) as CounterName[];
    return Object.fromEntries(names.map((name) => [name, this.get(name)])) as Record<CounterName, number>;
  }
}
