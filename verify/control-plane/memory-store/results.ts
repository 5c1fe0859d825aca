import type { ConsumerRow, DeliveryRow, ResultBlobs, ResultWithSummary, SessionRow } from '#server/store/rows';
import type { Page, ResultTable } from '#server/store/store';
import { ALL, type MemoryState, type StoredResult } from './state.ts';

export class MemoryResults implements ResultTable {
  private readonly state: MemoryState;

  constructor(state: MemoryState) {
    this.state = state;
  }

  async append(
    { session_id, task_id, trainer }: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>,
    { trajectory, completions, artifacts }: ResultBlobs,
  ): Promise<number> {
    if (this.state.results.get(session_id) !== undefined) throw new Error(`session ${session_id} already has a result`);
    const cursor = this.state.next('cursor');
    this.state.results.put(session_id, {
      cursor,
      session_id,
      task_id,
      trainer,
      collected: 0,
      trajectory_ref: trajectory?.ref ?? null,
      trajectory_bytes: trajectory?.bytes ?? 0,
      completions_ref: completions?.ref ?? null,
      completions_bytes: completions?.bytes ?? 0,
      artifacts_ref: artifacts?.ref ?? null,
      artifacts_bytes: artifacts?.bytes ?? 0,
    });
    return cursor;
  }

  async page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]> {
    const { resultsInOrder, resultsByTrainer } = this.state;
    const isAfter = (row: StoredResult): boolean => row.cursor > after;
    return this.withSummaries(
      trainer === null ? resultsInOrder.from(ALL, isAfter, limit) : resultsByTrainer.from(trainer, isAfter, limit),
    );
  }

  async ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]> {
    const after = page?.after ?? 0;
    const limit = page?.limit ?? Number.POSITIVE_INFINITY;
    return this.withSummaries(this.state.resultsByTask.from(taskId, (row) => row.cursor > after, limit));
  }

  async ofTasks(taskIds: readonly string[]): Promise<ResultWithSummary[]> {
    const rows = taskIds.flatMap((id) => this.state.resultsByTask.of(id));
    return this.withSummaries(rows.sort((a, b) => a.cursor - b.cursor));
  }

  async ofSession(sessionId: string): Promise<ResultWithSummary | undefined> {
    const row = this.state.results.get(sessionId);
    return row === undefined ? undefined : this.withSummaries([row])[0];
  }

  async newestCursor(): Promise<number> {
    return this.state.resultsInOrder.of(ALL).at(-1)?.cursor ?? 0;
  }

  async lastCursor(): Promise<number> {
    return this.state.lastOf('cursor');
  }

  async delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined> {
    return this.state.deliveries.get(`${sessionId}/${epoch}`);
  }

  async addDelivery(row: DeliveryRow): Promise<void> {
    const key = `${row.session_id}/${row.epoch}`;
    const earlier = this.state.deliveries.get(key);
    if (earlier !== undefined && earlier.kind !== 'partial') {
      throw new Error(`session ${row.session_id} already has a delivery of epoch ${row.epoch}`);
    }
    this.state.deliveries.put(key, row);
  }

  async deliveriesOf(sessionId: string): Promise<DeliveryRow[]> {
    return this.state.deliveriesBySession.of(sessionId).sort((a, b) => a.epoch - b.epoch);
  }

  async collect(trainer: string | null, upToCursor: number): Promise<void> {
    const { uncollected } = this.state;
    const rows = trainer === null ? uncollected.all() : uncollected.of(trainer);
    this.mark(rows.filter((row) => row.cursor <= upToCursor));
  }

  async collectBatches(batchId: string, after: number, upTo: number): Promise<void> {
    const handed = this.state.batchGroups.where(
      ({ batch_id, batch_no: batchNo }) =>
        batch_id === batchId && batchNo !== null && batchNo > after && batchNo <= upTo,
    );
    await this.collectTasks(handed.map((group) => group.task_id));
  }

  async collectTasks(taskIds: readonly string[]): Promise<void> {
    this.mark(taskIds.flatMap((id) => this.state.resultsByTask.of(id)).filter((row) => row.collected === 0));
  }

  async consumer(name: string): Promise<ConsumerRow | undefined> {
    return this.state.consumers.get(name);
  }

  async putConsumer(row: ConsumerRow): Promise<ConsumerRow> {
    const known = this.state.consumers.get(row.consumer) ?? row;
    const kept = { ...known, cursor: Math.max(row.cursor, known.cursor) };
    this.state.consumers.put(row.consumer, kept);
    return kept;
  }

  async referenced(refs: readonly string[]): Promise<ReadonlySet<string>> {
    const requested = new Set(refs);
    const referenced = new Set<string>();
    for (const table of [this.state.results, this.state.deliveries]) {
      for (const row of table.values()) {
        for (const ref of [row.trajectory_ref, row.completions_ref, row.artifacts_ref]) {
          if (ref !== null && requested.has(ref)) referenced.add(ref);
        }
      }
    }
    return referenced;
  }

  private mark(rows: readonly StoredResult[]): void {
    for (const { session_id } of rows) this.state.results.patch(session_id, { collected: 1 });
  }

  private withSummaries(rows: readonly StoredResult[]): ResultWithSummary[] {
    return rows.flatMap((row) => {
      const session = this.state.sessions.get(row.session_id);
      return session === undefined ? [] : [{ ...row, summary: session.summary as string }];
    });
  }
}
