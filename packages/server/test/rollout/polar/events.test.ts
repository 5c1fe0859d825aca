import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { task, Workbench } from '../workbench.ts';
import { PolarCaller } from './polar-caller.ts';

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

type Frame = { type: string; ts: string; data: Record<string, unknown> };

async function* framesOf(url: string, signal: AbortSignal): AsyncGenerator<Frame> {
  const { body } = await fetch(url, { signal });
  let text = '';
  for await (const chunk of body ?? []) {
    text += Buffer.from(chunk).toString();
    const frames = text.split('\n\n');
    text = frames.pop() ?? '';
    for (const frame of frames) yield JSON.parse(frame.replace(/^data: /, '')) as Frame;
  }
}

describe('the events of the Polar API', () => {
  it('report the life of its tasks in the form of Polar, and no other task', async () => {
    const running = await bench.server({ polar: 'prefix' });
    const url = await running.listen();
    const polar = new PolarCaller(running);
    const end = new AbortController();
    const seen: Frame[] = [];
    for await (const frame of framesOf(`${url}/polar/events`, end.signal)) {
      seen.push(frame);
      if (frame.type === 'hello') {
        await polar.submit(task({ task_id: 'own' }));
        await polar.submitPolar({ task_id: 'seen' });
        for (const lease of await polar.leaseSome(2)) if (lease.task_id !== 'own') await polar.end(lease);
      }
      if (frame.type === 'task.completed') break;
    }
    end.abort();
    expect(seen.map(({ type, data }) => [type, data.status ?? null])).toEqual([
      ['hello', null],
      ['task.created', 'running'],
      ['session.state_changed', 'REGISTERED'],
      ['session.state_changed', 'COMPLETED'],
      ['task.updated', null],
      ['task.completed', 'completed'],
    ]);
    expect(new Set(seen.slice(1).map(({ data }) => data.task_id))).toEqual(new Set(['seen']));
    expect(seen[1]?.data).toMatchObject({ harness: 'shell', model: 'policy', num_samples: 1 });
    expect(seen[4]?.data).toMatchObject({ completed_sessions: 1, total_sessions: 1 });
    expect(Number.isNaN(Date.parse(seen[0]?.ts ?? ''))).toBe(false);
  });
});
