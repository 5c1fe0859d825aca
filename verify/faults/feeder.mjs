// Work for a service under fault: tasks of every kind, a bounded number of sessions at a time.
import { setTimeout as sleep } from 'node:timers/promises';
import { curlAgent } from './world.mjs';

/** A generator of pseudo-random numbers from 0 up to 1, so that a run can be repeated. */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class Feeder {
  /** `outstanding`: sessions under way at once; `pauseSeconds`: how long an agent idles, as a real one would wait for its model. */
  constructor(world, trainer, { random, outstanding = 20, pauseSeconds = 0, callbackUrl = null, samples = 5 }) {
    Object.assign(this, { world, trainer, random, outstanding, pauseSeconds, callbackUrl, samples });
    this.number = 0;
    this.submitted = 0;
    this.stopped = false;
    this.cancelling = new Set();
  }

  /** Submits until `total` sessions are promised or `stop` is called. Rejects when the service refuses for good. */
  async run(total = Number.POSITIVE_INFINITY) {
    while (!this.stopped && this.submitted < total) {
      const room = this.outstanding - this.trainer.outstanding().length;
      if (room <= 0) {
        await sleep(10);
        continue;
      }
      await this.submitOne(Math.min(this.samples, total - this.submitted));
    }
    await Promise.all(this.cancelling);
  }

  stop() {
    this.stopped = true;
  }

  async submitOne(samples) {
    const { world, trainer, random } = this;
    const kind = random();
    const id = `task-${world.marker.split('=')[1]}-${this.number++}`;
    const idle = this.pauseSeconds > 0 ? `sleep ${(this.pauseSeconds * random()).toFixed(2)}` : '';
    const task = world.task({
      task_id: id,
      num_samples: samples,
      agent: { custom_shell: curlAgent(1 + Math.floor(random() * 2), idle) },
      ...(kind < 0.1 && samples > 1 ? { early_stop_min_usable_sessions: Math.ceil(samples / 2) } : {}),
      ...(kind >= 0.1 && kind < 0.2 ? { evaluator: null, callback_results: 'summary' } : {}),
      ...(this.callbackUrl !== null && kind > 0.5 ? { callback_url: this.callbackUrl } : {}),
      dispatch_priority: Math.floor(random() * 3),
    });
    await trainer.submit(task);
    this.submitted += samples;
    if (kind >= 0.2 && kind < 0.25) this.cancelSoon(id, random() * 500);
  }

  cancelSoon(id, delayMs) {
    const done = sleep(delayMs)
      .then(() => this.trainer.cancel(id))
      .catch((error) => {
        if (!this.trainer.stopped) this.trainer.wrongs.push(`cancelling ${id}: ${error.code ?? ''} ${error.message}`);
      })
      .finally(() => this.cancelling.delete(done));
    this.cancelling.add(done);
  }
}
