import { sleep } from '../../src/core/clock.ts';
import { asFloeError, FloeError } from '../../src/core/errors.ts';
import type { RouteName } from '../../src/rollout/http/api.ts';
import {
  type ResultsPage,
  type SubmitReply,
  type TaskResult,
  type TaskStatus,
  taskRequestSchema,
} from '../../src/schema/index.ts';
import type { Host } from './network.ts';
import type { TaskPlan, TrainerPlan } from './plan.ts';
import { SimProcess } from './sim-process.ts';
import type { Asked, SimServer } from './sim-server.ts';
import type { World } from './world.ts';

/** Between two tries of a call, ms. */
const RETRY_MS = { from: 50, to: 800 };
/** A cancellation that came first is at most 300 ms old when its task is submitted, and holds for a second at least. */
const TOMBSTONE_SURE_MS = 500;
/** A reader asks again at once; the server holds the request this long, s. */
const READ_WAIT_SECONDS = 4;

/** A trainer: submits, reads, is called back, cancels. It is never killed, but its network is no better than that of others. */
export class Trainer {
  readonly host: Host;
  readonly plan: TrainerPlan;
  /** Of the last result that it has read. */
  cursor = 0;
  /** Tasks that it has not yet brought in, or given up. */
  open: number;
  private readonly world: World;
  private readonly servers: readonly SimServer[];
  private readonly life: SimProcess;
  private server = 0;

  constructor(plan: TrainerPlan, world: World, servers: readonly SimServer[]) {
    this.plan = plan;
    this.world = world;
    this.servers = servers;
    this.host = world.host(plan.name);
    this.life = new SimProcess(plan.name, world.timeline);
    this.host.process = this.life;
    this.open = plan.tasks.length;
  }

  start(): void {
    for (const task of this.plan.tasks) {
      this.world.timeline.after(task.atMs, () => this.doing(this.bringIn(task)));
      const { task_id: taskId } = task.request;
      // A cancellation may come before the task itself; then its id is refused for a while.
      if (task.cancelAtMs !== null && taskId !== undefined) {
        this.world.timeline.after(task.cancelAtMs, () => this.doing(this.cancel(taskId)));
      }
    }
    if (this.plan.reader !== 'none') this.doing(this.read());
  }

  /** Whether its reader reads what another trainer's sessions come to. */
  readsOf(trainer: string): boolean {
    return this.plan.reader === 'all' || (this.plan.reader === 'own' && trainer === this.plan.name);
  }

  /** Answers a callback, as a program of the trainer's owner would: most of the time. */
  async callback(headers: Readonly<Record<string, string>>, body: string, gone: AbortSignal): Promise<number> {
    const { world, life } = this;
    const result = JSON.parse(body) as TaskResult;
    const { dice } = world;
    const refuses = dice.chance(this.plan.refuseCallback) && !world.quiet;
    const hangs = refuses && dice.chance(0.4);
    world.history.calledBack(result.task_id, { key: headers['idempotency-key'] ?? '', body, acknowledged: !refuses });
    world.timeline.note(this.host.name, `is called back for ${result.task_id}${refuses ? ' and refuses' : ''}`);
    if (hangs) await new Promise((resolve) => gone.addEventListener('abort', resolve, { once: true }));
    await sleep(life.clock, dice.between(0, 50));
    return refuses ? 500 : 200;
  }

  private async bringIn(task: TaskPlan): Promise<void> {
    const { history, timeline } = this.world;
    const request = taskRequestSchema.parse(task.request);
    const { idempotency_key: key } = request;
    const name = request.task_id ?? key;
    const refusedBefore = history.cancelled.has(request.task_id ?? '');
    const startedMs = timeline.nowMs;
    try {
      const reply = (await this.insist('submitTask', { id: '', query: undefined, body: request })) as SubmitReply;
      timeline.note(this.host.name, `task ${reply.task_id} is accepted: ${reply.session_ids.join(' ')}`);
      history.accepted(reply.task_id, { trainer: this.plan.name, sessionIds: reply.session_ids, request });
      if (this.world.plan.calm && refusedBefore && timeline.nowMs - startedMs < TOMBSTONE_SURE_MS && !reply.duplicate) {
        timeline.violate('cancelled', `task ${name} was cancelled before it was submitted, and is accepted`);
      }
      if (task.cancelAtMs !== null && request.task_id === undefined)
        await this.cancelAt(task.cancelAtMs, reply.task_id);
      if (task.cancelOneAtMs !== null)
        await this.cancelOne(task.cancelOneAtMs, this.world.dice.pick(reply.session_ids));
    } catch (thrown) {
      const { code, message } = asFloeError(thrown);
      timeline.note(this.host.name, `task ${name} is refused: ${code}`);
      if (code !== 'conflict' || task.cancelAtMs === null) {
        timeline.violate('submits', `task ${name} was refused: ${code}: ${message}`);
      }
    } finally {
      this.open--;
    }
  }

  private async cancelAt(atMs: number, taskId: string): Promise<void> {
    await sleep(this.life.clock, Math.max(0, atMs - this.world.timeline.nowMs));
    await this.cancel(taskId);
  }

  private async cancel(taskId: string): Promise<void> {
    const { history, timeline } = this.world;
    const query = { register_if_missing: true };
    timeline.note(this.host.name, `cancels ${taskId}`);
    const status = (await this.insist('cancelTask', { id: taskId, query, body: undefined })) as TaskStatus;
    if (status.status === 'cancelled') history.cancelled.add(taskId);
    timeline.note(this.host.name, `${taskId} is ${status.status}`);
  }

  private async cancelOne(atMs: number, sessionId: string): Promise<void> {
    await sleep(this.life.clock, Math.max(0, atMs - this.world.timeline.nowMs));
    this.world.timeline.note(this.host.name, `cancels ${sessionId}`);
    const asked = { id: sessionId, query: undefined, body: undefined };
    // It may be over, and removed, by now.
    const view = (await this.insist('cancelSession', asked).catch(ifGone)) as { status: string } | null;
    if (view?.status === 'CANCELLED') this.world.history.cancelled.add(sessionId);
  }

  private async read(): Promise<void> {
    const { world, plan } = this;
    const whose = {
      ...(plan.reader === 'own' ? { trainer: plan.name } : {}),
      ...(plan.named ? { consumer: `${plan.name}-reader` } : {}),
    };
    for (;;) {
      if (plan.readEveryMs > 0) await sleep(this.life.clock, plan.readEveryMs);
      // A reader that was started anew goes on where the server knows it to be.
      const forgot = plan.named && world.dice.chance(0.1);
      if (forgot) this.cursor = 0;
      const position = forgot ? {} : { after: this.cursor };
      const query = { ...whose, ...position, peek: false, limit: world.dice.whole(1, 5), wait: READ_WAIT_SECONDS };
      const page = (await this.insist('getResults', { id: '', query, body: undefined })) as ResultsPage;
      for (const result of page.results) {
        if ((result.cursor ?? 0) <= this.cursor) world.timeline.violate('cursor order', `${result.cursor} came again`);
        world.history.readBy(plan.name, result);
        this.cursor = result.cursor ?? 0;
      }
      if (page.next_cursor < this.cursor) world.timeline.violate('cursor order', 'next_cursor goes back');
      this.cursor = page.next_cursor;
    }
  }

  /** Repeats a call until it is answered; rejects with a refusal that repeating does not change. */
  private async insist<Name extends RouteName>(name: Name, asked: Asked<Name>): Promise<unknown> {
    const { world, life } = this;
    for (;;) {
      const server = this.servers[this.server % this.servers.length] as SimServer;
      try {
        return await world.network.call(life, {
          to: server.host,
          what: name,
          handle: (gone) => server.ask(name, asked, gone),
        });
      } catch (thrown) {
        if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
        this.server++;
        await sleep(life.clock, world.dice.between(RETRY_MS.from, RETRY_MS.to));
      }
    }
  }

  private doing(work: Promise<void>): void {
    work.catch((thrown: unknown) => {
      const { code, message } = asFloeError(thrown);
      this.world.timeline.violate('no defects', `${this.host.name}: ${code}: ${message}`);
    });
  }
}

function ifGone(thrown: unknown): null {
  if (FloeError.is(thrown) && thrown.code === 'not_found') return null;
  throw thrown;
}
