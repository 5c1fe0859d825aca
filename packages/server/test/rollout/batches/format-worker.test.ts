import { expect, it } from 'vitest';
import { BatchFormatter } from '../../../src/rollout/batches/formatter.ts';

it('the compiled thread that makes records starts and answers', { timeout: 60_000 }, async () => {
  const formatter = new BatchFormatter();
  const records = await formatter.format([], { format: 'floe' }, 'jsonl');
  expect(records.toString()).toBe('');
  await formatter.close();
});
