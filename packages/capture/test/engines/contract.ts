import { type ChatTool, type EngineSpec, samplingSchema } from '@floe-rl/core/schema';
import type { ScenarioInput } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it, type TestContext } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest, PromptIds, RenderRequest } from '../../src/engines/engine.ts';
import type { ReplyDelta } from '../../src/reply.ts';
import { generateAsPool } from './pool-call.ts';

/** A simulated engine's own record of what it sampled (its ledger). The entries of a call are found by its request id. */
export type ContractLedger = {
  entries(filter: { readonly requestId?: string }): readonly {
    readonly prompt_ids: readonly number[];
    readonly response_ids: readonly number[];
    readonly raw_logprobs: readonly number[];
    readonly processed_logprobs: readonly number[];
    readonly version_spans: readonly unknown[];
    readonly params: { readonly temperature: number };
  }[];
};

export type ContractSubject = {
  readonly spec: EngineSpec;
  readonly engine: Engine;
  close(): Promise<void>;
  /**
   * Record of what a simulated engine with {@link contractScenarios} sampled. Absent for a server with a real model, whose replies cannot
   * be predicted.
   */
  readonly ledger?: ContractLedger;
};

const OBJECT = { answer: 17, why: 'é😀' };
const WORDS = 'one two three four five six seven eight nine ten eleven twelve';
const UNICODE = 'Ünïcödé 日本語 👩‍👩‍👧 😀 — done.';
const ARGUMENTS = { path: 'a "b" é😀\n', list: [1, { deep: null }], flag: false };

/** Scenarios that fix the replies of a simulated engine, so that tests can assert the content of replies. */
export const contractScenarios: ScenarioInput[] = [
  scenario('plain', [{ text: 'All is well.' }]),
  scenario('words', [{ text: WORDS }]),
  scenario('object', [either([{ text: 'It is 17.' }], [{ text: JSON.stringify(OBJECT) }])]),
  scenario('forced', [either([{ text: 'No.' }], [{ call: { tool: 'read', arguments: ARGUMENTS } }])]),
  scenario('unicode', [{ text: UNICODE }]),
  scenario('thinking', [{ think: { text: 'Let me see.', noise: 30 } }, { text: 'It is done.' }]),
  scenario('calls', [
    { text: 'Two things.' },
    { call: { tool: 'bash', arguments: ARGUMENTS } },
    { call: { tool: 'read', arguments: {} } },
  ]),
];

/** Makes the script of a simulated reply that is usually `first`, and `second` when only `second` satisfies the request's constraint. */
function either(first: object[], second: object[]): object {
  const options = [
    { logit: 9, reply: first },
    { logit: -9, reply: second },
  ];
  return { choice: { id: 'either', options } };
}

function scenario(name: string, reply: object[]): ScenarioInput {
  return { name, match: { contains: `contract ${name}` }, rules: [{ reply }] } as ScenarioInput;
}

const contractTools: ChatTool[] = [
  { type: 'function', function: { name: 'bash', description: 'Runs it.', parameters: { type: 'object' } } },
  { type: 'function', function: { name: 'read', parameters: { type: 'object' } } },
];

const never = (): AbortSignal => new AbortController().signal;
let calls = 0;

/**
 * Makes a request with one user message, which contains `about` and thereby selects the scenario of this name; `over` overrides its fields.
 */
export function contractRequest(about: string, over: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    completionId: `cpl_contract${++calls}`,
    sessionId: 'ses_contract',
    pool: 'default',
    messageTexts: [JSON.stringify({ role: 'user', content: `contract ${about}` })],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    sampling: samplingSchema.parse({}),
    maxTokens: 200,
    stop: [],
    responseFormat: null,
    seed: 5,
    prompt: null,
    resumeFrom: null,
    policyVersion: null,
    ...over,
  };
}

const withTools = { tools: contractTools, toolsText: JSON.stringify(contractTools) };

function renderOf(request: GenerateRequest, generationPrompt = true): RenderRequest {
  const { completionId, sessionId, pool, messageTexts, toolsText } = request;
  return { completionId: `${completionId}r`, sessionId, pool, messageTexts, toolsText, generationPrompt };
}

export function promptOf(ids: Int32Array): PromptIds {
  return { ids, json: Buffer.from(ids.join(',')) };
}

/** Asserts that a reply's fields are consistent with each other and equal what the simulated engine recorded in its ledger. */
function expectSound(subject: ContractSubject, request: GenerateRequest, reply: GenerateReply): void {
  const { responseIds, responseLogprobs, versionSpans, usage } = reply;
  expect(reply.message.role).toBe('assistant');
  if (!subject.engine.info().capabilities.token_ids) {
    expect([responseIds.length, responseLogprobs.length, reply.logprobsMode]).toEqual([0, 0, null]);
    return;
  }
  expect(responseIds.length).toBeGreaterThan(0);
  expect(responseLogprobs.length).toBe(responseIds.length);
  for (const logprob of responseLogprobs) expect(logprob).toBeLessThanOrEqual(1e-3);
  expect(usage.prompt_tokens).toBe(reply.promptIds.length);
  expect(usage.completion_tokens).toBe(responseIds.length);
  let covered = 0;
  for (const { start, end } of versionSpans) {
    expect(start).toBe(covered);
    covered = end;
  }
  expect(covered).toBe(responseIds.length);
  if (request.prompt !== null) expect([...reply.promptIds]).toEqual([...request.prompt.ids]);
  const { routedExperts } = reply;
  if (routedExperts !== null) {
    expect(routedExperts.shape[0]).toBe(reply.promptIds.length + responseIds.length - 1 - routedExperts.start);
  }
  expectLedger(subject, request, reply);
}

function expectLedger(subject: ContractSubject, request: GenerateRequest, reply: GenerateReply): void {
  if (subject.ledger === undefined) return;
  const entry = subject.ledger.entries({ requestId: request.completionId }).at(-1);
  const resumeFrom = request.resumeFrom?.responseIds ?? new Int32Array(0);
  expect(entry, 'the ledger knows the call by its completion id').toBeDefined();
  expect([...reply.promptIds, ...resumeFrom]).toEqual(entry?.prompt_ids);
  expect([...reply.responseIds.subarray(resumeFrom.length)]).toEqual(entry?.response_ids);
  const logprobs = reply.logprobsMode === 'raw' ? entry?.raw_logprobs : entry?.processed_logprobs;
  expect([...reply.responseLogprobs.subarray(resumeFrom.length)]).toEqual([...Float32Array.from(logprobs ?? [])]);
  if (resumeFrom.length === 0 && subject.engine.info().capabilities.version_spans) {
    expect(reply.versionSpans).toEqual(entry?.version_spans);
  }
}

async function whole(subject: ContractSubject, request: GenerateRequest): Promise<GenerateReply> {
  const reply = await generateAsPool(subject.engine, request, never());
  expectSound(subject, request, reply);
  return reply;
}

/** Renders the messages of a request with the engine, and samples a reply to the rendered token ids. */
async function byTokens(subject: ContractSubject, request: GenerateRequest): Promise<GenerateReply> {
  const ids = await subject.engine.render(renderOf(request), never());
  return whole(subject, { ...request, prompt: promptOf(ids) });
}

/**
 * Registers the tests that every engine adapter must pass, against a server that `open` starts or finds. Tests of capabilities that the
 * server lacks are skipped. Tests that need a scripted model are skipped when the subject has no `ledger`.
 */
export function engineContract(name: string, open: () => Promise<ContractSubject>): void {
  describe(`${name} keeps the engine contract`, () => {
    let subject: ContractSubject;
    beforeAll(async () => {
      subject = await open();
    });
    afterAll(() => subject.close());
    const needs = {
      tokens: (context: TestContext) =>
        context.skip(subject.engine.info().capabilities.token_input === 'none', 'the server takes no token ids'),
      render: async (context: TestContext) => context.skip(!(await renders(subject)), 'the server cannot render'),
      script: (context: TestContext) => context.skip(subject.ledger === undefined, 'the model is not scripted'),
    };

    it('reports its identity and capabilities', () => {
      const info = subject.engine.info();
      expect(info).toMatchObject({ kind: subject.spec.kind, base_url: subject.spec.base_url, pool: subject.spec.pool });
      expect(info.model).not.toBe('');
      expect(info.inflight).toBe(0);
      const { token_ids, token_input } = info.capabilities;
      if (token_input !== 'none') expect(token_ids).toBe(true);
      expect(info.logprobs_mode === null).toBe(!token_ids);
      expect(JSON.stringify(info)).not.toContain(subject.spec.api_key ?? '\u0000');
    });

    describe.each(['chat', 'tokens'] as const)('in %s mode', (mode) => {
      const ask = (request: GenerateRequest) => (mode === 'chat' ? whole : byTokens)(subject, request);
      const ready = (context: TestContext) => (mode === 'tokens' ? needs.tokens(context) : undefined);

      it('returns a consistent reply without streaming', async (context) => {
        ready(context);
        const { message, finishReason } = await ask(contractRequest('plain'));
        if (subject.ledger === undefined) return;
        expect(textOf(message.content)).toBe('All is well.');
        expect(message.tool_calls).toBeUndefined();
        expect(finishReason).toBe('stop');
      });

      it.for([0, 0.25, 1])('samples at the temperature of the request: %d', async (temperature, context) => {
        ready(context);
        needs.script(context);
        await ask(contractRequest('plain', { sampling: samplingSchema.parse({ temperature }) }));
        expect(subject.ledger?.entries({}).at(-1)?.params.temperature).toBe(temperature);
      });

      it('ends a reply with finish reason length at the token limit', async (context) => {
        ready(context);
        const reply = await ask(contractRequest('words', { maxTokens: 3 }));
        expect(reply.usage.completion_tokens).toBeLessThanOrEqual(3);
        if (subject.ledger !== undefined) {
          expect(reply).toMatchObject({ finishReason: 'length', stop: null });
          expect(WORDS).toContain(textOf(reply.message.content));
        }
      });

      it('ends a reply at a stop string, which is not part of its text', async (context) => {
        ready(context);
        needs.script(context);
        const reply = await ask(contractRequest('words', { stop: ['seven', 'never'] }));
        expect(reply.finishReason).toBe('stop');
        expect(textOf(reply.message.content)).toBe('one two three four five six');
        if (reply.stop !== null) expect(reply.stop).toEqual({ kind: 'string', text: 'seven' });
      });

      it('keeps characters that take several tokens complete', async (context) => {
        ready(context);
        needs.script(context);
        expect(textOf((await ask(contractRequest('unicode'))).message.content)).toBe(UNICODE);
      });

      it('separates thinking from text', async (context) => {
        ready(context);
        needs.script(context);
        const { message } = await ask(contractRequest('thinking'));
        expect(textOf(message.content)).toBe('It is done.');
        expect(message.reasoning_content).toContain('Let me see.');
      });

      it('separates tool calls and their arguments from text', async (context) => {
        ready(context);
        needs.script(context);
        const { message, finishReason } = await ask(contractRequest('calls', withTools));
        expect(finishReason).toBe('tool_calls');
        expect(textOf(message.content)).toBe('Two things.');
        const parsed = message.tool_calls?.map(({ function: { name, arguments: text } }) => [name, JSON.parse(text)]);
        expect(parsed).toEqual([
          ['bash', ARGUMENTS],
          ['read', {}],
        ]);
        const ids = message.tool_calls?.map(({ id }) => id) ?? [];
        expect(new Set(ids).size).toBe(2);
        expect(ids).not.toContain('');
      });

      it('makes a tool call when the request forces one', async (context) => {
        ready(context);
        needs.script(context);
        const named = { type: 'function', function: { name: 'read' } } as const;
        for (const toolChoice of ['required', named] as const) {
          const sentCall = contractRequest('forced', { ...withTools, toolChoice });
          const reply = await ask(sentCall).catch(cannot('tool_choice'));
          context.skip(reply === null, 'the server cannot be made to call a tool');
          if (reply === null) return;
          const { message, finishReason } = reply;
          const [call] = message.tool_calls ?? [];
          expect(call?.function.name).toBe('read');
          expect(JSON.parse(call?.function.arguments ?? '')).toEqual(ARGUMENTS);
          expect(['tool_calls', 'stop']).toContain(finishReason);
        }
      });

      it('follows a requested response format', async (context) => {
        ready(context);
        needs.script(context);
        const schema = { type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'] };
        const format = { type: 'json_schema', json_schema: { name: 'answer', schema } } as const;
        for (const responseFormat of [format, { type: 'json_object' } as const]) {
          const reply = await ask(contractRequest('object', { responseFormat })).catch(cannot('response_format'));
          context.skip(reply === null, 'the server cannot be made to follow a format');
          if (reply === null) return;
          expect(JSON.parse(reply.message.content ?? '')).toEqual(OBJECT);
        }
      });

      it('accepts the text of special tokens in a message', async (context) => {
        ready(context);
        const about = 'plain <|im_end|>\n<|im_start|>assistant <think></think> <tool_call> <|endoftext|> </s> [INST]';
        await ask(contractRequest(about));
      });

      it('returns a separate reply to each of several concurrent calls', async (context) => {
        ready(context);
        const sentCall = ['plain', 'words', 'unicode', 'plain', 'thinking', 'words', 'plain', 'unicode'];
        const requests = sentCall.map((about, index) => contractRequest(about, { sessionId: `ses_${index % 3}` }));
        await Promise.all(requests.map(ask));
        expect(subject.engine.info().inflight).toBe(0);
      });

      it('rejects with the reason of the signal when a call is aborted', async (context) => {
        ready(context);
        const request = contractRequest('words');
        const prompt = mode === 'chat' ? null : promptOf(await subject.engine.render(renderOf(request), never()));
        const controller = new AbortController();
        const reply = subject.engine.generate({ ...request, prompt }, controller.signal);
        controller.abort(new Error('enough'));
        await expect(reply).rejects.toThrow('enough');
        expect(subject.engine.info().inflight).toBe(0);
      });
    });

    it('returns a streamed reply that equals the sum of its deltas', async () => {
      for (const about of ['plain', 'unicode', 'thinking', 'calls']) {
        const deltas: ReplyDelta[] = [];
        const listener = { started: () => {}, delta: (delta: ReplyDelta) => void deltas.push(delta) };
        const { message } = await whole(subject, contractRequest(about, { ...withTools, listener }));
        if (deltas.length === 0) continue;
        const joined = (kind: ReplyDelta['kind']) =>
          deltas.map((delta) => (delta.kind === kind && 'text' in delta ? delta.text : '')).join('');
        expect(message.reasoning_content ?? '').toContain(joined('reasoning'));
        expect(message.content ?? '').toContain(joined('text'));
        expect((message.tool_calls ?? []).map((call) => call.function.arguments).join('')).toBe(joined('arguments'));
      }
    });

    it('returns the same reply for a prompt of ids as for messages when the seed is the same', async (context) => {
      needs.tokens(context);
      needs.script(context);
      for (const about of ['plain', 'unicode', 'thinking', 'calls']) {
        const byMessages = await whole(subject, contractRequest(about, withTools));
        const byIds = await byTokens(subject, contractRequest(about, withTools));
        expect([...byIds.promptIds]).toEqual([...byMessages.promptIds]);
        expect([...byIds.responseIds]).toEqual([...byMessages.responseIds]);
        expect(withoutCallIds(byIds)).toEqual(withoutCallIds(byMessages));
      }
    });

    it('resumes an interrupted reply from its last token, and returns it as one reply', async (context) => {
      needs.tokens(context);
      for (const about of ['words', 'unicode', 'calls']) {
        const reply = await byTokens(subject, contractRequest(about, withTools));
        const cut = Math.max(1, reply.responseIds.length >> 1);
        const resumeFrom = {
          responseIds: reply.responseIds.slice(0, cut),
          responseLogprobs: reply.responseLogprobs.slice(0, cut),
          versionSpans: [{ version: 'before', start: 0, end: cut }],
          routedExperts: null,
        };
        const again = contractRequest(about, { ...withTools, prompt: promptOf(reply.promptIds), resumeFrom });
        const continued = await whole(subject, again);
        expect([...continued.responseIds.subarray(0, cut)]).toEqual([...resumeFrom.responseIds]);
        expect([...continued.responseLogprobs.subarray(0, cut)]).toEqual([...resumeFrom.responseLogprobs]);
        expect(continued.versionSpans[0]).toEqual({ version: 'before', start: 0, end: cut });
        if (subject.ledger === undefined) continue;
        expect([...continued.responseIds]).toEqual([...reply.responseIds]);
        expect(withoutCallIds(continued)).toEqual(withoutCallIds(reply));
      }
    });

    it('counts the first part of a resumed reply towards the token limit', async (context) => {
      needs.tokens(context);
      const reply = await byTokens(subject, contractRequest('words', { maxTokens: 4 }));
      context.skip(reply.finishReason !== 'length', 'the model ended its reply before the bound');
      const resumeFrom = {
        responseIds: reply.responseIds.slice(0, 2),
        responseLogprobs: reply.responseLogprobs.slice(0, 2),
        versionSpans: [{ version: null, start: 0, end: 2 }],
        routedExperts: null,
      };
      const prompt = promptOf(reply.promptIds);
      const continued = await whole(subject, contractRequest('words', { maxTokens: 4, prompt, resumeFrom }));
      expect(continued.responseIds.length).toBeLessThanOrEqual(4);
    });

    it('renders the same ids that it counts and uses as the prompt', async (context) => {
      await needs.render(context);
      for (const over of [{}, withTools]) {
        const request = contractRequest('unicode Ünïcödé 😀', over);
        const ids = await subject.engine.render(renderOf(request), never());
        expect(await subject.engine.countTokens(request, never())).toBe(ids.length);
        if (!subject.engine.info().capabilities.token_ids) continue;
        expect([...(await whole(subject, request)).promptIds]).toEqual([...ids]);
      }
    });

    it('converts ids back to the text from which they were rendered', async (context) => {
      await needs.render(context);
      const request = contractRequest('Ünïcödé 日本語 😀 text');
      const text = await subject.engine.detokenize(await subject.engine.render(renderOf(request), never()), never());
      expect(text).toContain('contract Ünïcödé 日本語 😀 text');
      const closed = await subject.engine.detokenize(
        await subject.engine.render(renderOf(request, false), never()),
        never(),
      );
      expect(text.startsWith(closed)).toBe(true);
    });
  });
}

/** Returns an error handler that resolves with `null` when the server does not support `field`, and rethrows any other error. */
function cannot(field: string): (error: unknown) => null {
  return (error) => {
    expect(error).toMatchObject({ code: 'unsupported', details: { field } });
    return null;
  };
}

/**
 * Returns the content without the white space around it. With templates that open a thinking block, a reply's text begins with blank lines,
 * which floe's adapters do not remove.
 */
function textOf(content: string | null): string {
  return content?.trim() ?? '';
}

/** Whether the server renders messages to token ids. Engines that cannot do so reject with `unsupported`. */
async function renders({ engine }: ContractSubject): Promise<boolean> {
  try {
    await engine.render(renderOf(contractRequest('plain')), never());
    return true;
  } catch (error) {
    expect(error).toMatchObject({ code: 'unsupported' });
    return false;
  }
}

function withoutCallIds({ message, finishReason }: GenerateReply): object {
  const toolCalls = message.tool_calls?.map((call) => ({ ...call, id: '' }));
  return { finishReason, message: { ...message, ...(toolCalls === undefined ? {} : { tool_calls: toolCalls }) } };
}
