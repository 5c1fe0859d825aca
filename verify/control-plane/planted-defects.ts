// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the strings are pieces of source code
// Defects that the simulation must detect, such as a defect that loses sessions. Each defect replaces texts in a compiled file. Each text must
// occur exactly once in this file, so that an entry that no longer matches the file is reported as an error.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export type Defect = {
  /** Short description of the wrong behaviour that floe shows with this defect. */
  readonly name: string;
  /** Path of the compiled file that the defect changes, relative to the root of the repository. */
  readonly file: string;
  readonly edits: readonly (readonly [find: string, replace: string])[];
};

export const DEFECTS: readonly Defect[] = [
  {
    name: 'a disk is never synced',
    file: '.build/verify/control-plane/memory-store/database.js',
    edits: [
      ['const outcome = await this.disk.sync();', "const outcome = 'synced';"],
      ['this.unsynced = [];\n        this.disk.committed', 'this.disk.committed'],
    ],
  },
  {
    name: 'results are acknowledged before their bytes are stored',
    file: 'packages/server/dist/rollout/sessions/delivery-envelope.js',
    edits: [
      [
        'context.blobs.put(bytes)',
        "(context.blobs.put(bytes).catch(() => {}), { ref: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length })",
      ],
    ],
  },
  {
    name: 'cancelled sessions have no facts',
    file: 'packages/server/dist/rollout/sessions/end.js',
    edits: [
      ['const described = tables', "const described = summary.outcome === 'cancelled' ? Promise.resolve() : tables"],
    ],
  },
  {
    name: 'the facts of a session lack its reward',
    file: 'packages/server/dist/rollout/sessions/facts.js',
    edits: [['reward: summary.reward', 'reward: null']],
  },
  {
    name: 'a requeued session keeps its old epoch',
    file: 'packages/server/dist/rollout/sessions/retry.js',
    edits: [['epoch: row.epoch + 1,\n        node_id', 'epoch: row.epoch,\n        node_id']],
  },
  {
    name: 'a result with an old epoch is accepted',
    file: 'packages/server/dist/rollout/sessions/deliver.js',
    edits: [
      ['const isOpenHere = row.epoch === summary.epoch && row.node_id === nodeId &&', 'const isOpenHere ='],
      ['if (row.epoch !== summary.epoch || row.node_id !== nodeId) {', 'if (false) {'],
      ['if (row.attempt !== summary.attempt)', 'if (false)'],
    ],
  },
  {
    name: 'a result is accepted twice',
    file: 'packages/server/dist/rollout/sessions/deliver.js',
    edits: [
      [' && !isTerminal(row.status);', ';'],
      ["if (row.status === 'CANCELLED' ||", 'if ('],
    ],
  },
  {
    name: 'a cancelled session can still complete',
    file: 'packages/server/dist/rollout/tasks/groups.js',
    edits: [
      [
        'const isLeased = row.lease_expires_ms !== null;\n',
        "const isLeased = row.lease_expires_ms !== null;\n        if (row.status === 'RUNNING') continue;\n",
      ],
    ],
  },
  {
    name: 'a heartbeat renews no lease',
    file: 'packages/server/dist/rollout/nodes/heartbeats.js',
    edits: [['aging.map(({ row }) => row.session_id)', '[]']],
  },
  {
    name: 'expired leases are never requeued',
    file: 'packages/server/dist/rollout/sessions/retry.js',
    edits: [['if (count > 0)', 'if (false)']],
  },
  {
    name: 'a new process of a node does not requeue the sessions of the old one',
    file: 'packages/server/dist/rollout/nodes/registration.js',
    edits: [['await takeBackSessionsOf(transaction, nodeId, known);', '']],
  },
  {
    name: 'an older process of a node is still served',
    file: 'packages/server/dist/rollout/nodes/nodes.js',
    edits: [['if (node.instance === instance)', 'if (true)']],
  },
  {
    name: 'a draining node is given sessions',
    file: 'packages/server/dist/rollout/sessions/claim.js',
    edits: [['if (node.draining === 1)', 'if (false)']],
  },
  {
    name: 'a failed attempt is retried without a pause',
    file: 'packages/server/dist/rollout/sessions/retry.js',
    edits: [['delayMs: retryDelayMs(context, attempt)', 'delayMs: 0']],
  },
  {
    name: 'a failed attempt is not counted',
    file: 'packages/server/dist/rollout/sessions/retry.js',
    edits: [['const attempt = row.attempt + 1;', 'const attempt = row.attempt;']],
  },
  {
    name: 'an infrastructure failure has reward 0',
    file: 'packages/server/dist/rollout/sessions/end.js',
    edits: [['{ reward: null, reward_components: {} }', '{ reward: 0, reward_components: {} }']],
  },
  {
    name: 'every ended session counts as usable',
    file: 'packages/server/dist/rollout/sessions/end.js',
    edits: [['usable: unusable === null ? 1 : 0', 'usable: 1']],
  },
  {
    name: 'an early stop stops no session',
    file: 'packages/server/dist/rollout/tasks/groups.js',
    edits: [['return least !== null && task.usable_sessions >= least;', 'return false;']],
  },
  {
    name: 'a refill is not used up',
    file: 'packages/server/dist/rollout/tasks/groups.js',
    edits: [['refills_left: task.refills_left - 1', 'refills_left: task.refills_left']],
  },
  {
    name: 'task deadlines are not enforced',
    file: 'packages/server/dist/rollout/background.js',
    edits: [['await sweepDeadlines(context);', '']],
  },
  {
    name: 'a repeated submission is a conflict',
    file: 'packages/server/dist/rollout/tasks/submit.js',
    edits: [['return tables.tasks.findByKey(request.idempotency_key);', 'return undefined;']],
  },
  {
    name: 'a cancellation before the submission is forgotten',
    file: 'packages/server/dist/rollout/tasks/submit.js',
    edits: [['if (!(await tables.tombstones.has(name, context.time.nowMs())))', 'if (true)']],
  },
  {
    name: 'a restarted server restarts its clock',
    file: 'packages/server/dist/rollout/service-time.js',
    edits: [['this.currentMs = Math.max(this.nowMs(), storedMs);', 'this.currentMs = this.nowMs();']],
  },
  {
    name: 'a page skips a result',
    file: 'packages/server/dist/rollout/sessions/results.js',
    edits: [['next: rows.at(-1)?.cursor ?? after', 'next: (rows.at(-1)?.cursor ?? after - 1) + 1']],
  },
  {
    name: 'results count as collected when they are sent',
    file: 'packages/server/dist/rollout/sessions/results.js',
    edits: [['tables.results.collect(trainer, position.after)', 'tables.results.collect(trainer, 1e9)']],
  },
  {
    name: 'results never count as collected',
    file: 'packages/server/dist/rollout/sessions/results.js',
    edits: [['await tables.results.collect(trainer, position.after);', ';']],
  },
  {
    name: 'a trainer that collects nothing is not held back',
    file: 'packages/server/dist/rollout/sessions/scheduling.js',
    edits: [['if (load[what] >= most)', 'if (false)']],
  },
  {
    name: 'the first trainer gets every session',
    file: 'packages/server/dist/rollout/sessions/fair-shares.js',
    edits: [['/ weight;', '* 0;']],
  },
  {
    name: 'a callback is sent by every server',
    file: 'packages/server/dist/rollout/callbacks/delivery.js',
    edits: [['time.nowMs() + this.context.config.callback_claim_seconds * 1000', 'time.nowMs()']],
  },
  {
    name: 'a callback counts as delivered whatever the status of the reply',
    file: 'packages/server/dist/rollout/callbacks/delivery.js',
    edits: [['return status >= 200 && status <= 299;', 'return true;']],
  },
  {
    name: 'each try of a callback has another idempotency key',
    file: 'packages/server/dist/rollout/callbacks/payload.js',
    edits: [['return `floe-task-${row.task_id}`;', 'return `floe-task-${row.task_id}-${row.tries}`;']],
  },
  {
    name: 'a change wakes no waiting request',
    file: 'packages/server/dist/rollout/transaction.js',
    edits: [['context.wakeups.wake(topic);', ';']],
  },
  {
    name: 'a node does not stop a session that the server ended',
    file: 'packages/node/dist/gateway/node/node-agent.js',
    edits: [['?.attempt.stop(reason);', ';']],
  },
  {
    name: 'partial results are acknowledged and not stored',
    file: 'packages/server/dist/rollout/sessions/deliver.js',
    edits: [['await tables.results.addDelivery(', 'void (']],
  },
];

/**
 * Returns the text of the compiled file that a defect changes, before and after the change. `root` is a compiled checkout.
 * Throws an Error when a text that the defect replaces does not occur exactly once.
 */
export function withDefect(
  root: string,
  { name, file, edits }: Defect,
): { readonly before: string; readonly after: string } {
  const before = readFileSync(join(root, file), 'utf8');
  let after = before;
  for (const [find, replace] of edits) {
    const parts = after.split(find);
    if (parts.length !== 2) {
      throw new Error(`"${name}": ${JSON.stringify(find)} occurs ${parts.length - 1} times in ${file}, not once`);
    }
    after = parts.join(replace);
  }
  if (after === before) throw new Error(`"${name}" changes nothing in ${file}`);
  return { before, after };
}
