import { describe, expect, it } from 'vitest';
import { wholeNumber } from '../../../tools/whole-number.ts';
import { simulateLarge } from '../../../verify/control-plane/large-cluster.ts';

describe('the simulation of one large cluster', () => {
  const size = { nodes: 21, sessions: 84, replicas: 2, engines: 8, seed: 3 };

  it('finds no violation, survives the loss of nodes and a server, and gives the same figures again', async () => {
    const lines: string[] = [];
    const { violation, figures } = await simulateLarge(size, (line) => lines.push(line));
    expect(violation).toBeNull();
    expect(lines.some((line) => /^1 nodes with [1-9]\d* sessions die$/.test(line))).toBe(true);
    expect(figures.most_live).toBeGreaterThanOrEqual(size.sessions);
    expect(figures.makespan_over_bound).toBeGreaterThan(1);
    expect(figures.engine_imbalance).toBeGreaterThan(1);
    expect(figures.engine_imbalance).toBeLessThan(size.engines / 2);
    expect(figures.rack_recovery_leases).toBeGreaterThan(0.5);
    expect(figures.replica_recovery_leases).toBeGreaterThan(0);
    expect(figures.lease_p99_ms).toBeGreaterThanOrEqual(figures.lease_p50_ms);
    expect((await simulateLarge(size, () => {})).figures).toEqual(figures);
  });
});

describe('an option of the simulation', () => {
  it.each(['1-600', '', '3.5', '-1', 'x', '1e3', '0'])('is refused with its name when it is %j', (text) => {
    expect(() => wholeNumber('seeds', text)).toThrow('--seeds must be a whole number of at least 1');
  });

  it('is a whole number', () => {
    expect(wholeNumber('seeds', '600')).toBe(600);
    expect(() => wholeNumber('nodes', '1', 2)).toThrow('--nodes must be a whole number of at least 2');
  });
});
