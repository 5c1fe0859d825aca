import { execFileSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { letHeapGrow } from '../../../src/up/heap-growth.ts';

it('letHeapGrow sets an option that this version of V8 has', () => {
  const options = execFileSync(process.execPath, ['--v8-options'], { encoding: 'utf8' });
  expect(options).toContain('--heap-growing-percent');
  letHeapGrow();
});
