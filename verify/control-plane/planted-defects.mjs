// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
// Defects of the kinds that lose, double or leak sessions, for the simulation to catch. What is replaced stands exactly once in its
// file, so a list that no longer fits the source is an error.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const BUGS = [
  {
    name: 'a disk is never synced',
    file: 'store/memory/database.js',
    edits: [
      ['const outcome = await this.disk.sync();', "const outcome = 'synced';"],
      ['this.unsynced = [];\n        this.disk.committed', 'this.disk.committed'],
    ],
  },
  {
    name: 'results are acknowledged before their bytes are stored',
    file: 'rollout/sessions/delivery-envelope.js',
    edits: [
      [
        'context.blobs.put(bytes)',
        "(context.blobs.put(bytes).catch(() => {}), { ref: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length })",
      ],
    ],
  },
  {
    name: 'a session goes back to the queue under its old epoch',
    file: 'rollout/sessions/end.js',
    edits: [['epoch: row.epoch + 1,\n        node_id', 'epoch: row.epoch,\n        node_id']],
  },
  {
    name: 'an old epoch is no reason to refuse a result',
    file: 'rollout/sessions/deliver.js',
    edits: [
      ['const fits = row.epoch === summary.epoch && row.node_id === nodeId &&', 'const fits ='],
      ['if (row.epoch !== summary.epoch || row.node_id !== nodeId) {', 'if (false) {'],
      ['if (row.attempt !== summary.attempt)', 'if (false)'],
    ],
  },
  {
    name: 'a result is taken twice',
    file: 'rollout/sessions/deliver.js',
    edits: [
      [' && !isTerminal(row.status);', ';'],
      ["if (row.status === 'CANCELLED' ||", 'if ('],
    ],
  },
  {
    name: 'a cancelled session still succeeds',
    file: 'rollout/tasks/groups.js',
    edits: [
      [
        'const leased = row.lease_expires_ms !== null;\n',
        "const leased = row.lease_expires_ms !== null;\n        if (row.status === 'RUNNING') continue;\n",
      ],
    ],
  },
  {
    name: 'a heartbeat renews no lease',
    file: 'rollout/nodes/heartbeats.js',
    edits: [['aging.map(({ row }) => row.session_id)', '[]']],
  },
  {
    name: 'leases that ran out are never taken back',
    file: 'rollout/sessions/claim.js',
    edits: [['if (found > 0)', 'if (false)']],
  },
  {
    name: 'a process that takes over leaves the sessions of the older one',
    file: 'rollout/nodes/registration.js',
    edits: [['await takeBackFrom(context, tables, effects, nodeId, known);', '']],
  },
  {
    name: 'an older process of a node goes on',
    file: 'rollout/nodes/nodes.js',
    edits: [['if (node.instance === instance)', 'if (true)']],
  },
  {
    name: 'a draining node gets work',
    file: 'rollout/sessions/claim.js',
    edits: [['if (node.draining === 1)', 'if (false)']],
  },
  {
    name: 'a failed attempt is tried again at once',
    file: 'rollout/sessions/retry.js',
    edits: [['delayMs: retryDelayMs(context, attempt)', 'delayMs: 0']],
  },
  {
    name: 'a failed attempt does not count',
    file: 'rollout/sessions/retry.js',
    edits: [['const attempt = row.attempt + 1;', 'const attempt = row.attempt;']],
  },
  {
    name: 'a failure of the machine has reward 0',
    file: 'rollout/sessions/summary.js',
    edits: [['OUTCOMES[summary.outcome].evaluated ? summary.reward : null', 'summary.reward ?? 0']],
  },
  {
    name: 'every ended session counts as usable',
    file: 'rollout/sessions/closings.js',
    edits: [['usable: unusable === null ? 1 : 0', 'usable: 1']],
  },
  {
    name: 'an early stop stops nothing',
    file: 'rollout/tasks/groups.js',
    edits: [['return least !== null && task.usable_sessions >= least;', 'return false;']],
  },
  {
    name: 'a refill is not used up',
    file: 'rollout/tasks/groups.js',
    edits: [['refills_left: task.refills_left - 1', 'refills_left: task.refills_left']],
  },
  {
    name: 'a deadline passes unseen',
    file: 'rollout/background.js',
    edits: [['await sweepDeadlines(context);', '']],
  },
  {
    name: 'a repeated submit is a conflict',
    file: 'rollout/tasks/submit.js',
    edits: [['return tables.tasks.findByKey(request.idempotency_key);', 'return undefined;']],
  },
  {
    name: 'a cancellation before the submit is forgotten',
    file: 'rollout/tasks/submit.js',
    edits: [['if (await tables.tombstones.has(taskId, nowMs))', 'if (false)']],
  },
  {
    name: 'a restarted server starts its time anew',
    file: 'rollout/service-time.js',
    edits: [['this.currentMs = Math.max(this.nowMs(), storedMs);', 'this.currentMs = this.nowMs();']],
  },
  {
    name: 'a page skips a result',
    file: 'rollout/sessions/results.js',
    edits: [['next: rows.at(-1)?.cursor ?? after', 'next: (rows.at(-1)?.cursor ?? after - 1) + 1']],
  },
  {
    name: 'results count as collected when they are sent',
    file: 'rollout/sessions/results.js',
    edits: [['tables.results.collect(trainer, position.after)', 'tables.results.collect(trainer, 1e9)']],
  },
  {
    name: 'results never count as collected',
    file: 'rollout/sessions/results.js',
    edits: [['await tables.results.collect(trainer, position.after);', ';']],
  },
  {
    name: 'a trainer that does not collect gets more and more',
    file: 'rollout/sessions/scheduling.js',
    edits: [['if (load[what] >= most)', 'if (false)']],
  },
  {
    name: 'the first trainer gets every session',
    file: 'core/fair-shares.js',
    edits: [['/ weight;', '* 0;']],
  },
  {
    name: 'a callback is sent by every server',
    file: 'rollout/callbacks/delivery.js',
    edits: [['time.nowMs() + this.context.config.callback_claim_seconds * 1000', 'time.nowMs()']],
  },
  {
    name: 'a callback counts as delivered whatever the answer',
    file: 'rollout/callbacks/delivery.js',
    edits: [['return status >= 200 && status <= 299;', 'return true;']],
  },
  {
    name: 'each try of a callback has a key of its own',
    file: 'rollout/callbacks/signature.js',
    edits: [['return `floe-task-${row.task_id}`;', 'return `floe-task-${row.task_id}-${row.tries}`;']],
  },
  {
    name: 'a change wakes nobody',
    file: 'rollout/context.js',
    edits: [['context.wakeups.wake(topic);', ';']],
  },
  {
    name: 'a node goes on with what it was told to end',
    file: 'gateway/node/node-agent.js',
    edits: [['?.attempt.stop(reason);', ';']],
  },
  {
    name: 'remains are acknowledged and not kept',
    file: 'rollout/sessions/partials.js',
    edits: [['await tables.results.addDelivery({', 'void ({']],
  },
];

/** The file below `dist` with a defect in it. Throws when the code is no longer what the defect was made for. */
export function withDefect(dist, { name, file, edits }) {
  const before = readFileSync(join(dist, file), 'utf8');
  let text = before;
  for (const [find, replace] of edits) {
    const parts = text.split(find);
    if (parts.length !== 2)
      throw new Error(`"${name}": ${JSON.stringify(find)} stands ${parts.length - 1} times in ${file}`);
    text = parts.join(replace);
  }
  if (text === before) throw new Error(`"${name}" changes nothing in ${file}`);
  return { before, text };
}
