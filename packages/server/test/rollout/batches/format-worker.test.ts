import { expect, it } from 'vitest';
import { BatchFormatter } from '../../../src/rollout/batches/formatter.ts';

it('the compiled thread that makes records starts and answers', { timeout: 60_000 }, async () => {
  const formatter = new BatchFormatter();
  const records = await formatter.format([], { format: 'floe' }, 'jsonl');
  expect(records.toString()).toBe('');
  await formatter.close();
});

it('the thread that makes records rejects with the error of a format, and in progress when it is closed', {
  timeout: 60_000,
}, async () => {
  const formatter = new BatchFormatter();
  await expect(formatter.format([], { format: 'no such' as 'floe' }, 'jsonl')).rejects.toMatchObject({
    code: 'unsupported',
  });
  const running = formatter.format([], { format: 'floe' }, 'jsonl');
  await Promise.all([
    expect(running).rejects.toThrow('the thread that makes records failed: it ended; request a smaller batch'),
    formatter.close(),
  ]);
});
