import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { MUTATIONS } from '../../verify/mutations/defects.ts';
import { withDefect } from '../../verify/mutations/mutation.ts';

it.each(MUTATIONS)('the defect "$name" can be planted in the current source', (mutation) => {
  const source = readFileSync(join(repositoryRoot(), mutation.file), 'utf8');
  expect(withDefect(source, mutation)).not.toBe(source);
});
