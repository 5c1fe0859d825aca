import type {
  ConsumerRow,
  DeliveryRow,
  ResultBlobs,
  ResultRow,
  ResultWithSummary,
  SessionRow,
} from '../../../src/store/rows.ts';
import type { Page, ResultTable } from '../../../src/store/store.ts';
import type { MemoryState } from './state.ts';

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
    return this.select((row) => row.cursor > after && (trainer === null || row.trainer === trainer)).slice(0, limit);
  }

  async ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]> {
    const after = page?.after ?? 0;
    return this.select((row) => row.task_id === taskId && row.cursor > after).slice(0, page?.limit);
  }

  async ofSession(sessionId: string): Promise<ResultWithSummary | undefined> {
    return this.select((row) => row.session_id === sessionId)[0];
  }

  async newestCursor(): Promise<number> {
    let newest = 0;
    for (const { cursor } of this.state.results.values()) newest = Math.max(newest, cursor);
    return newest;
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
    return this.state.deliveries.where((row) => row.session_id === sessionId).sort((a, b) => a.epoch - b.epoch);
  }

  async collect(trainer: string | null, upToCursor: number): Promise<void> {
    this.mark((row) => row.cursor <= upToCursor && (trainer === null || row.trainer === trainer));
  }

  async collectTask(taskId: string): Promise<void> {
    this.mark((row) => row.task_id === taskId);
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

  private mark(which: (row: ResultRow) => boolean): void {
    for (const { session_id } of this.state.results.where((row) => row.collected === 0 && which(row))) {
      this.state.results.patch(session_id, { collected: 1 });
    }
  }

  private select(which: (row: ResultRow) => boolean): ResultWithSummary[] {
    return this.state.results
      .where(which)
      .sort((a, b) => a.cursor - b.cursor)
      .flatMap((row) => {
        const session = this.state.sessions.get(row.session_id);
        return session === undefined ? [] : [{ ...row, summary: session.summary as string }];
      });
  }
}
