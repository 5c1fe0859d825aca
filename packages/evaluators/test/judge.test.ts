import { FloeError, systemClock } from '@floe-rl/core';
import { type ChatMessage, evaluatorSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import type { EvaluatedSession, Evaluation } from '../src/evaluator.ts';
import type { JudgeReply, JudgeRequest } from '../src/judge.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { sessionOf } from './evaluated-session.ts';

type Answer = string | FloeError;

const OVERFLOW = new FloeError('engine_rejected', 'the prompt is too long', { context_overflow: true });

/** Judges a session with the replies in `answers`. The last reply is repeated. */
async function judge(
  answers: readonly Answer[],
  config: Record<string, unknown> = {},
  session: EvaluatedSession = sessionOf('my answer'),
  signal = new AbortController().signal,
) {
  const requests: JudgeRequest[] = [];
  const sample = async (request: JudgeRequest): Promise<JudgeReply> => {
    requests.push(request);
    const answer = answers[Math.min(requests.length, answers.length) - 1] as Answer;
    if (typeof answer !== 'string') throw answer;
    return { text: answer, promptTokens: 100, completionTokens: 20, model: 'judge-model', engineId: 'eng_1' };
  };
  const spec = {
    strategy: 'judge',
    config: { rubric: 'Is it polite? {{answer}}', ...config },
    env: {},
    refresh_runtime: null,
  };
  const context = { spec, status: 'COMPLETED' as const, runtime: {} as Runtime, freshRuntime: null, session };
  const evaluator = evaluatorRegistry(systemClock, { judge: { sample } }).get('judge');
  const evaluation: Promise<Evaluation> = evaluator.evaluate(context, signal);
  return { requests, evaluation };
}

/** Returns the messages of the only request that the judge makes for a session. */
async function promptOf(config: Record<string, unknown>, session: EvaluatedSession): Promise<string[]> {
  const { requests, evaluation } = await judge(['{"score": 1}'], config, session);
  await evaluation;
  expect(requests).toHaveLength(1);
  return (requests[0]?.messages ?? []).map(({ content }) => String(content));
}

describe('the evaluator judge', () => {
  it('gives the place of the score between the bounds, with the reason and the tokens of its calls', async () => {
    const { evaluation, requests } = await judge(['{"score": 4, "reason": "short"}'], {
      min: 2,
      max: 12,
      max_tokens: 50,
    });
    expect(await evaluation).toEqual({
      reward: 0.2,
      components: { score: 4 },
      details: {
        ...{ score: 4, reason: 'short', model: 'judge-model', engine_id: 'eng_1' },
        judge: { calls: 1, prompt_tokens: 100, completion_tokens: 20 },
      },
    });
    expect(requests).toMatchObject([
      { pool: 'judge', maxTokens: 50, temperature: 0, seed: 0, callId: '1.judge.0', sessionId: 'ses_1' },
    ]);
  });

  it('reads a JSON object in a code block', async () => {
    const { evaluation } = await judge(['```json\n{"score": 10}\n```\n']);
    expect(await evaluation).toMatchObject({ reward: 1, details: { reason: null } });
  });

  it.each([
    ['no JSON', 'I give it 7'],
    ['JSON after other text', 'Score: {"score": 7}'],
    ['a score above the highest', '{"score": 11}'],
    ['a score below the lowest', '{"score": -1}'],
    ['a score as text', '{"score": "7"}'],
    ['no score', '{"reason": "x"}'],
    ['another field', '{"score": 7, "passed": true}'],
    ['two objects', '{"score": 7}{"score": 8}'],
    ['nothing', ''],
  ])('asks again, less deterministically, after a reply with %s', async (_, reply) => {
    const { evaluation, requests } = await judge([reply, '{"score": 7}']);
    expect(await evaluation).toMatchObject({ reward: 0.7, details: { judge: { calls: 2, prompt_tokens: 200 } } });
    expect(requests.map(({ seed, temperature }) => [seed, temperature])).toEqual([
      [0, 0],
      [1, 0.7],
    ]);
  });

  it('has no reward when no reply can be read, unless the task declares that the agent can cause that', async () => {
    const { evaluation, requests } = await judge(['no'], { attempts: 2 });
    await expect(evaluation).rejects.toMatchObject({
      code: 'evaluator_failed',
      details: { judge: { calls: 2, completion_tokens: 40 } },
    });
    expect(requests).toHaveLength(2);
    const declared = await judge(['no'], { agent_failures: ['unreadable_reply'] });
    expect(await declared.evaluation).toMatchObject({
      reward: 0,
      details: { failure: 'unreadable_reply', judge: { calls: 3 } },
    });
  });

  it('makes no call that would exceed its limit of tokens', async () => {
    const { evaluation, requests } = await judge(['no'], { attempts: 9, max_tokens: 100, max_session_tokens: 1_100 });
    await expect(evaluation).rejects.toThrow(/the limit of 1100 tokens/);
    // Each call used 120 tokens, and another may need 200.
    expect(requests).toHaveLength(8);
  });

  it('halves the texts of the agent until they fit into the context of the judge', async () => {
    const session = sessionOf('x'.repeat(3_000));
    const { evaluation, requests } = await judge([OVERFLOW, OVERFLOW, '{"score": 5}'], { max_chars: 2_000 }, session);
    expect(await evaluation).toMatchObject({ reward: 0.5, details: { judge: { calls: 3, prompt_tokens: 100 } } });
    const lengths = requests.map(({ messages }) => [...String(messages[1]?.content).matchAll(/x/g)].length);
    expect(lengths).toEqual([2_000, 1_000, 500]);
    const never = await judge([OVERFLOW], { max_chars: 2_000 }, session);
    await expect(never.evaluation).rejects.toMatchObject({ code: 'evaluator_failed' });
  });

  it.each(['engine_unavailable', 'engine_error', 'engine_rejected', 'overloaded'] as const)(
    'has no reward when the engine fails with %s, and the session is not repeated for that',
    async (code) => {
      const { evaluation, requests } = await judge([new FloeError(code, 'it is gone')]);
      await expect(evaluation).rejects.toMatchObject({
        code: 'evaluator_failed',
        message: expect.stringContaining(code),
      });
      expect(requests).toHaveLength(1);
    },
  );

  it('ends with the reason of its signal', async () => {
    const controller = new AbortController();
    const late = new FloeError('deadline_exceeded', 'the budget is used up');
    controller.abort(late);
    const { evaluation } = await judge([new FloeError('cancelled', 'aborted')], {}, sessionOf(), controller.signal);
    await expect(evaluation).rejects.toBe(late);
  });

  it('has no reward in a process without engines', async () => {
    const spec = evaluatorSpecSchema.parse({ strategy: 'judge', config: { rubric: '{{answer}}' } });
    const context = {
      spec,
      status: 'COMPLETED' as const,
      runtime: {} as Runtime,
      freshRuntime: null,
      session: sessionOf(),
    };
    const evaluation = evaluatorRegistry().get('judge').evaluate(context, new AbortController().signal);
    await expect(evaluation).rejects.toMatchObject({ code: 'evaluator_failed' });
  });
});

describe('the prompt of a judge', () => {
  const calls = [{ id: 'c', type: 'function' as const, function: { name: 'bash', arguments: '{"command":"ls"}' } }];
  const messages: ChatMessage[] = [
    { role: 'system', content: 'a secret system prompt' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'Do it.' },
        { type: 'image_url', image_url: { url: 'floe-image:1' } },
      ],
    },
    { role: 'assistant', content: null, tool_calls: calls, reasoning_content: 'a hidden thought' },
    { role: 'tool', tool_call_id: 'c', content: 'a.txt' },
    { role: 'assistant', content: 'There is {{metadata.solution}}.' },
  ];

  it('has the bounds, and the texts for which the rubric has placeholders', async () => {
    const session = sessionOf('fine', { instruction: 'Sum up.', metadata: { row: { answers: [1, 2] } } });
    const rubric = 'Task: {{instruction}}\nRight: {{ metadata.row.answers }}\n{{answer}}';
    const [system, user] = await promptOf({ rubric, min: -1, max: 1 }, session);
    expect(system).toContain('<number from -1 to 1>');
    expect(user).toMatch(/^Task: Sum up\.\nRight: \[1,2\]\n<<(\w{18})>>\nfine\n<<\/\1>>$/);
  });

  it('has the conversation without system messages and thinking, and fills no placeholder in it', async () => {
    const session = sessionOf('', { messages, metadata: { solution: 'the solution' } });
    const [, user = ''] = await promptOf({ rubric: '{{conversation}}' }, session);
    expect(user.split('\n').slice(1, -1).join('\n')).toBe(
      '[user]\nDo it.\n[image]\n\n[assistant]\n[calls bash] {"command":"ls"}\n\n[tool]\na.txt\n\n[assistant]\nThere is {{metadata.solution}}.',
    );
  });

  it('has marks around texts of the agent that the agent cannot know', async () => {
    const marks = await Promise.all(
      [1, 2].map(async () => /<<(\w+)>>/.exec((await promptOf({}, sessionOf('x')))[1] ?? '')?.[1]),
    );
    expect(marks[0]).not.toBe(marks[1]);
  });

  it.each([
    ['<|im_end|>', '< |im_end|>'],
    ['<｜User｜>', '< ｜User｜>'],
    ['</s><end_of_turn></think>', '< /s>< end_of_turn>< /think>'],
    ['[/INST][TOOL_CALLS]', '[ /INST][ TOOL_CALLS]'],
    ['a < b | c [x] <p>', 'a < b | c [x] <p>'],
  ])('has no special token where the agent wrote %s', async (written, shown) => {
    const [, user] = await promptOf({}, sessionOf(written));
    expect(user).toContain(`\n${shown}\n`);
  });

  it('leaves out the middle of a long text', async () => {
    const [, user = ''] = await promptOf({ max_chars: 1_000 }, sessionOf(`${'a'.repeat(5_000)}${'z'.repeat(5_000)}`));
    expect([/a+/.exec(user.split('\n')[1] ?? '')?.[0].length, /z+/.exec(user)?.[0].length]).toEqual([250, 750]);
    expect(user).toContain('left out');
  });

  it('leaves out the messages in the middle of a long conversation', async () => {
    const long = Array.from(
      { length: 100 },
      (_, i): ChatMessage => ({ role: 'user', content: `${i} ${'x'.repeat(90)}` }),
    );
    const [, user = ''] = await promptOf(
      { rubric: '{{conversation}}', max_chars: 1_000 },
      sessionOf('', { messages: long }),
    );
    expect(user).toContain('[user]\n0 xxx');
    expect(user).toContain('[user]\n99 xxx');
    expect(user).not.toContain('\n50 ');
    expect(user.length).toBeLessThan(1_400);
  });

  it('is not made when the task lacks a value that the rubric names', async () => {
    const { evaluation, requests } = await judge(
      ['x'],
      { rubric: '{{metadata.a.b}} {{answer}}' },
      sessionOf('', { metadata: { a: {} } }),
    );
    await expect(evaluation).rejects.toThrow(/no metadata\.a\.b/);
    expect(requests).toEqual([]);
  });
});

describe('a task with the evaluator judge', () => {
  it.each<[string, Record<string, unknown>]>([
    ['rubric', { rubric: undefined }],
    ['rubric', { rubric: 'Is it polite? {{instruction}}' }],
    ['rubric', { rubric: '{{answer}} {{answers}}' }],
    ['rubric', { rubric: '{{answer}} {{metadata}}' }],
    ['max', { min: 10 }],
    ['max_session_tokens', { max_tokens: 1_000, max_session_tokens: 1_999 }],
    ['max_chars', { max_chars: 10 }],
    ['attempts', { attempts: 0 }],
    ['agent_failures.0', { agent_failures: ['all'] }],
    ['model', { model: 'x' }],
  ])('is refused with the name of the field %s', (field, config) => {
    const spec = evaluatorSpecSchema.parse({ strategy: 'judge', config: { rubric: '{{answer}}', ...config } });
    expect(() => evaluatorRegistry().check(spec)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(field) }),
    );
  });
});
