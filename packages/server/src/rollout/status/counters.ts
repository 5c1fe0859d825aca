/**
 * The events that the server counts since its start, with their descriptions. `GET /rollout/status` shows the counts by name, and the
 * server's metrics as `floe_server_<name>_total`.
 */
export const COUNTERS = {
  stale_results: 'results refused because another epoch owns the session',
  late_results: 'results refused because the session was cancelled or had ended',
  partials_kept: 'partial results of attempts that lost their lease, kept as evidence',
  stale_processes: 'calls refused because a newer process holds the node id',
  takeovers: 'node ids taken over by a new process',
  leases_expired: 'leases that expired because a node was silent',
  usable_sessions: 'sessions that ended with a sample that can be trained on',
  retries: 'new attempts after an infrastructure failure',
  given_up: 'sessions that ended because their attempts were used up',
  refills: 'samples added in place of unusable ones',
  early_stops: 'tasks that had enough usable samples before all had ended',
  deadlines: 'tasks cancelled at their deadline',
  claims_out_of_memory:
    'lease requests that got fewer sessions because the next one did not fit into the memory of the node',
  claims_held_back: 'lease requests that got fewer sessions because a trainer does not collect its results',
  callbacks_delivered: 'callbacks that were acknowledged',
  callbacks_failed: 'tries of callbacks that were not acknowledged',
  unauthorized: 'requests without a valid token',
  forbidden: 'requests whose token has a role that may not make them',
  connections_refused: 'connections closed because there were too many',
  rate_limited: 'requests refused by a rate limit, or because too many results were arriving',
  store_failures: 'transactions that the store refused',
  corrupt_records: 'stored trajectories found to be missing or damaged when a result was read',
  blobs_removed: 'blobs removed because no row refers to them',
  tasks_removed: 'ended tasks removed because their retention time was over',
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

  /** Returns the values of all counters by name. Counters with the value 0 are included. */
  all(): Record<CounterName, number> {
    const names = Object.keys(COUNTERS) as CounterName[];
    return Object.fromEntries(names.map((name) => [name, this.get(name)])) as Record<CounterName, number>;
  }
}
