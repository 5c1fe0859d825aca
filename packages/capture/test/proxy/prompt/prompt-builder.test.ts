import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool } from '@floe-rl/core/schema';
import { bundledVocabulary } from '@floe-rl/sim';
import { beforeEach, describe, expect, it } from 'vitest';
import { openaiChat } from '../../../src/dialects/openai_chat/dialect.ts';
import { callIdOf, parseCallId } from '../../../src/proxy/prompt/call-ids.ts';
import { isChecked } from '../../../src/proxy/prompt/suffix-renderer.ts';
import type { Completion } from '../../../src/tokens/completion.ts';
import { called, idsOf, renderIds, type ScriptedReply, TemplatePool, textOf } from '../template-pool.ts';
import { recordedIds, result, resultsOf, TokenSession, user } from '../token-session.ts';

const { imEnd } = bundledVocabulary().special;
const THOUGHT: ScriptedReply = { message: { content: 'Yes.', reasoning_content: 'Hm.' } };
const CALL: ScriptedReply = {
  message: { content: null, tool_calls: [called('look', '{ "a": 1 }'), called('look', '{}')] },
};
const TOOL: ChatTool = { type: 'function', function: { name: 'look' } };
const QUESTION = user('What is it?');

let pool: TemplatePool;
let session: TokenSession;
beforeEach(async () => {
  pool = await TemplatePool.start('append_only');
  session = new TokenSession(pool);
});

const suffixOf = (base: Completion, next: Completion): string =>
  textOf(next.promptIds.subarray(base.promptIds.length + base.responseIds.length));

function isSpliced(base: Completion, next: Completion): void {
  expect(next.capture).toMatchObject({ spliced_onto: base.completionId, rendered_because: null });
  expect([...next.promptIds.subarray(0, recordedIds(base).length)]).toEqual(recordedIds(base));
}

describe('the ids of tool calls', () => {
  it('identify one call of one completion and are valid in every dialect', () => {
    const id = callIdOf(`cpl_${'0'.repeat(26)}`, 123);
    expect(id).toMatch(/^[A-Za-z0-9_-]{1,40}$/);
    expect(parseCallId(id)).toEqual({ completionId: `cpl_${'0'.repeat(26)}`, index: 123 });
    for (const other of ['call_1', 'call_x_01', 'toolu_0_0', '', `call_${'x'.repeat(33)}_0`]) {
      expect(parseCallId(other)).toBeNull();
    }
  });

  it.each(['tokens', 'chat'] as const)('are the engine’s ids in its requests in mode %s', async (mode) => {
    pool.mode = mode;
    const first = await session.ask([QUESTION], CALL);
    expect(first.engineCallIds).toEqual(['functions.0', 'functions.1']);
    expect(first.message.tool_calls?.map(({ id }) => id)).toEqual([0, 1].map((at) => callIdOf(first.completionId, at)));
    const next = await session.ask([QUESTION, first.message, ...resultsOf(first)]);
    const [, turn, ...results] = pool.generated[1]?.messageTexts.map((text) => JSON.parse(text)) ?? [];
    expect(turn.tool_calls.map(({ id }: { id: string }) => id)).toEqual(first.engineCallIds);
    expect(results.map(({ tool_call_id }) => tool_call_id)).toEqual(first.engineCallIds);
    expect(next.request.messages[1]).toEqual(first.message);
  });

  it('pass through unchanged when they are not floe’s, except in recorded turns, whose calls are matched by order', async () => {
    const first = await session.ask([QUESTION], CALL);
    const own = (id: string): AssistantMessage => ({
      ...first.message,
      tool_calls: first.message.tool_calls?.map((call, index) => ({ ...call, id: `${id}${index}` })) ?? [],
    });
    const forged = callIdOf('cpl_0', 0);
    const made: AssistantMessage = {
      role: 'assistant',
      content: null,
      tool_calls: [{ ...called('look', '{}'), id: forged }],
    };
    const history = [
      QUESTION,
      own('mine'),
      result('mine0', 'x'),
      result('mine1', 'y'),
      made,
      result(forged, 'z'),
      user('go'),
    ];
    isSpliced(first, await session.ask(history));
    const texts = pool.generated[1]?.messageTexts.join('\n') ?? '';
    expect(texts).not.toContain('mine');
    expect(texts.split('functions.0')).toHaveLength(3);
    expect(texts.split(forged)).toHaveLength(3);
  });
});

describe('a prompt', () => {
  it('is rendered for the first request of a conversation', async () => {
    const { capture, promptIds } = await session.ask([QUESTION], undefined, { tools: [TOOL] });
    expect(capture).toEqual({
      mode: 'tokens',
      logprobs_mode: 'processed',
      thinking_retention: 'template',
      spliced_onto: null,
      rendered_because: 'first',
    });
    expect([...promptIds]).toEqual([
      ...renderIds([JSON.stringify(QUESTION)], JSON.stringify([TOOL]), true, 'append_only'),
    ]);
  });

  it('continues the sampled ids, in whatever form the turn is returned', async () => {
    const first = await session.ask([QUESTION], { message: { ...CALL.message, reasoning_content: 'Hm.' } });
    const calls = first.message.tool_calls?.map((call, index) => ({
      ...call,
      function: { name: 'look', arguments: index === 0 ? '{"a":1}' : ' ' },
    }));
    const echo: ChatMessage = { role: 'assistant', content: ' ', tool_calls: calls ?? [] };
    const next = await session.ask([QUESTION, echo, ...resultsOf(first)]);
    isSpliced(first, next);
    expect(suffixOf(first, next)).toBe(
      '\n<|im_start|>user\n<tool_response>\ndone 0\n</tool_response>\n<tool_response>\ndone 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n',
    );
  });

  it('continues a reply that the harness returns as up to four messages, and renders one of five', async () => {
    const ask = async (calls: number): Promise<[Completion, Completion]> => {
      const tool_calls = Array.from({ length: calls }, (_, index) => called('look', `{"a":${index}}`));
      const first = await session.ask([QUESTION], { message: { content: 'I look.', tool_calls } });
      const parts = (first.message.tool_calls ?? []).map(
        (call): ChatMessage => ({ role: 'assistant', content: null, tool_calls: [call] }),
      );
      const text: ChatMessage = { role: 'assistant', content: 'I look.' };
      return [first, await session.ask([QUESTION, text, ...parts, ...resultsOf(first)])];
    };
    const [, rendered] = await ask(4);
    expect(rendered.capture).toMatchObject({ spliced_onto: null, rendered_because: 'rewritten' });
    isSpliced(...(await ask(3)));
  });

  it('needs one more short rendering for each turn', async () => {
    let history: ChatMessage[] = [QUESTION];
    let last = await session.ask(history, CALL);
    // The number of messages in each rendering that the engine is expected to make. At first these are the first prompt and two placeholder
    // histories, one without tool calls and one with them.
    const expected = [1, 2, 2];
    for (let turn = 0; turn < 3; turn++) {
      history = [...history, last.message, ...resultsOf(last)];
      last = await session.ask(history, CALL);
      // Each turn adds one rendering of four messages: a placeholder history of two messages, and two tool results. For one in 64 turns,
      // the suffix is also compared with two renderings of the whole conversation, without and with the new messages.
      const whole = isChecked(last.completionId) ? [history.length - 2, history.length] : [];
      expected.push(4, ...whole);
    }
    expect(pool.rendered.map(({ messageTexts }) => messageTexts.length)).toEqual(expected);
    expect(pool.rendered.slice(1).every(({ toolsText }) => toolsText === '[]')).toBe(true);
  });

  it.each<[string, ScriptedReply, string]>([
    ['its length', { ...THOUGHT, cut: 2 }, '<|im_end|>'],
    ['another id of the model', { ...THOUGHT, stopId: bundledVocabulary().special.endOfText }, ''],
  ])('has the missing close after a reply that ended with %s', async (_, scripted, close) => {
    session = new TokenSession(pool, { thinking_retention: 'all' });
    const first = await session.ask([QUESTION], scripted);
    const next = await session.ask([QUESTION, first.message, user('And?')]);
    isSpliced(first, next);
    expect(suffixOf(first, next)).toBe(`${close}\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n`);
  });

  it('is not shifted by the text of a close, wherever it occurs', async () => {
    const scripted: ScriptedReply = { message: { content: 'Look: <|im_end|>\n', reasoning_content: 'a <|im_end|> b' } };
    const first = await session.ask([user('What is <|im_end|>?')], scripted);
    const next = await session.ask([user('What is <|im_end|>?'), first.message, user('<|im_end|>')]);
    isSpliced(first, next);
    expect(suffixOf(first, next)).toBe('\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n');
    pool.facts = { ...pool.facts, tail_render: false };
    const full = await session.ask([user('What is <|im_end|>?'), first.message, user('<|im_end|>')]);
    expect([...full.promptIds]).toEqual([...next.promptIds]);
  });

  it('continues the deepest turn before an edited one', async () => {
    const first = await session.ask([QUESTION], CALL);
    const history = [QUESTION, first.message, ...resultsOf(first)];
    const second = await session.ask(history, THOUGHT);
    const edited: ChatMessage = { ...second.message, content: 'No.' };
    const next = await session.ask([...history, edited, user('Why?')]);
    isSpliced(first, next);
    expect(suffixOf(first, next)).toContain('No.<|im_end|>\n<|im_start|>user\nWhy?');
    const calls = first.message.tool_calls?.map((call) => ({
      ...call,
      function: { name: 'look', arguments: '{"a":2}' },
    }));
    const other = await session.ask([QUESTION, { ...first.message, tool_calls: calls ?? [] }, ...resultsOf(first)]);
    expect(other.capture).toMatchObject({ spliced_onto: null, rendered_because: 'rewritten' });
    const thought: ChatMessage = { ...first.message, reasoning_content: 'what it never thought' };
    const invented = await session.ask([QUESTION, thought, ...resultsOf(first)]);
    expect(invented.capture).toMatchObject({ spliced_onto: null, rendered_because: 'rewritten' });
  });

  it('continues a sampled turn that follows a turn that was not sampled', async () => {
    const echo: ChatMessage = { role: 'assistant', content: 'Yes.' };
    const history = [QUESTION, echo, user('Sure?')];
    const behind = await session.ask(history, CALL);
    expect(behind.capture).toMatchObject({ rendered_because: 'rewritten' });
    const sampled = await session.ask([QUESTION], { message: { content: 'Yes.' } });
    isSpliced(behind, await session.ask([...history, behind.message, ...resultsOf(behind)]));
    isSpliced(sampled, await session.ask([...history.slice(0, 2), user('Else?')]));
  });

  it('is not shifted by text that the template omits from a full rendering', async () => {
    pool = await TemplatePool.start('strip_thinking');
    pool.facts = { ...pool.facts, tail_render: false };
    session = new TokenSession(pool, { thinking_retention: 'all' });
    const first = await session.ask([QUESTION], { message: { content: 'Yes.', reasoning_content: 'a <|im_end|> b' } });
    const history = [QUESTION, first.message, user('Sure?')];
    const second = await session.ask(history, { message: { content: '<think>c <|im_end|> d</think>No.' } });
    const third = await session.ask([...history, second.message, user('So?')]);
    isSpliced(first, second);
    isSpliced(second, third);
    expect(suffixOf(first, second)).toBe('\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n');
    expect(suffixOf(second, third)).toBe('\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n');
  });

  it('continues only turns of its thread and with its tools', async () => {
    const first = await session.ask([QUESTION], CALL, { tools: [TOOL] });
    const history = [QUESTION, first.message, ...resultsOf(first)];
    const because = async (options: object): Promise<unknown> =>
      (await session.ask(history, undefined, options)).capture;
    expect(await because({ tools: [] })).toMatchObject({ rendered_because: 'tools' });
    expect(await because({ tools: [TOOL], thread: 'other' })).toMatchObject({ rendered_because: 'rewritten' });
    expect(await because({ tools: [TOOL] })).toMatchObject({ spliced_onto: first.completionId });
  });

  it('continues the same turn for the same history twice, in separate memory', async () => {
    const first = await session.ask([QUESTION], THOUGHT);
    const asks = ['a', 'b', 'c'].map((text) => session.ask([QUESTION, first.message, user(text)], CALL));
    const branches = await Promise.all(asks);
    const texts = branches.map((branch) => suffixOf(first, branch));
    expect(texts.map((text) => text.slice('\n<|im_start|>user\n'.length)[0])).toEqual(['a', 'b', 'c']);
    for (const [index, branch] of branches.entries()) {
      isSpliced(first, branch);
      const message = user(['a', 'b', 'c'][index] ?? '');
      isSpliced(branch, await session.ask([QUESTION, first.message, message, branch.message, ...resultsOf(branch)]));
    }
  });

  it('is rendered by the engine when the conversation has a picture', async () => {
    const picture: ChatMessage = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] };
    await expect(session.ask([picture])).rejects.toMatchObject({ code: 'engine_rejected' });
    expect(pool.generated[0]?.prompt).toBeNull();
  });
});

describe('a prompt whose history matches several equal replies', () => {
  const twice = async (): Promise<[Completion, Completion]> => [
    await session.ask([QUESTION], CALL),
    await session.ask([QUESTION], CALL),
  ];
  const withIds = ({ message }: Completion, id: (index: number) => string): ChatMessage => ({
    ...message,
    tool_calls: message.tool_calls?.map((call, index) => ({ ...call, id: id(index) })) ?? [],
  });

  it('continues the reply that the call ids name', async () => {
    const [one, two] = await twice();
    for (const each of [one, two, one]) {
      isSpliced(each, await session.ask([QUESTION, each.message, ...resultsOf(each)]));
    }
  });

  it('continues the reply that a signature names, and ignores a forged signature', async () => {
    const [one, two] = await twice();
    const echo = withIds(one, (index) => `own${index}`);
    const ask = (id: string): Promise<Completion> =>
      session.ask([QUESTION, echo, result('own0', 'x')], undefined, { claimedCompletions: new Map([[echo, id]]) });
    isSpliced(one, await ask(one.completionId));
    isSpliced(two, await ask(two.completionId));
    const ids = pool.generated.slice(2).map(({ messageTexts }) => JSON.parse(messageTexts[2] ?? '').tool_call_id);
    expect(ids).toEqual([one.engineCallIds[0], two.engineCallIds[0]]);
    const elsewhere = await session.ask([user('Else?')], THOUGHT);
    const { spliced_onto } = (await ask(elsewhere.completionId)).capture;
    expect([one.completionId, two.completionId]).toContain(spliced_onto);
    isSpliced(elsewhere, await session.ask([user('Else?'), elsewhere.message, user('x')]));
  });

  it('continues the reply that was used before, otherwise the latest', async () => {
    const [one, two] = await twice();
    const echo = withIds(one, (index) => `own${index}`);
    const ask = (text: string): Promise<Completion> => session.ask([QUESTION, echo, result('own0', text)]);
    isSpliced(two, await ask('x'));
    const again = new TokenSession(pool);
    const first = await again.ask([QUESTION], CALL);
    await again.ask([QUESTION, first.message, ...resultsOf(first)]);
    await again.ask([QUESTION], CALL);
    isSpliced(first, await again.ask([QUESTION, echo, result('own0', 'y')]));
  });

  it('continues the reply that more of the history follows', async () => {
    const one = await session.ask([QUESTION], THOUGHT);
    const deeper = await session.ask([QUESTION, one.message, user('x')], CALL, {
      claimedCompletions: new Map([[one.message, one.completionId]]),
    });
    const two = await session.ask([QUESTION], THOUGHT);
    await session.ask([QUESTION, two.message, user('y')], CALL, {
      claimedCompletions: new Map([[two.message, two.completionId]]),
    });
    isSpliced(deeper, await session.ask([QUESTION, one.message, user('x'), deeper.message, ...resultsOf(deeper)]));
  });
});

describe('a reply that the harness received in part', () => {
  const NEXT = '<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n';
  const RESULT =
    '<|im_end|>\n<|im_start|>user\n<tool_response>\ndone 0\n</tool_response><|im_end|>\n<|im_start|>assistant\n';
  const ONE_CALL: ScriptedReply = {
    message: { content: 'Look.', reasoning_content: 'Hm.', tool_calls: [called('look', '{"a": "</tool_call>"}')] },
  };
  const SAMPLED_CALL =
    '<think>\nHm.\n</think>\n\nLook.\n<tool_call>\n{"name": "look", "arguments": {"a": "</tool_call>"}}\n</tool_call>';
  /** Returns the text that the prompt of `next` has after the prompt of `base`: the turn of `base`, and the messages that follow it. */
  const turnIn = (base: Completion, next: Completion): string => textOf(next.promptIds.subarray(base.promptIds.length));

  it.each([
    ['ends at a stop string', 'Yes, it is.', ' END', 'Yes, it is.'],
    ['ends at a stop string of several tokens', 'Yes.', 'Observation:', 'Yes.'],
    ['ends at a stop string whose line break is in one token with the text', 'Yes.', '\nObservation:', 'Yes.\n'],
    ['consists of a stop string', '', 'END', ''],
    ['has white space before the stop string', 'Yes, it is ', 'a', 'Yes, it is'],
  ])('continues with the received ids when it %s', async (_, content, stopText, received) => {
    const first = await session.ask([QUESTION], { message: { content }, stopText });
    const next = await session.ask([QUESTION, first.message, user('And?')]);
    expect(next.capture).toMatchObject({ spliced_onto: first.completionId, rendered_because: null });
    expect(turnIn(first, next)).toBe(received + NEXT);
    const ids = first.responseIds.subarray(
      0,
      next.promptIds.indexOf(imEnd, first.promptIds.length) - first.promptIds.length,
    );
    expect([...next.promptIds.subarray(first.promptIds.length, first.promptIds.length + ids.length)]).toEqual([...ids]);
  });

  it('is rendered as the harness returns it when the received text ends inside a token', async () => {
    const first = await session.ask([QUESTION], { message: { content: 'Yes, it is an obs' }, stopText: 'ervation' });
    expect(textOf(first.responseIds).endsWith(' observation')).toBe(true);
    const next = await session.ask([QUESTION, first.message, user('And?')]);
    expect(next.capture).toMatchObject({ spliced_onto: null, rendered_because: 'cut' });
    expect(turnIn(first, next)).toBe(`Yes, it is an obs${NEXT}`);
    const second = await session.ask([QUESTION, first.message, user('And?'), next.message, user('And?')]);
    isSpliced(next, second);
  });

  it('is context after an earlier turn that can be continued', async () => {
    const first = await session.ask([QUESTION], { message: { content: 'Yes.', reasoning_content: 'Hm.' } });
    const history = [QUESTION, first.message, user('Why?')];
    const second = await session.ask(history, { message: { content: 'It is an obs' }, stopText: 'ervation' });
    const third = await session.ask([...history, second.message, user('And?')]);
    isSpliced(first, third);
    expect(turnIn(second, third)).toBe(`It is an obs${NEXT}`);
  });

  it.each([
    ['text follows its call', {}, ' It is done.\n<tool_call>', null],
    ['text follows its call, until a stop string', {}, ' It is', ' END'],
    [
      'a second call follows its only one',
      { parallelToolCalls: false },
      `\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>`,
      null,
    ],
  ] as const)('continues with the ids up to the end of its call when %s', async (_, asked, dropped, stopText) => {
    const scripted = { ...ONE_CALL, dropped, ...(stopText === null ? {} : { stopText }) };
    const first = await session.ask([QUESTION], scripted, asked);
    expect(textOf(first.responseIds)).toContain(SAMPLED_CALL + dropped);
    const next = await session.ask([QUESTION, first.message, ...resultsOf(first)], undefined, asked);
    expect(next.capture).toMatchObject({ spliced_onto: first.completionId });
    expect(turnIn(first, next)).toBe(SAMPLED_CALL + RESULT);
  });

  it('is ruled out when only white space follows its calls, also if they contain the text that ends a call', async () => {
    const first = await session.ask([QUESTION], { ...ONE_CALL, dropped: '\n\n' });
    isSpliced(first, await session.ask([QUESTION, first.message, ...resultsOf(first)]));
  });

  it.each([
    ['has its calls at the end', {}, CALL],
    [
      'has one call where one is allowed',
      { parallelToolCalls: false },
      { message: { content: null, tool_calls: [called('look', '{}')] } },
    ],
    ['ended at an end-of-turn id', {}, THOUGHT],
  ])('is ruled out without decoding any ids when a reply %s', async (_, asked, scripted) => {
    const first = await session.ask([QUESTION], scripted, asked);
    isSpliced(first, await session.ask([QUESTION, first.message, ...resultsOf(first), user('And?')], undefined, asked));
    expect(pool.decoded).toBe(0);
  });

  it.each([
    ['is spliced when it ends with a bracket', '', null],
    ['is rendered when it ends otherwise', ' Then I go on.', 'cut'],
  ])('where the template has no delimiter after calls, %s', async (_, dropped, because) => {
    pool.facts = { ...pool.facts, call_end: { ids: [], each: null } };
    const first = await session.ask([QUESTION], { ...CALL, dropped });
    const next = await session.ask([QUESTION, first.message, ...resultsOf(first)]);
    expect(next.capture.rendered_because).toBe(because);
  });

  it('is rendered when its ids do not contain the stop string that the engine reports', async () => {
    const { generate } = pool;
    pool.generate = async (request) => {
      const answer = await generate.call(pool, request);
      return { ...answer, reply: { ...answer.reply, stop: { kind: 'string', text: '!' } } };
    };
    const first = await session.ask([QUESTION], { message: { content: 'Yes' }, stopText: '.' });
    expect((await session.ask([QUESTION, first.message, user('And?')])).capture.rendered_because).toBe('cut');
  });

  it('is rendered when the engine cannot decode ids', async () => {
    pool.detokenize = () => Promise.reject(new FloeError('unsupported', 'no decoder'));
    const first = await session.ask([QUESTION], { ...THOUGHT, stopText: 'END' });
    expect((await session.ask([QUESTION, first.message, user('And?')])).capture.rendered_because).toBe('cut');
  });
});

describe('thinking', () => {
  it.each([
    ['template', 'thinking'],
    ['tool_cycle', 'thinking'],
    ['all', null],
  ] as const)(
    'is kept or dropped by retention %s at a user message, where the template drops it',
    async (thinking_retention, because) => {
      pool = await TemplatePool.start('strip_thinking');
      session = new TokenSession(pool, { thinking_retention });
      const first = await session.ask([QUESTION], { message: { ...CALL.message, reasoning_content: 'Hm.' } });
      const history = [QUESTION, first.message, ...resultsOf(first)];
      const second = await session.ask(history, { message: { content: 'So.' } });
      isSpliced(first, second);
      const third = await session.ask([...history, second.message, user('And?')], { message: { content: 'So.' } });
      expect(third.capture).toMatchObject({ thinking_retention, rendered_because: because });
      expect(textOf(third.promptIds).includes('Hm.')).toBe(because === null);
    },
  );

  it('does not prevent splicing when a turn has none', async () => {
    pool = await TemplatePool.start('strip_thinking');
    session = new TokenSession(pool);
    const first = await session.ask([QUESTION], { message: { content: 'Yes.' } });
    isSpliced(first, await session.ask([QUESTION, first.message, user('And?')]));
  });
});

describe('a template', () => {
  const follow = async (first: Completion): Promise<Completion> =>
    session.ask([QUESTION, first.message, ...resultsOf(first)]);

  it('renders every prompt completely when its close is unknown', async () => {
    pool.facts = { ...pool.facts, close_ids: [] };
    const first = await session.ask([QUESTION], CALL);
    expect((await follow(first)).capture).toMatchObject({ spliced_onto: null, rendered_because: 'template' });
  });

  it('renders new messages after the whole history when it refuses a placeholder history', async () => {
    const first = await session.ask([QUESTION], CALL);
    pool.refuse = ({ messageTexts }) => messageTexts[0]?.includes('"Go on"') === true && messageTexts.length > 2;
    const next = await follow(first);
    isSpliced(first, next);
    expect(suffixOf(first, next)).toContain('done 1');
  });

  it('renders new messages after the whole history when they have content parts', async () => {
    const first = await session.ask([QUESTION], { message: { content: 'Yes.' } });
    isSpliced(
      first,
      await session.ask([QUESTION, first.message, { role: 'user', content: [{ type: 'text', text: 'x' }] }]),
    );
    expect(pool.rendered.at(-1)?.messageTexts).toContain(JSON.stringify(QUESTION));
  });

  it('is quoted to the harness when it refuses everything', async () => {
    const first = await session.ask([QUESTION], CALL);
    pool.refuse = () => true;
    await expect(follow(first)).rejects.toMatchObject({ code: 'engine_rejected', message: 'the template refuses' });
    pool.refuse = ({ generationPrompt }) => !generationPrompt;
    expect((await follow(first)).capture).toMatchObject({ rendered_because: 'template' });
  });

  it.each([true, false])(
    'renders prompts completely when it leaves the last turn open, short form %s',
    async (tail_render) => {
      pool.facts = { ...pool.facts, tail_render };
      const closing = pool.render.bind(pool);
      pool.render = async (request) => {
        const ids = await closing(request);
        const open = !request.generationPrompt && request.messageTexts.at(-1)?.includes('tool_calls') === true;
        return open ? ids.subarray(0, ids.lastIndexOf(imEnd)) : ids;
      };
      const first = await session.ask([QUESTION], CALL);
      expect((await follow(first)).capture).toMatchObject({ rendered_because: 'template' });
    },
  );

  it('renders every prompt completely when it closes turns differently before other messages', async () => {
    const closing = pool.render.bind(pool);
    pool.render = async (request) => {
      const ids = await closing(request);
      return request.generationPrompt
        ? Int32Array.from([...ids].flatMap((id) => (id === imEnd ? [id, id] : [id])))
        : ids;
    };
    const first = await session.ask([QUESTION], CALL);
    expect((await follow(first)).capture).toMatchObject({ rendered_because: 'template' });
  });

  it('is detected when it depends on the length of the history, and renders whole conversations from then on', async () => {
    const counted = pool.render.bind(pool);
    pool.render = async (request) => {
      const ids = await counted(request);
      const note = idsOf(`(${request.messageTexts.length})`);
      return request.generationPrompt ? Int32Array.of(...ids, ...note) : ids;
    };
    const start = [user('a'), user('b'), user('c')];
    // A hash of the completion's id selects one in 64 suffixes for a check. The probability that none of 2,000 suffixes is checked is
    // 2e-14.
    for (let turn = 0; session.notices.length === 0 && turn < 2_000; turn++) {
      const first = await session.ask(start, CALL);
      const next = await session.ask([...start, first.message, ...resultsOf(first)]);
      expect(suffixOf(first, next)).toContain(session.notices.length === 0 ? '(4)' : '(6)');
    }
    expect(session.notices).toHaveLength(1);
    const first = await session.ask(start, CALL);
    expect(suffixOf(first, await session.ask([...start, first.message, ...resultsOf(first)]))).toContain('(6)');
  });

  it('renders prompts completely when the recorded turn has no ids', async () => {
    pool.mode = 'text';
    const first = await session.ask([QUESTION], CALL);
    expect(first.capture).toMatchObject({ mode: 'text', rendered_because: 'chat_mode' });
    pool.mode = 'tokens';
    expect((await follow(first)).capture).toMatchObject({ spliced_onto: null, rendered_because: 'template' });
  });

  it('renders prompts completely when the recorded turn has ids of another template', async () => {
    const first = await session.ask([QUESTION], CALL);
    pool.facts = { ...pool.facts, fingerprint: 'another' };
    expect((await follow(first)).capture).toMatchObject({ spliced_onto: null, rendered_because: 'template' });
  });
});

describe('an engine', () => {
  it('fails the call when it reports another prompt than it was sent', async () => {
    const { generate } = pool;
    pool.generate = async (request) => {
      const answer = await generate.call(pool, request);
      answer.reply.promptIds[0] = imEnd;
      return answer;
    };
    await expect(session.ask([QUESTION])).rejects.toMatchObject({ code: 'engine_error' });
    expect(session.calls.completions()).toEqual([]);
  });

  it.each(['unsupported', 'engine_unavailable'] as const)(
    'fails the call with its error when it cannot capture: %s',
    async (code) => {
      pool.modeOf = () => {
        throw new FloeError(code, 'not here');
      };
      await expect(session.ask([QUESTION])).rejects.toMatchObject({ code, message: 'not here' });
    },
  );
});

describe('a session in tokens mode', () => {
  it('does not abandon a continued reply, whatever ids its calls are returned with', async () => {
    const ask = async (): Promise<Completion> => {
      const identity = { digest: 'one body', isRetry: true };
      const call = session.calls.admission.begin(identity, openaiChat, session.requestOf([QUESTION]));
      call.attach();
      const completion = await call.outcome;
      call.detach(true);
      return completion;
    };
    pool.replies.push(CALL, CALL);
    const [one, two] = [await ask(), await ask()];
    expect([one.abandoned, two.abandoned]).toEqual([true, false]);
    const calls = one.message.tool_calls?.map((call, index) => ({ ...call, id: `own${index}` })) ?? [];
    const echo: ChatMessage = { ...one.message, tool_calls: calls };
    await session.ask([QUESTION, echo, result('own0', 'x')], undefined, {
      claimedCompletions: new Map([[echo, one.completionId]]),
    });
    expect([one.abandoned, two.abandoned]).toEqual([false, false]);
  });

  it('counts the prompt that it would build', async () => {
    const first = await session.ask([QUESTION], CALL);
    const messages = [QUESTION, first.message, ...resultsOf(first)];
    const count = await session.calls.admission.countTokens(session.requestOf(messages), new AbortController().signal);
    const next = await session.ask(messages);
    expect(count).toBe(next.promptIds.length);
  });

  it('continues previous responses that a conversation refers to', async () => {
    let last = await session.ask([QUESTION], CALL);
    for (let turn = 0; turn < 5; turn++) {
      const next = await session.ask(resultsOf(last, `${turn}`), CALL, { previousCompletionId: last.completionId });
      isSpliced(last, next);
      expect(next.request.messages).toHaveLength(last.request.messages.length + 3);
      expect(next.request.messageTexts[0]).toBe(last.request.messageTexts[0]);
      last = next;
    }
  });
});
