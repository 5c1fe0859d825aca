import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { findEnvironment } from '@floe-rl/agents';
import type { CompletionRecord, SessionResult, Trajectory } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { callsOf } from '../../../../dashboard/src/views/session/calls.ts';
import { resultsOf } from '../../../../verify/envs/results.ts';
import { playedScenarios, startTestService } from '../../../floe/src/testing/index.ts';
import { readRecordings } from '../../src/recordings/files.ts';
import type { Recording } from '../../src/recordings/recording.ts';

let dir: string;
let results: SessionResult[];
/** What `floe trace --json` prints for the first session. */
let traced: { session: unknown; trajectory: Trajectory; completions: CompletionRecord[] };

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'floe-recordings-'));
  const game = { seed: 3, mark: 'Game 3.' };
  const environment = findEnvironment('frozen_lake');
  const service = await startTestService({
    sim: { scenarios: await playedScenarios({ environment, config: {}, ...game }) },
  });
  try {
    const played = {
      instruction: '',
      agent: { harness: 'floe', system_prompt: game.mark, settings: { agent: 'gym' } },
      environment: { type: 'frozen_lake', seed: game.seed },
      evaluator: { strategy: 'environment' },
      runtime: { backend: 'none' },
      max_attempts: 1,
    } as const;
    const failing = { instruction: '', agent: { harness: 'shell', custom_shell: 'exit 3' }, max_attempts: 1 } as const;
    results = await resultsOf(service.client, [played, failing]);
    const id = results[0]?.session_id ?? '';
    const [session, trajectory] = [await service.client.session(id), await service.client.trajectory(id)];
    traced = { session, trajectory, completions: JSON.parse(String(await service.client.completions(id))) };
  } finally {
    await service.close();
  }
}, 120_000);
afterAll(() => rmSync(dir, { recursive: true, force: true }));

function file(name: string, text: string): string {
  const path = join(dir, name);
  writeFileSync(path, text);
  return path;
}

async function read(paths: readonly string[], skipped: string[] = []): Promise<Recording[]> {
  const found: Recording[] = [];
  for await (const recording of readRecordings(paths, (path) => skipped.push(path))) found.push(recording);
  return found;
}

const lines = (values: readonly unknown[]): string => values.map((value) => `${JSON.stringify(value)}\n`).join('');

describe('results of floe in files', () => {
  it('are read from JSON lines, a list, a page of results and a single session', async () => {
    const forms = [
      file('results.jsonl', lines(results)),
      file('list.json', JSON.stringify(results)),
      file('page.json', JSON.stringify({ results, next_cursor: 2 })),
    ];
    for (const form of forms) {
      const found = await read([form]);
      expect(found.map(({ summary }) => summary.session_id)).toEqual(results.map(({ session_id }) => session_id));
    }
    const [single] = await read([file('single.json', JSON.stringify(results[0]))]);
    expect(single?.trajectory).toEqual(results[0]?.trajectory);
  });

  it('have the calls of their traces, with the tokens, messages and training of each reply', async () => {
    const [found] = await read([file('calls.jsonl', lines(results))]);
    const rebuilt = callsOf(found?.records ?? [], found?.trajectory ?? null);
    const original = callsOf(traced.completions, traced.trajectory);
    expect(original.length).toBeGreaterThan(2);
    const shown = ({ record, ...call }: (typeof rebuilt)[number]) => ({
      id: record.completion_id,
      message: record.message,
      ids: record.response_ids,
      logprobs: record.response_logprobs.map(Math.fround),
      versions: record.version_spans,
      link: record.link,
      model: record.model,
      tokens: [record.usage.prompt_tokens, record.usage.completion_tokens],
      messages: call.messages,
      known: call.known,
      tools: call.tools,
      promptLength: call.promptLength,
      keptIds: call.keptIds,
      training: call.training,
    });
    expect(rebuilt.map(shown)).toEqual(original.map(shown));
  });

  it('keep their recorded calls where the file has them', async () => {
    const [found] = await read([file('trace.json', JSON.stringify(traced))]);
    expect(found?.records).toEqual(traced.completions);
    expect(found?.lacks).toEqual(['the harness']);
  });

  it('are found in folders, and files without a session are listed', async () => {
    const folder = mkdtempSync(join(dir, 'folder-'));
    writeFileSync(join(folder, 'a.jsonl'), lines(results));
    writeFileSync(join(folder, 'package.json'), '{"name":"x"}');
    writeFileSync(join(folder, 'notes.txt'), 'not read');
    const skipped: string[] = [];
    expect(await read([folder], skipped)).toHaveLength(results.length);
    expect(skipped).toEqual([join(folder, 'package.json')]);
  });
});

describe('a broken file', () => {
  it('is refused with the line that is half written, after the sessions before it', async () => {
    const text = lines(results);
    const path = file('cut.jsonl', text);
    truncateSync(path, Buffer.byteLength(text) - 100);
    await expect(read([path])).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining(`${path}:${results.length}: is not JSON`),
    });
  });

  it('is refused with the line of the error where it is one value of JSON', async () => {
    const path = file('cut.json', JSON.stringify(results, null, 1).slice(0, 400));
    const cutAt = JSON.stringify(results, null, 1).slice(0, 400).split('\n').length;
    await expect(read([path])).rejects.toThrow(`${path}:${cutAt}: is not JSON`);
  });

  it('is refused with the field that is wrong', async () => {
    const [first] = results;
    const wrong = { ...first, reward: 'high' };
    const unequal = structuredClone(first);
    unequal?.trajectory?.traces[0]?.loss_mask.pop();
    const path = file('wrong.jsonl', lines([first, wrong]));
    await expect(read([path])).rejects.toThrow(`${path}:2: reward:`);
    const short = file('unequal.jsonl', lines([unequal]));
    await expect(read([short])).rejects.toThrow(/unequal\.jsonl:1: trace .* response_ids, .* in loss_mask/);
  });

  it('is refused when it was named and has no session, or has something else after one', async () => {
    await expect(read([file('other.json', '{"name":"x"}')])).rejects.toThrow('other.json: it is no session of floe');
    await expect(read([file('mixed.jsonl', lines([results[0], { a: 1 }]))])).rejects.toThrow('mixed.jsonl:2: it is no');
    await expect(read([file('empty.jsonl', '')])).rejects.toThrow('empty.jsonl is empty');
    await expect(read([join(dir, 'absent.json')])).rejects.toMatchObject({ code: 'setup_failed' });
  });
});
