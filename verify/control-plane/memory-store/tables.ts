import type { AliasRow, CallbackRow, EngineRow, EngineStateRow, NodeRow } from '#server/store/rows';
import type {
  AliasTable,
  CallbackTable,
  DurationTable,
  EngineTable,
  NodeTable,
  ServiceTimeTable,
  StoreTables,
  TombstoneTable,
} from '#server/store/store';
import { batchesOf } from './batches.ts';
import { factsTable } from './facts.ts';
import { MemoryResults } from './results.ts';
import { MemorySessions } from './sessions.ts';
import type { MemoryState } from './state.ts';
import { MemoryTasks } from './tasks.ts';

/**
 * Minimum weight of a new duration in the running mean of session durations. In a plain mean each further duration would count less, but
 * recent ones must count more, because the policy changes during training.
 */
const NEWEST_WEIGHT = 0.3;
/** Key of the row in tables that have exactly one row. */
const ONLY_ROW = 'only';
const FIRST_ENGINE_STATE: EngineStateRow = {
  revision: 0,
  paused: null,
  while_paused: 'hold',
  policy_version: null,
  removed: '[]',
};

export function tablesOf(state: MemoryState): StoreTables {
  return {
    tasks: new MemoryTasks(state),
    sessions: new MemorySessions(state),
    results: new MemoryResults(state),
    nodes: nodesOf(state),
    callbacks: callbacksOf(state),
    tombstones: tombstonesOf(state),
    engines: enginesOf(state),
    serviceTime: serviceTimeOf(state),
    durations: durationsOf(state),
    aliases: aliasesOf(state),
    batches: batchesOf(state),
    facts: factsTable(state),
  };
}

function nodesOf({ nodes, nodeEngines }: MemoryState): NodeTable {
  return {
    put: async (row) => {
      nodeEngines.delete(row.node_id);
      nodes.put(row.node_id, row);
    },
    get: async (nodeId) => nodes.get(nodeId),
    lock: async (nodeId) => nodes.get(nodeId),
    list: async () => sorted(nodes.values(), (row: NodeRow) => row.node_id),
    draining: async () => nodes.where((row) => row.draining === 1),
    hasOther: async (nodeId, seenSinceMs) => {
      for (const row of nodes.values()) {
        const accepts = row.draining === 0 && row.refuses === null && row.last_seen_ms >= seenSinceMs;
        if (row.node_id !== nodeId && accepts) return true;
      }
      return false;
    },
    update: async (nodeId, patch) => void nodes.patch(nodeId, patch),
    remove: async (nodeId) => {
      nodeEngines.delete(nodeId);
      nodes.delete(nodeId);
    },
    putEngineInfo: async (nodeId, info) => nodeEngines.put(nodeId, { node_id: nodeId, info }),
    engineInfo: async () => new Map([...nodeEngines.values()].map(({ node_id, info }) => [node_id, info])),
  };
}

function callbacksOf({ callbacks }: MemoryState): CallbackTable {
  return {
    insert: async (row) => {
      if (callbacks.get(row.task_id) !== undefined) throw new Error(`task ${row.task_id} already has a callback`);
      callbacks.put(row.task_id, row);
    },
    claimDue: async (nowMs, limit, untilMs) => {
      const due = callbacks.where((row) => row.delivered_at === null && row.next_try_ms <= nowMs);
      due.sort((a, b) => a.next_try_ms - b.next_try_ms);
      return due.slice(0, limit).map((row) => callbacks.patch(row.task_id, { next_try_ms: untilMs }) as CallbackRow);
    },
    get: async (taskId) => callbacks.get(taskId),
    update: async (taskId, patch) => void callbacks.patch(taskId, patch),
    countUndelivered: async () => callbacks.where((row) => row.delivered_at === null).length,
  };
}

function tombstonesOf({ tombstones }: MemoryState): TombstoneTable {
  return {
    put: async (taskId, expiresMs) => tombstones.put(taskId, { task_id: taskId, expires_ms: expiresMs }),
    has: async (taskId, nowMs) => (tombstones.get(taskId)?.expires_ms ?? nowMs) > nowMs,
    removeExpired: async (nowMs) => {
      for (const { task_id } of tombstones.where((row) => row.expires_ms <= nowMs)) tombstones.delete(task_id);
    },
  };
}

function aliasesOf({ aliases, tasks }: MemoryState): AliasTable {
  const keyOf = (api: AliasRow['api'], alias: string): string => `${api}/${alias}`;
  return {
    put: async (row) => aliases.put(keyOf(row.api, row.alias), row),
    get: async (api, alias) => aliases.get(keyOf(api, alias)),
    ofTask: async (taskId) => aliases.where((row) => row.task_id === taskId)[0],
    list: async (api, limit) => {
      const named = new Map(aliases.where((row) => row.api === api).map((row) => [row.task_id, row.alias]));
      const newest = tasks.where((task) => named.has(task.task_id)).sort((a, b) => b.order_no - a.order_no);
      return newest.slice(0, limit).map((task) => ({ ...task, alias: named.get(task.task_id) ?? '' }));
    },
  };
}

function enginesOf({ engines, engineState }: MemoryState): EngineTable {
  const current = (): EngineStateRow => engineState.get(ONLY_ROW) ?? FIRST_ENGINE_STATE;
  return {
    list: async () => sorted(engines.values(), (row: EngineRow) => row.engine_id),
    put: async (row) => engines.put(row.engine_id, row),
    remove: async (engineId) => engines.delete(engineId),
    state: async () => current(),
    lock: async () => current(),
    advance: async (patch) => {
      const next = { ...current(), ...patch, revision: current().revision + 1 };
      engineState.put(ONLY_ROW, next);
      return next;
    },
  };
}

function serviceTimeOf({ serviceTime }: MemoryState): ServiceTimeTable {
  return {
    get: async () => serviceTime.get(ONLY_ROW)?.now_ms ?? 0,
    advance: async (nowMs) => {
      const stored = serviceTime.get(ONLY_ROW)?.now_ms ?? 0;
      if (nowMs <= stored) return stored;
      serviceTime.put(ONLY_ROW, { now_ms: nowMs });
      return nowMs;
    },
  };
}

function durationsOf({ durations }: MemoryState): DurationTable {
  return {
    means: async (keys) =>
      new Map(
        keys.flatMap((key) => {
          const row = durations.get(key);
          return row === undefined ? [] : [[key, row.mean_ms] as const];
        }),
      ),
    overallMean: async () => {
      const rows = [...durations.values()];
      return rows.length === 0 ? null : rows.reduce((sum, row) => sum + row.mean_ms, 0) / rows.length;
    },
    observe: async (key, ms) => {
      const row = durations.get(key);
      if (row === undefined) return durations.put(key, { duration_key: key, mean_ms: ms, samples: 1 });
      const weight = Math.max(NEWEST_WEIGHT, 1 / (row.samples + 1));
      durations.put(key, {
        duration_key: key,
        mean_ms: row.mean_ms + (ms - row.mean_ms) * weight,
        samples: row.samples + 1,
      });
    },
  };
}

function sorted<Row>(rows: Iterable<Row>, key: (row: Row) => string): Row[] {
  return [...rows].sort((a, b) => (key(a) < key(b) ? -1 : 1));
}
