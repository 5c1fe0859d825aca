import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { MIB } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { machineMemoryMb } from '../../../src/gateway/node/machine-memory.ts';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-memory-'));
  mkdirSync(join(dir, 'service', 'gateway'), { recursive: true });
  writeFileSync(join(dir, 'cgroup'), '0::/service/gateway\n');
});
afterEach(() => rmSync(dir, { recursive: true }));

describe('the memory of a machine', () => {
  it('is at most that of the machine', () => {
    expect(machineMemoryMb()).toBeGreaterThan(0);
    expect(machineMemoryMb()).toBeLessThanOrEqual(totalmem() / MIB);
  });

  it.each(['service', 'service/gateway', '.'])('is that of the control group %s, if it has a limit', (group) => {
    for (const each of ['.', 'service', 'service/gateway']) {
      writeFileSync(join(dir, each, 'memory.max'), each === group ? `${16 * MIB}\n` : 'max\n');
    }
    expect(machineMemoryMb(dir, dir)).toBe(16);
  });
});
