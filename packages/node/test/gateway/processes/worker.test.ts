import { expect, it } from 'vitest';
import type { ParentOperations } from '../../../src/gateway/processes/protocol.ts';
import { WorkerProcess } from '../../../src/gateway/processes/worker-process.ts';

it('the compiled program of a process of a node starts and answers its parent', { timeout: 60_000 }, async () => {
  const unused = (): Promise<never> => Promise.reject(new Error('the process has called its parent'));
  const operations: ParentOperations = { register: unused, heartbeat: unused, lease: unused, takenOver: unused };
  const worker = new WorkerProcess(operations, {});
  await expect(worker.channel.call('reports', undefined)).rejects.toThrow('the process has not started');
  worker.end();
  expect(await worker.ended).toBe('exit code 0');
});
