import type { BatchDataRow, BatchGroupTotals, BatchStreamRow } from '#server/store/rows';
import type { BatchTables } from '#server/store/store';
import type { MemoryState } from './state.ts';

export function batchesOf(state: MemoryState): BatchTables {
  const { batchStreams, batchRows, batchPlans, batchGroups, sessions, tasks: storedTasks } = state;
  const keyOf = (batchId: string, number: number): string => `${batchId}/${number}`;
  const rowsOf = (batchId: string): BatchDataRow[] =>
    batchRows.where((row) => row.batch_id === batchId).sort((a, b) => a.row_index - b.row_index);
  const streamOf = (batchId: string): BatchStreamRow | undefined => {
    const stored = batchStreams.get(batchId);
    if (stored === undefined) return undefined;
    const { order_no: _, ...row } = stored;
    return row;
  };
  const groupsWhere = (holds: (group: ReturnType<typeof batchGroups.where>[number]) => boolean) =>
    batchGroups.where(holds).sort((a, b) => a.group_no - b.group_no);
  const tables: BatchTables = {
    addStream: async (row) => {
      if (batchStreams.get(row.batch_id) !== undefined) return false;
      batchStreams.put(row.batch_id, { ...row, order_no: state.next('stream') });
      return true;
    },
    stream: async (batchId) => streamOf(batchId),
    lockStream: async (batchId) => streamOf(batchId),
    streams: async ({ status, limit }) =>
      batchStreams
        .where((row) => status === null || row.status === status)
        .sort((a, b) => b.order_no - a.order_no)
        .slice(0, limit)
        .flatMap(({ batch_id }) => streamOf(batch_id) ?? []),
    updateStream: async (batchId, patch) => void batchStreams.patch(batchId, patch),
    addRows: async (rows) => {
      for (const row of rows) batchRows.put(keyOf(row.batch_id, row.row_index), row);
    },
    row: async (batchId, rowIndex) => batchRows.get(keyOf(batchId, rowIndex)),
    updateRow: async (batchId, rowIndex, patch) => void batchRows.patch(keyOf(batchId, rowIndex), patch),
    histories: async (batchId) => rowsOf(batchId).filter((row) => row.problem === null && row.retired === 0),
    invalidRows: async (batchId, limit) =>
      rowsOf(batchId)
        .filter((row) => row.problem !== null)
        .slice(0, limit),
    countUnsampledRows: async (batchId) => {
      const rows = rowsOf(batchId);
      const retired = rows.filter((row) => row.retired === 1).length;
      return { invalid: rows.filter((row) => row.problem !== null && row.retired === 0).length, retired };
    },
    rowFields: async (batchId, from, to) =>
      rowsOf(batchId)
        .filter((row) => row.row_index >= from && row.row_index < to)
        .map((row) => row.fields),
    plan: async (batchId, epoch) => batchPlans.get(keyOf(batchId, epoch))?.rows,
    putPlan: async (batchId, epoch, rows) => batchPlans.put(keyOf(batchId, epoch), { batch_id: batchId, rows }),
    addGroup: async (row) => batchGroups.put(keyOf(row.batch_id, row.group_no), row),
    groupOfTask: async (taskId) => batchGroups.where((row) => row.task_id === taskId)[0],
    updateGroup: async (batchId, groupNo, patch) => void batchGroups.patch(keyOf(batchId, groupNo), patch),
    updateGroups: async (taskIds, patch) => {
      for (const { batch_id, group_no } of groupsWhere((row) => taskIds.includes(row.task_id))) {
        batchGroups.patch(keyOf(batch_id, group_no), patch);
      }
    },
    handOut: async (batchId, batchNo, staleness) => {
      for (const { batch_id, group_no, task_id } of groupsWhere((row) => staleness.has(row.task_id))) {
        const counts = staleness.get(task_id) ?? null;
        batchGroups.patch(keyOf(batch_id, group_no), { state: 'handed', batch_no: batchNo, staleness: counts });
      }
      return tables.groupsOfBatch(batchId, batchNo);
    },
    openState: async (batchId) => {
      const open = groupsWhere(
        (row) => row.batch_id === batchId && (row.state === 'running' || row.state === 'ready' || row.repeat === 1),
      );
      const groups = open.map((row) => ({ ...row, is_stored: storedTasks.get(row.task_id) === undefined ? 0 : 1 }));
      return { groups, unsampledRows: await tables.countUnsampledRows(batchId) };
    },
    groupsOfBatch: async (batchId, batchNo) =>
      groupsWhere((row) => row.batch_id === batchId && row.batch_no === batchNo).map((row) => ({
        ...row,
        fields: batchRows.get(keyOf(batchId, row.row_index))?.fields ?? null,
      })),
    groups: async (batchId, status, limit) =>
      groupsWhere((row) => row.batch_id === batchId && row.state === status).slice(0, limit),
    groupsOfBatches: async (batchId, after, upTo) =>
      groupsWhere(
        (row) => row.batch_id === batchId && row.batch_no !== null && row.batch_no > after && row.batch_no <= upTo,
      ).sort((a, b) => (a.batch_no ?? 0) - (b.batch_no ?? 0)),
    groupToRepeat: async (batchId) => groupsWhere((row) => row.batch_id === batchId && row.repeat === 1)[0],
    sizeOf: async (batchId, status) => {
      const groups = groupsWhere((row) => row.batch_id === batchId && row.state === status);
      return { groups: groups.length, resolved: groups.reduce((sum, { resolved }) => sum + resolved, 0) };
    },
    countGroups: async (batchId) => {
      const totals = new Map<string, BatchGroupTotals>();
      for (const group of groupsWhere((row) => row.batch_id === batchId)) {
        const { state: status, reason } = group;
        const key = `${status}/${reason}`;
        const sum = totals.get(key) ?? {
          state: status,
          reason,
          groups: 0,
          sessions: 0,
          resolved: 0,
          sampled_tokens: 0,
        };
        totals.set(key, {
          ...sum,
          groups: sum.groups + 1,
          sessions: sum.sessions + group.sessions,
          resolved: sum.resolved + group.resolved,
          sampled_tokens: sum.sampled_tokens + group.sampled_tokens,
        });
      }
      return [...totals.values()];
    },
    // The sums are computed from the groups, so there are no changes to fold.
    foldChanges: async () => 0,
    newestRejections: async (batchId, limit) => {
      const groups = groupsWhere((row) => row.batch_id === batchId).reverse();
      const accepted = groups.find((row) => row.state === 'ready' || row.state === 'handed' || row.state === 'expired');
      const counts = new Map<string, number>();
      const rejected = groups.filter((row) => row.state === 'rejected' && row.group_no > (accepted?.group_no ?? -1));
      for (const { reason } of rejected.slice(0, limit)) {
        counts.set(reason ?? 'unknown', (counts.get(reason ?? 'unknown') ?? 0) + 1);
      }
      return counts;
    },
    counts: async (batchId, maxRejections) => ({
      groups: await tables.countGroups(batchId),
      unsampledRows: await tables.countUnsampledRows(batchId),
      newestRejections: await tables.newestRejections(batchId, maxRejections),
    }),
    queuedSessions: async (batchId) => {
      const running = new Set(
        groupsWhere((row) => row.batch_id === batchId && row.state === 'running').map((row) => row.task_id),
      );
      return sessions.where((row) => row.status === 'QUEUED' && running.has(row.task_id)).length;
    },
    removeEnded: async (endedBeforeMs, limit) => {
      const ended = batchStreams.where((row) => row.ended_ms !== null && row.ended_ms < endedBeforeMs).slice(0, limit);
      for (const { batch_id } of ended) {
        for (const row of rowsOf(batch_id)) batchRows.delete(keyOf(batch_id, row.row_index));
        for (const row of groupsWhere((group) => group.batch_id === batch_id)) {
          batchGroups.delete(keyOf(batch_id, row.group_no));
        }
        batchStreams.delete(batch_id);
      }
      return ended.length;
    },
  };
  return tables;
}
