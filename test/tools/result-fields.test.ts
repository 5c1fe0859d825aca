import { sessionResultSchema, traceSchema, trajectorySchema } from '@floe-rl/core/schema';
import { expect, it } from 'vitest';
import { completionRecordSchema } from '../../packages/core/src/schema/completion.ts';
import { resultFieldsPage } from '../../tools/reference/result-fields.ts';

it('the page on results has each field once in its list, with a value and a meaning', () => {
  const page = resultFieldsPage();
  const schemas = {
    Result: sessionResultSchema,
    Trajectory: trajectorySchema,
    Trace: traceSchema,
    'Completion record': completionRecordSchema,
  };
  for (const [title, schema] of Object.entries(schemas)) {
    const list = page.split(`## ${title}\n`)[1]?.split('\n## ')[0] ?? '';
    const rows = [...list.matchAll(/^- `([^`]+)` \((.+)\): (.+)$/gm)].map(([, path = '']) => path);
    expect(rows).toEqual(expect.arrayContaining(Object.keys(schema.shape)));
    expect(new Set(rows).size).toBe(rows.length);
  }
  expect(page).toContain('- `role` (`system` or `user` or `assistant` or `tool`): ');
});
