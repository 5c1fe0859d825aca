import { describe, expect, it } from 'vitest';
import { rolloutConfigSchema } from '../../src/rollout/config.ts';

describe('the settings of a server', () => {
  it('each have a description', () => {
    const settings = Object.entries(rolloutConfigSchema.shape);
    expect(settings.filter(([, { description = '' }]) => description === '').map(([name]) => name)).toEqual([]);
  });
});
