import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, it } from 'vitest';
import { journalModeSchema } from '../../../../src/proxy/journal/journal.ts';
import { indexSegment, readRecords } from '../../../../src/proxy/journal/journal-index.ts';

/** Number of completions that the program has reported as recorded when it is killed. */
const RECORDED = 50;

/** Program that records completions until it is killed. It prints the index of each one when the journal has recorded it. */
const PROGRAM = `
const [packages, directory, mode] = process.argv.slice(1);
const load = (path) => import(packages + '/' + path + '.js');
const { CaptureJournal } = await load('capture/dist/proxy/journal/journal');
const { samplingSchema } = await load('core/dist/schema/index');
const journal = await CaptureJournal.open(directory, { mode });
const capture = { mode: 'chat', logprobs_mode: 'processed', thinking_retention: 'template', spliced_onto: null, rendered_because: 'chat_mode' };
const request = {
  messages: [], messageTexts: [], tools: [], toolsText: '[]', images: new Map(), samplingAsked: {}, toolChoice: null,
  parallelToolCalls: null, constraint: null, sampling: samplingSchema.parse({}), adjusted: [],
};
for (let index = 0; ; index++) {
  await journal.append({
    completionId: 'cpl_' + index, sessionId: 'a', attempt: 0, index, timestampMs: 1_000, dialect: 'anthropic', callKind: 'main',
    thread: 'main', capture, routedExperts: null, engineCallIds: [], request,
    promptIds: Int32Array.of(1, 2, 3), responseIds: Int32Array.of(7), responseLogprobs: Float32Array.of(-0.5),
    versionSpans: [{ version: '1', start: 0, end: 1 }], message: { role: 'assistant', content: 'x'.repeat(5_000) },
    finishReason: 'stop', stop: null, engineId: 'e', model: 'm',
    usage: { prompt_tokens: 3, completion_tokens: 1, cached_tokens: null }, engineMs: 1, totalMs: 2,
    abandoned: false, auxiliary: false, undelivered: false,
  }, []);
  process.stdout.write(index + '\\n');
}
`;

it.each(journalModeSchema.options)(
  'the journal keeps every recorded completion when its process is killed (%s)',
  async (mode) => {
    const directory = await mkdtemp(join(tmpdir(), 'floe-journal-'));
    const args = ['--input-type=module', '-e', PROGRAM, resolve('packages'), directory, mode];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    let reported = -1;
    const lines = createInterface(child.stdout);
    lines.on('line', (line) => {
      reported = Number(line);
      if (reported === RECORDED) child.kill('SIGKILL');
    });
    await Promise.all([once(child, 'exit'), once(lines, 'close')]);
    expect(reported).toBeGreaterThanOrEqual(RECORDED);
    const [name = ''] = await readdir(directory);
    const { locations } = await indexSegment(join(directory, name));
    const { completions, undecodable } = await readRecords(locations.get('a#0') ?? []);
    expect(undecodable).toBe(0);
    expect(completions.length).toBeGreaterThan(reported);
    expect(completions.map(({ index }) => index)).toEqual(completions.map((_, index) => index));
    await rm(directory, { recursive: true });
  },
);
