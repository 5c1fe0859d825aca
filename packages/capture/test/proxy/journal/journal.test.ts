import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { samplingSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type OpenAppendFile, openAppendFile, readFrames } from '../../../src/proxy/journal/append-file.ts';
import { CaptureJournal, type CaptureJournalOptions } from '../../../src/proxy/journal/journal.ts';
import { decodeCompletion } from '../../../src/tokens/codec.ts';
import type { Completion } from '../../../src/tokens/completion.ts';
import { NO_IMAGES } from '../../../src/tokens/images.ts';

let directory: string;
let journal: CaptureJournal | null = null;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'floe-journal-'));
});
afterEach(async () => {
  await journal?.close();
  journal = null;
  await rm(directory, { recursive: true });
});

async function open(options: CaptureJournalOptions = {}): Promise<CaptureJournal> {
  journal = await CaptureJournal.open(directory, options);
  return journal;
}

const segments = async (): Promise<string[]> => (await readdir(directory)).sort().map((name) => join(directory, name));

/**
 * Reads the completions of one segment file of the journal. `known` contains completions of earlier segments, to which records may refer.
 */
async function readSegment(path: string, known: Map<string, Completion> = new Map()) {
  const { frames, ...rest } = readFrames(await readFile(path));
  const completions = frames.map((frame) => {
    const completion = decodeCompletion(frame, (id) => known.get(id));
    known.set(completion.completionId, completion);
    return completion;
  });
  return { completions, ...rest };
}

async function readAll(): Promise<Completion[]> {
  const known = new Map<string, Completion>();
  const all: Completion[] = [];
  for (const path of await segments()) all.push(...(await readSegment(path, known)).completions);
  return all;
}

function completion(session: string, index: number, promptIds: number[] = [1, 2, 3]): Completion {
  return {
    completionId: `cpl_${session}_${index}`,
    sessionId: session,
    attempt: 0,
    index,
    timestampMs: 1_000,
    dialect: 'anthropic',
    callKind: 'main',
    thread: 'main',
    capture: {
      mode: 'chat',
      logprobs_mode: 'processed',
      thinking_retention: 'template',
      spliced_onto: null,
      rendered_because: 'chat_mode',
    },
    routedExperts: null,
    engineCallIds: [],
    request: {
      messages: [{ role: 'user', content: 'hi' }],
      messageTexts: ['{"role":"user","content":"hi"}'],
      tools: [],
      toolsText: '[]',
      images: NO_IMAGES,
      samplingAsked: {},
      toolChoice: null,
      parallelToolCalls: null,
      constraint: null,
      sampling: samplingSchema.parse({}),
      adjusted: [],
    },
    promptIds: Int32Array.from(promptIds),
    responseIds: Int32Array.of(7, 8),
    responseLogprobs: Float32Array.of(-0.5, -0.25),
    versionSpans: [{ version: '1', start: 0, end: 2 }],
    message: { role: 'assistant', content: 'hello' },
    finishReason: 'stop',
    stop: { kind: 'token', id: 8 },
    engineId: 'e',
    model: 'm',
    usage: { prompt_tokens: promptIds.length, completion_tokens: 2, cached_tokens: null },
    engineMs: 1,
    totalMs: 2,
    abandoned: false,
    auxiliary: false,
    undelivered: false,
  };
}

/** Returns a function that opens files, and the list of their writes. Each write waits until the test lets it succeed or fail. */
function heldFiles(): {
  openFile: OpenAppendFile;
  writes: { data: Buffer; go: (error?: Error) => void }[];
  next: () => Promise<void>;
} {
  const writes: { data: Buffer; go: (error?: Error) => void }[] = [];
  let wake = (): void => {};
  const openFile: OpenAppendFile = async (path) => {
    const file = await openAppendFile(path);
    return {
      close: () => file.close(),
      append: (data) =>
        new Promise((resolve, reject) => {
          const go = (error?: Error): void => (error ? reject(error) : void file.append(data).then(resolve, reject));
          writes.push({ data, go });
          wake();
        }),
    };
  };
  const next = (): Promise<void> =>
    new Promise((resolve) => {
      wake = resolve;
    });
  return { openFile, writes, next };
}

describe('the journal', () => {
  it('contains a completion once its append has resolved, and shared parts once', async () => {
    await open();
    const first = completion('a', 0);
    const second = completion('a', 1, [1, 2, 3, 7, 8, 9]);
    await journal?.append(first, []);
    await journal?.append(second, [first]);
    expect(await readAll()).toEqual([first, second]);
  });

  it('writes waiting records as one batch and resolves none before its batch is on the disk', async () => {
    const files = heldFiles();
    const log = await open({ openFile: files.openFile });
    const order: string[] = [];
    const append = (name: string) => log.append(completion(name, 0), []).then(() => order.push(name));
    const arrived = files.next();
    const first = append('a');
    await arrived;
    const rest = [append('b'), append('c')];
    expect(files.writes).toHaveLength(1);
    expect(order).toEqual([]);
    const again = files.next();
    files.writes[0]?.go();
    await first;
    await again;
    expect(files.writes).toHaveLength(2);
    files.writes[1]?.go();
    await Promise.all(rest);
    expect(order).toEqual(['a', 'b', 'c']);
    expect((await readAll()).map(({ sessionId }) => sessionId)).toEqual(['a', 'b', 'c']);
  });

  it.each(['ENOSPC', 'EIO'])(
    'rejects exactly the records of a failed write (%s) and continues in a new file',
    async (code) => {
      const files = heldFiles();
      const log = await open({ openFile: files.openFile });
      let arrived = files.next();
      const failed = log.append(completion('a', 0), []);
      await arrived;
      const later = log.append(completion('b', 0), []);
      arrived = files.next();
      files.writes[0]?.go(Object.assign(new Error('disk'), { code }));
      await expect(failed).rejects.toMatchObject({ code: 'store_unavailable' });
      await arrived;
      files.writes[1]?.go();
      await later;
      expect(await segments()).toHaveLength(2);
      expect((await readAll()).map(({ sessionId }) => sessionId)).toEqual(['b']);
    },
  );

  it('reports a full disk', async () => {
    const log = await open({
      // Opens the device /dev/full instead, on which every write fails with ENOSPC.
      openFile: async () => {
        const { open: openHandle } = await import('node:fs/promises');
        const handle = await openHandle('/dev/full', 'w');
        return { append: async (data) => void (await handle.write(data)), close: () => handle.close() };
      },
    });
    await expect(log.append(completion('a', 0), [])).rejects.toMatchObject({
      code: 'store_unavailable',
      message: expect.stringContaining('ENOSPC'),
    });
  });

  it('deletes a full segment once every attempt in it is released', async () => {
    const log = await open({ segmentBytes: 1 });
    await log.append(completion('a', 0), []);
    await log.append(completion('b', 0), []);
    await log.append(completion('a', 1), []);
    expect(await segments()).toHaveLength(3);
    await log.release('b', 0);
    expect(await segments()).toHaveLength(2);
    await log.release('a', 1);
    expect(await segments()).toHaveLength(2);
    await log.release('a', 0);
    expect(await segments()).toEqual([]);
  });

  it.each([
    ['of different sessions', completion('a', 0), completion('b', 0), completion('c', 0)],
    [
      'of one session',
      completion('a', 0),
      { ...completion('a', 1), attempt: 1 },
      { ...completion('a', 2), attempt: 2 },
    ],
  ])('keeps a full segment until the last of several attempts %s in it is released', async (_, ...written) => {
    const files = heldFiles();
    const log = await open({ segmentBytes: 1, openFile: files.openFile });
    let arrived = files.next();
    const first = log.append(completion('first', 0), []);
    await arrived;
    arrived = files.next();
    const appended = written.map((one) => log.append(one, []));
    files.writes[0]?.go();
    await first;
    await arrived;
    files.writes[1]?.go();
    await Promise.all(appended);
    await log.release('first', 0);
    expect(await segments()).toHaveLength(1);
    for (const { sessionId, attempt } of written) {
      expect(await readAll()).toEqual(written);
      await log.release('unknown', attempt);
      await log.release(sessionId, 99);
      expect(await readAll()).toEqual(written);
      await log.release(sessionId, attempt);
    }
    expect(await segments()).toEqual([]);
  });

  it('keeps a segment that is not full when all attempts in it are released, because later records are written to it', async () => {
    const log = await open();
    await log.append(completion('a', 0), []);
    await log.release('a', 0);
    expect(await segments()).toHaveLength(1);
    const later = completion('b', 0);
    await log.append(later, []);
    expect(await readAll()).toEqual([completion('a', 0), later]);
    await log.release('b', 0);
    await log.close();
    expect(await segments()).toEqual([]);
  });

  it('removes a segment once when its last attempt is released while it is being closed', async () => {
    const released: Promise<void>[] = [];
    const openFile: OpenAppendFile = async (path) => {
      const file = await openAppendFile(path);
      return {
        append: (data) => file.append(data),
        close: () => {
          released.push(log.release('a', 0));
          return file.close();
        },
      };
    };
    const log = await open({ openFile });
    await log.append(completion('a', 0), []);
    await log.close();
    await Promise.all(released);
    expect(released).toHaveLength(1);
    expect(await segments()).toEqual([]);
  });

  it('keeps unreleased segments when it is closed, and does not touch those of an earlier process', async () => {
    const log = await open();
    await log.append(completion('a', 0), []);
    await log.append(completion('b', 0), []);
    await log.release('a', 0);
    await log.close();
    await log.close();
    await expect(log.append(completion('c', 0), [])).rejects.toMatchObject({ code: 'store_unavailable' });
    const left = await segments();
    const next = await open();
    expect(next.earlierSegments).toEqual(left);
    await next.append(completion('c', 0), []);
    await next.release('c', 0);
    await next.close();
    expect(await segments()).toEqual(left);
    expect((await readAll()).map(({ sessionId }) => sessionId)).toEqual(['a', 'b']);
  });

  it('yields every record before a cut at any byte, and reports damage', async () => {
    const log = await open();
    const all = Array.from({ length: 4 }, (_, i) => completion('a', i, [1, 2, 3, i]));
    const ends: number[] = [];
    const [path] = await (async () => {
      for (const [i, one] of all.entries()) {
        await log.append(one, all.slice(0, i));
        ends.push((await readFile((await segments())[0] as string)).length);
      }
      return segments();
    })();
    await log.close();
    const whole = await readFile(path as string);
    await fc.assert(
      fc.asyncProperty(fc.nat(whole.length), async (cut) => {
        await writeFile(path as string, whole);
        await truncate(path as string, cut);
        const reading = await readSegment(path as string);
        const kept = ends.filter((end) => end <= cut).length;
        expect(reading.completions).toEqual(all.slice(0, kept));
        expect(reading.tornBytes).toBe(cut - (ends[kept - 1] ?? 0));
        expect(reading.corrupt).toEqual([]);
      }),
      { numRuns: 60 },
    );
    const damaged = Buffer.from(whole);
    damaged.writeUInt8(damaged.readUInt8(40) ^ 1, 40);
    await writeFile(path as string, damaged);
    await expect(
      readSegment(path as string, new Map([[all[0]?.completionId as string, all[0] as Completion]])),
    ).resolves.toMatchObject({
      corrupt: [{ start: 0, end: ends[0] }],
    });
  });

  it('rejects with `store_unavailable` when it cannot be opened', async () => {
    await writeFile(join(directory, 'file'), '');
    await expect(CaptureJournal.open(join(directory, 'file', 'x'))).rejects.toMatchObject({
      code: 'store_unavailable',
    });
  });
});
