import { MIB, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import type { AppendFile, UnsyncedFile } from '../../../src/proxy/journal/append-file.ts';
import { batchedFiles, MAX_UNSYNCED_BYTES, SYNC_DELAY_MS } from '../../../src/proxy/journal/batched-file.ts';

/** A file on a simulated disk. A loss of power leaves only `durable`. */
class SimulatedFile implements UnsyncedFile {
  readonly written: string[] = [];
  durable: readonly string[] = [];
  syncs = 0;
  closed = false;
  failure: Error | null = null;
  private readonly held: (() => void)[] = [];
  holdsSyncs = false;

  async append(data: Buffer): Promise<void> {
    this.written.push(data.toString());
  }

  async sync(): Promise<void> {
    this.syncs++;
    const synced = [...this.written];
    if (this.holdsSyncs) await new Promise<void>((resolve) => this.held.push(resolve));
    if (this.failure !== null) throw this.failure;
    this.durable = synced;
  }

  endSync(): void {
    this.held.shift()?.();
  }

  async close(): Promise<void> {
    this.closed = true;
  }
}

async function opened(): Promise<{ file: AppendFile; disk: SimulatedFile; clock: VirtualClock; tookMs: number[] }> {
  const disk = new SimulatedFile();
  const clock = new VirtualClock();
  const tookMs: number[] = [];
  const open = batchedFiles({ clock, onSync: (ms) => tookMs.push(ms), openFile: async () => disk });
  return { file: await open('unused'), disk, clock, tookMs };
}

/** Lets everything run that waits for promises only. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('a file that is synced in batches', () => {
  it('loses with the power only what was appended in the last moments, and syncs many appends at once', async () => {
    const { file, disk, clock, tookMs } = await opened();
    await file.append(Buffer.from('a'));
    clock.advance(SYNC_DELAY_MS - 1);
    await file.append(Buffer.from('b'));
    expect(disk).toMatchObject({ written: ['a', 'b'], durable: [] });
    clock.advance(1);
    await settled();
    expect(disk.durable).toEqual(['a', 'b']);
    await file.append(Buffer.from('c'));
    expect(disk.durable).toEqual(['a', 'b']);
    clock.advance(SYNC_DELAY_MS);
    await settled();
    expect(disk).toMatchObject({ durable: ['a', 'b', 'c'], syncs: 2 });
    expect(tookMs).toEqual([0, 0]);
    clock.advance(10 * SYNC_DELAY_MS);
    expect(disk.syncs).toBe(2);
  });

  it('syncs again what was appended while a sync was running', async () => {
    const { file, disk, clock } = await opened();
    disk.holdsSyncs = true;
    await file.append(Buffer.from('a'));
    clock.advance(SYNC_DELAY_MS);
    await file.append(Buffer.from('b'));
    clock.advance(SYNC_DELAY_MS);
    expect(disk.syncs).toBe(1);
    disk.endSync();
    await settled();
    expect(disk.durable).toEqual(['a']);
    clock.advance(SYNC_DELAY_MS);
    disk.endSync();
    await settled();
    expect(disk).toMatchObject({ durable: ['a', 'b'], syncs: 2 });
  });

  it('lets an append wait for a sync when a slow disk has too many unsynced bytes', async () => {
    const { file, disk } = await opened();
    disk.holdsSyncs = true;
    await file.append(Buffer.alloc(MAX_UNSYNCED_BYTES - 1));
    await file.append(Buffer.alloc(MIB));
    const waiting = file.append(Buffer.from('last'));
    await settled();
    expect(disk).toMatchObject({ syncs: 1 });
    expect(disk.written).toHaveLength(2);
    disk.endSync();
    await waiting;
    expect(disk.written).toHaveLength(3);
    expect(disk.durable).toHaveLength(2);
  });

  it('rejects every append and the close after a sync that failed', async () => {
    const { file, disk, clock } = await opened();
    disk.failure = new Error('EIO');
    await file.append(Buffer.from('a'));
    clock.advance(SYNC_DELAY_MS);
    await settled();
    await expect(file.append(Buffer.from('b'))).rejects.toThrow('EIO');
    await expect(file.close()).rejects.toThrow('EIO');
    expect(disk).toMatchObject({ written: ['a'], closed: true, syncs: 1 });
  });

  it('syncs what is left when it is closed', async () => {
    const { file, disk, clock } = await opened();
    await file.append(Buffer.from('a'));
    await file.close();
    expect(disk).toMatchObject({ durable: ['a'], closed: true, syncs: 1 });
    clock.advance(SYNC_DELAY_MS);
    expect(disk.syncs).toBe(1);
  });
});
