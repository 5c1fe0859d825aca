import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { callsOf } from '../../../../dashboard/src/views/session/calls.ts';
import { repositoryRoot } from '../../../../tools/repository.ts';
import { startTestService } from '../../../floe/src/testing/index.ts';
import { readRecordings } from '../../src/recordings/files.ts';
import type { Recording } from '../../src/recordings/recording.ts';

/** Files that Inspect and Harbor wrote; make.py beside them has the commands. */
const FILES = join(repositoryRoot(), 'verify', 'fixtures', 'recordings');

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-foreign-'));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

async function read(path: string): Promise<Recording[]> {
  const found: Recording[] = [];
  for await (const recording of readRecordings([path], () => {})) found.push(recording);
  return found;
}

/** The parts of the calls that a page shows: the new messages of each request, and the reply. */
const shownCalls = ({ records, trajectory }: Recording) =>
  callsOf(records, trajectory).map(({ record, messages, known }) => ({
    thread: record.thread,
    asked: messages.slice(known),
    reply: record.message,
  }));

describe.each(['inspect.eval', 'inspect.json'])('a log of Inspect (%s)', (name) => {
  it('has a session for each sample, with its score, messages, tool calls and tokens used', async () => {
    const samples = await read(join(FILES, name));
    const [right, wrong] = samples;
    expect(samples.map(({ summary }) => [summary.sample_index, summary.reward, summary.outcome])).toEqual([
      [0, 1, 'completed'],
      [1, 0, 'completed'],
    ]);
    expect(right?.summary.task_id).toBe(wrong?.summary.task_id);
    expect(right?.summary).toMatchObject({
      reward_components: { includes: 1 },
      reward_details: { includes: 'The answer is 3.' },
      unusable: 'no_tokens',
      metadata: { data_source: 'sums', model: 'mockllm/model', target: '3' },
    });
    expect(right?.lacks).toEqual(['token ids', 'log-probabilities', 'what is trained', 'policy versions']);
    const [first, second] = right === undefined ? [] : shownCalls(right);
    expect(first).toMatchObject({
      asked: [
        { role: 'system', content: 'You add.' },
        { role: 'user', content: 'What is 1 + 2?' },
      ],
      reply: { tool_calls: [{ function: { name: 'add', arguments: '{"x":1,"y":2}' } }] },
    });
    expect(second).toMatchObject({
      asked: [{ role: 'tool', content: '3' }],
      reply: { content: 'The answer is 3.' },
    });
    const [record] = right?.records ?? [];
    expect(record).toMatchObject({ usage: { prompt_tokens: 12, completion_tokens: 7 }, finish_reason: 'tool_calls' });
    expect(record?.request.tools).toMatchObject([{ type: 'function', function: { name: 'add' } }]);
    expect(new Date(right?.endedMs ?? 0).getUTCFullYear()).toBe(2026);
  });
});

describe('a trajectory in ATIF', () => {
  it('has the messages, tool calls, tokens and sub-agents of the run, and the rewards of its trial', async () => {
    const [run, ...others] = await read(join(FILES, 'trial', 'agent', 'trajectory.json'));
    expect(others).toEqual([]);
    if (run === undefined) throw new Error('nothing was read');
    expect(run).toMatchObject({
      harness: 'terminus-2',
      endedMs: Date.parse('2026-01-01T00:01:00Z'),
      lacks: ['what is trained', 'policy versions', 'durations of the calls'],
      summary: {
        session_id: expect.stringMatching(/^trial-one-[0-9a-f]{12}$/),
        task_id: 'list-files',
        reward: 0.5,
        reward_components: { reward: 0.5, tests: 1 },
        timing: { running_ms: 10_000 },
      },
    });
    expect(shownCalls(run)).toMatchObject([
      {
        thread: 'main',
        asked: [{ role: 'system' }, { role: 'user', content: 'List the files.' }],
        reply: {
          reasoning_content: 'Use ls.',
          tool_calls: [{ id: 'c1', function: { arguments: '{"command":"ls"}' } }],
        },
      },
      {
        asked: [{ role: 'tool', tool_call_id: 'c1', content: 'a.txt\nb.txt' }],
        reply: { content: 'There are two files.' },
      },
      {
        asked: [{ role: 'user', content: [{ text: 'screen' }, { image_url: { url: 'screen.png' } }] }],
        reply: { content: 'Done.' },
      },
      { thread: 'helper-1', asked: [{ content: 'Count the files.' }], reply: { content: 'There are 2.' } },
    ]);
    const [first, second] = callsOf(run.records, null);
    expect(first?.record).toMatchObject({
      response_ids: [4, 5],
      response_logprobs: [-0.5, -0.25],
      model: 'some/model',
    });
    expect([second?.promptLength, second?.keptIds, second?.record.prompt.ids]).toEqual([7, 5, [6, 7]]);
  });

  it('has the outcome of a trial that failed', async () => {
    const folder = mkdtempSync(join(dir, 'trial-'));
    const trial = JSON.parse(readFileSync(join(FILES, 'trial', 'result.json'), 'utf8'));
    const exception_info = { exception_type: 'AgentTimeoutError', exception_message: 'after 60 s' };
    writeFileSync(join(folder, 'result.json'), JSON.stringify({ ...trial, verifier_result: null, exception_info }));
    const agent = join(folder, 'agent');
    mkdirSync(agent);
    copyFileSync(join(FILES, 'trial', 'agent', 'trajectory.json'), join(agent, 'trajectory.json'));
    const [run] = await read(folder);
    expect(run?.summary).toMatchObject({
      outcome: 'agent_timeout',
      reward: null,
      error: { message: 'AgentTimeoutError: after 60 s' },
    });
    expect(run?.lacks).toContain('a reward');
  });
});

describe('a result of Polar', () => {
  it('has the traces, rewards and messages of its sessions', async () => {
    const service = await startTestService({ server: { polar: 'prefix' } });
    try {
      const said = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'Hello?' }] });
      const call = `curl -sSf $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '${said}'`;
      const task = {
        task_id: 'polar-task',
        instruction: '',
        num_samples: 2,
        runtime: { backend: 'local' },
        agent: { harness: 'shell', custom_shell: call },
        builder: { strategy: 'prefix_merging' },
        evaluator: { strategy: 'session_completed' },
      };
      const submitted = await fetch(`${service.url}/polar/rollout/task/submit`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(task),
      });
      expect(submitted.status).toBe(200);
      const [own] = await service.client.tasks();
      await service.client.endedTask(own?.task_id ?? '');
      const text = await (await fetch(`${service.url}/polar/rollout/task/polar-task`)).text();
      writeFileSync(join(dir, 'polar.json'), text);
      const results = await service.client.taskResults(own?.task_id ?? '');
      const found = await read(join(dir, 'polar.json'));
      expect(found.map(({ format, summary }) => [format, summary.task_id, summary.outcome, summary.reward])).toEqual(
        Array(2).fill(['polar', 'polar-task', 'completed', 1]),
      );
      const wanted = results.find(({ session_id: id }) => id === found[0]?.summary.session_id)?.trajectory?.traces[0];

      expect(found[0]?.trajectory?.traces[0]?.response_ids).toEqual(wanted?.response_ids);
      const [shown] = callsOf(found[0]?.records ?? [], found[0]?.trajectory ?? null);
      expect(shown?.record.message).toEqual(wanted?.response_messages[0]);
      expect(shown?.training).toMatchObject({ reward: 1, mask: wanted?.loss_mask });
    } finally {
      await service.close();
    }
  });
});

describe('a broken file of another system', () => {
  it('is refused with its entry and field', async () => {
    const cut = join(dir, 'cut.eval');
    copyFileSync(join(FILES, 'inspect.eval'), cut);
    truncateSync(cut, 5_000);
    await expect(read(cut)).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining('cut.eval: is no complete ZIP file'),
    });
    const damaged = join(dir, 'damaged.eval');
    const bytes = readFileSync(join(FILES, 'inspect.eval'));
    bytes.fill(0, 1_500, 1_520);
    writeFileSync(damaged, bytes);
    await expect(read(damaged)).rejects.toThrow(/damaged\.eval: .*\.json (is damaged|cannot be unpacked)/);
    const far = join(dir, 'far.eval');
    for (const offset of [200n, 2n ** 53n, 2n ** 64n - 1n]) {
      writeFileSync(far, zipWithListAt(offset));
      await expect(read(far)).rejects.toMatchObject({ code: 'schema_violation' });
    }
    const atif = JSON.parse(readFileSync(join(FILES, 'trial', 'agent', 'trajectory.json'), 'utf8'));
    atif.steps[1].source = 'machine';
    const wrong = join(dir, 'wrong.json');
    writeFileSync(wrong, JSON.stringify(atif));
    await expect(read(wrong)).rejects.toThrow('wrong.json: steps.1.source:');
  });
});

/** Returns the end of a ZIP64 file. It states that the record with the list of entries is at `offset`. */
function zipWithListAt(offset: bigint): Buffer {
  const bytes = Buffer.alloc(142);
  bytes.writeUInt32LE(0x07064b50, 100);
  bytes.writeBigUInt64LE(offset, 108);
  bytes.writeUInt32LE(0x06054b50, 120);
  return bytes;
}
