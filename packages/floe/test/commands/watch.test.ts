import type { FloeClient } from '@floe-rl/client';
import type { RolloutEvent } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { watchTask } from '../../src/commands/watch.ts';
import { startTestService, type TestService } from '../../src/testing/index.ts';

let service: TestService;
beforeEach(async () => {
  service = await startTestService();
});
afterEach(async () => {
  vi.restoreAllMocks();
  await service.close();
});

/** Lets the client of the test see no event before `opened` resolves. */
function withLateEvents(client: FloeClient, opened: () => Promise<unknown>): void {
  const events = client.events.bind(client);
  vi.spyOn(client, 'events').mockImplementation(async function* (signal): AsyncGenerator<RolloutEvent> {
    await opened();
    yield* events(signal);
  });
}

const TASK = { instruction: '', agent: { harness: 'shell', custom_shell: 'true' }, max_attempts: 1 } as const;

describe('floe watch', () => {
  it('ends with the task although the stream of events opened after the end', async () => {
    const { client } = service;
    const { task_id: taskId } = await client.submit(TASK);
    withLateEvents(client, () => client.endedTask(taskId));
    const printed = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    await watchTask(client, taskId, false);
    expect(printed.mock.calls.join('')).toContain('no_completions');
    process.exitCode = undefined;
  });

  it('shows the end of a task whose stream of events cannot be opened, and says that the progress is missing', async () => {
    const { client } = service;
    const { task_id: taskId } = await client.submit(TASK);
    withLateEvents(client, () => Promise.reject(new Error('no stream')));
    const printed = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    const noted = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    await watchTask(client, taskId, false);
    expect(printed.mock.calls.join('')).toContain('no_completions');
    expect(noted.mock.calls.join('')).toContain('The progress is no longer shown: no stream');
    process.exitCode = undefined;
  });

  it('prints the changes of the sessions as JSON until the task is completed', async () => {
    const { client } = service;
    const { task_id: taskId } = await client.submit({
      ...TASK,
      agent: { harness: 'shell', custom_shell: 'sleep 0.5' },
    });
    const printed = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    await watchTask(client, taskId, true);
    expect(printed.mock.calls.join('')).toContain('"task.completed"');
    process.exitCode = undefined;
  });
});
