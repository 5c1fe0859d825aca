import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import type { SessionView } from '@floe-rl/core/schema';
import { until } from '../../runner/until.ts';
import { childrenOf, killPid, processesWith } from '../../services/processes.ts';
import { curlAgent, type Service } from '../service.ts';
import { underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

/**
 * Suite S17: a gateway and its spawn helper are killed, which leaves processes of sessions running. The restarted gateway must end these
 * processes, and no processes of another gateway.
 */
export const restart: Suite = {
  id: 'S17',
  title: 'orphans are ended by their own gateway, and no other',
  runs: { full: 100, quick: 4 },
  async run({ runs, random, postgres, progress }) {
    const options = { random, postgres, gateways: 2, feeder: { outstanding: 0, callbacks: false } };
    return underTraffic(options, async (service, trainer) => {
      for (let i = 0; i < runs; i++) {
        progress.show(`S17 ${i + 1} of ${runs}`);
        await oneDeath(service, trainer, i, random);
      }
      return { runs };
    });
  },
};

async function oneDeath(service: Service, trainer: Trainer, number: number, random: RandomSource): Promise<void> {
  const mark = `${service.mark}-r${number}`;
  const marker = `FLOE_RESTART_MARK=${mark}`;
  const task = `task-${mark}`;
  // In its first attempt, the agent starts a process that ignores SIGTERM and SIGHUP and has its own process session (setsid), so that it
  // outlives its gateway. Later attempts end normally.
  const stay = `[ "$FLOE_ATTEMPT" = 1 ] && { (trap '' TERM HUP; setsid sh -c "trap '' TERM HUP; sleep 20" & wait); }; true`;
  const { session_ids: ids } = await trainer.submit(
    service.task({
      task_id: task,
      num_samples: 8,
      agent: {
        harness: 'shell',
        custom_shell: `${curlAgent(1)}; ${stay}`,
        env: { FLOE_FAULT_MARK: service.mark, FLOE_RESTART_MARK: mark },
      },
    }),
  );
  const before = await untilAllCalled(trainer, ids);
  const victim = number % 2;
  const gateway = service.child('gateway', victim);
  const helpers = childrenOf(gateway.pid);
  if (random() < 0.5) for (const pid of helpers) killPid(pid);
  await gateway.kill();
  for (const pid of helpers) killPid(pid);
  await service.startGateway(victim);

  const others = before.filter((view) => view.node_id === `node-${1 - victim}`);
  const after = new Map((await viewsOf(trainer, ids)).map((view) => [view.session_id, view]));
  for (const { session_id, attempt } of others) {
    if (after.get(session_id)?.attempt !== attempt) {
      trainer.violations.push(`session ${session_id} of the living gateway was restarted`);
    }
  }
  if (others.length > 0 && processesWith(marker).length === 0) {
    trainer.violations.push('the living gateway lost its agents');
  }
  // The sessions on the gateway that was not killed have been checked and would run for up to 20 s more, so the task is cancelled.
  await trainer.cancel(task);
  await until(() => ids.every((id) => trainer.results.has(id)), 30_000);
  if (!(await until(() => processesWith(marker).length === 0, 10_000, 50))) {
    trainer.violations.push(`processes of ${mark} are left: ${processesWith(marker).join(', ')}`);
  }
}

/** Waits until each session has made its model call, for at most 20 s, and returns the sessions. */
async function untilAllCalled(trainer: Trainer, ids: readonly string[]): Promise<SessionView[]> {
  const deadlineMs = systemClock.monotonicMs() + 20_000;
  for (;;) {
    const views = await viewsOf(trainer, ids);
    if (views.every((view) => view.turns >= 1) || systemClock.monotonicMs() > deadlineMs) return views;
    await sleep(systemClock, 50);
  }
}

function viewsOf(trainer: Trainer, ids: readonly string[]): Promise<SessionView[]> {
  return Promise.all(ids.map((id) => trainer.client.session(id)));
}
