import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type CallContext, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { gemini } from '../../../src/dialects/gemini/dialect.ts';

const context = (over: Partial<CallContext> = {}): CallContext => ({
  ...plainContext(),
  query: new URLSearchParams('alt=sse'),
  model: 'm',
  stream: true,
  ...over,
});

const hi = { role: 'user', parts: [{ text: 'hi' }] };
const parse = (over: object, at: Partial<CallContext> = {}): CanonicalRequest =>
  gemini.parseRequest({ contents: [hi], ...over }, context(at));
/** Parses a token count request with these contents. Unlike a generation request, it may end with a content of the model. */
const read = (contents: object[], over: object = {}): CanonicalRequest =>
  gemini.parseCount({ contents, ...over }, context());
const messagesOf = (contents: object[]) => read(contents).messages;

const user = (...parts: object[]) => ({ role: 'user', parts });
const model = (...parts: object[]) => ({ role: 'model', parts });
const call = (name: string, args: object = {}, id?: string) => ({
  functionCall: { name, args, ...(id === undefined ? {} : { id }) },
});
const result = (name: string, response: object = { output: 'out' }, id?: string) => ({
  functionResponse: { name, response, ...(id === undefined ? {} : { id }) },
});
const png = { inlineData: { mimeType: 'image/png', data: 'AAAA' } };
const pngPart = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
const base64 = (text: string) => Buffer.from(text).toString('base64');
const signed = (thinking: string) => base64(`floe/th2:cpl_1:${JSON.stringify(thinking)}`);

describe('a generate content request', () => {
  it('becomes canonical as Gemini CLI sends it and notes what was dropped', () => {
    const request = parse({
      contents: [hi],
      systemInstruction: { role: 'user', parts: [{ text: 'You are an agent.' }, { text: 'Be brief.' }] },
      tools: [
        {
          functionDeclarations: [
            {
              name: 'run_shell_command',
              description: 'Runs a command',
              parametersJsonSchema: { type: 'object', properties: { command: { type: 'string' } } },
            },
            { name: 'nothing' },
          ],
        },
        { googleSearch: {} },
        { codeExecution: {}, urlContext: {} },
      ],
      toolConfig: { functionCallingConfig: { mode: 'AUTO' } },
      generationConfig: {
        temperature: 0.5,
        topP: 0.9,
        topK: 64,
        maxOutputTokens: 100,
        stopSequences: ['END'],
        seed: 7,
        candidateCount: 1,
        thinkingConfig: { includeThoughts: true, thinkingBudget: 8192 },
        responseLogprobs: true,
      },
      safetySettings: [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'BLOCK_NONE' }],
      labels: { team: 'x' },
    });
    expect(request).toEqual({
      model: 'm',
      messages: [
        { role: 'system', content: 'You are an agent.\nBe brief.' },
        { role: 'user', content: 'hi' },
      ],
      tools: [
        {
          type: 'function',
          function: {
            name: 'run_shell_command',
            description: 'Runs a command',
            parameters: { type: 'object', properties: { command: { type: 'string' } } },
          },
        },
        { type: 'function', function: { name: 'nothing' } },
      ],
      toolForms: new Map(),
      toolChoice: 'auto',
      parallelToolCalls: null,
      samplingAsked: { temperature: 0.5, top_p: 0.9, top_k: 64, max_tokens: 100, stop: ['END'], seed: 7 },
      stream: true,
      streamUsage: true,
      previousCompletionId: null,
      claimedCompletions: new Map(),
      adjusted: [
        'generationConfig.thinkingConfig ignored',
        'generationConfig.responseLogprobs ignored',
        'hosted tool googleSearch dropped',
        'hosted tool codeExecution dropped',
        'hosted tool urlContext dropped',
      ],
      thread: 'main',
      callKind: 'main',
    });
  });

  it('may spell its fields in snake_case and write one object instead of a list', () => {
    const camel = parse({
      contents: [user({ text: 'see' }, png), model(call('f', { a_b: 1 }, 'x')), user(result('f', {}, 'x'))],
      systemInstruction: { parts: [{ text: 'S' }] },
      tools: [{ functionDeclarations: [{ name: 'f', parametersJsonSchema: { type: 'object' } }] }],
      toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['f'] } },
      generationConfig: { maxOutputTokens: 5, topP: 1, responseMimeType: 'application/json' },
    });
    const snake = parse({
      contents: [
        user({ text: 'see' }, { inline_data: { mime_type: 'image/png', data: 'AAAA' } }),
        { role: 'model', parts: { function_call: { name: 'f', args: { a_b: 1 }, id: 'x' } } },
        { role: 'user', parts: { function_response: { name: 'f', response: {}, id: 'x' } } },
      ],
      system_instruction: { parts: { text: 'S' } },
      tools: { function_declarations: [{ name: 'f', parameters_json_schema: { type: 'object' } }] },
      tool_config: { function_calling_config: { mode: 'ANY', allowed_function_names: ['f'] } },
      generation_config: { max_output_tokens: 5, top_p: 1, response_mime_type: 'application/json' },
    });
    expect(snake).toEqual(camel);
    expect(snake.toolChoice).toEqual({ type: 'function', function: { name: 'f' } });
    expect(snake.messages[2]).toMatchObject({ tool_calls: [{ function: { arguments: '{"a_b":1}' } }] });
  });

  it('uses the model and the streaming mode of the path, and the model of the body when the path has none', () => {
    expect(parse({ model: 'models/other' })).toMatchObject({ model: 'm', stream: true });
    expect(parse({ model: 'models/other' }, { model: null, stream: false })).toMatchObject({
      model: 'other',
      stream: false,
    });
    expect(() => parse({}, { model: null })).toThrow('model: neither the path nor the body');
  });

  it('streams an array when it does not request events', () => {
    const query = new URLSearchParams();
    expect(parse({})).not.toHaveProperty('streamAsArray');
    expect(parse({}, { query, stream: false })).not.toHaveProperty('streamAsArray');
    expect(parse({}, { query })).toMatchObject({ streamAsArray: true });
    expect(parse({}, { query: new URLSearchParams('alt=json') })).toMatchObject({ streamAsArray: true });
  });

  it.each([
    [{ mode: 'AUTO' }, 'auto', []],
    [{ mode: 'NONE' }, 'none', []],
    [{ mode: 'ANY' }, 'required', []],
    [{ mode: 'MODE_UNSPECIFIED' }, null, []],
    [{}, null, []],
    [{ mode: 'VALIDATED' }, 'auto', ['mode VALIDATED treated as AUTO']],
    [{ mode: 'ANY', allowedFunctionNames: ['f'] }, { type: 'function', function: { name: 'f' } }, []],
    [{ mode: 'ANY', allowedFunctionNames: ['f', 'g'] }, 'required', ['allowedFunctionNames ignored']],
    [{ mode: 'AUTO', allowedFunctionNames: ['f'] }, 'auto', ['allowedFunctionNames ignored']],
    [{ mode: 'ANY', allowedFunctionNames: ['h'] }, null, ['tool_choice ignored: it names no tool of the request']],
  ])('translates the tool choice %j', (functionCallingConfig, toolChoice, adjusted) => {
    const tools = [{ functionDeclarations: [{ name: 'f' }, { name: 'g' }] }];
    expect(parse({ tools, toolConfig: { functionCallingConfig } })).toMatchObject({ toolChoice, adjusted });
  });

  it.each<[object, object | undefined, string[]]>([
    [{ responseMimeType: 'application/json' }, { type: 'json_object' }, []],
    [
      {
        responseMimeType: 'application/json',
        responseSchema: { type: 'OBJECT', properties: { a: { type: 'STRING' } } },
      },
      {
        type: 'json_schema',
        json_schema: { name: 'response', schema: { type: 'object', properties: { a: { type: 'string' } } } },
      },
      [],
    ],
    [
      { responseMimeType: 'application/json', responseJsonSchema: { type: 'array' } },
      { type: 'json_schema', json_schema: { name: 'response', schema: { type: 'array' } } },
      [],
    ],
    [{ responseMimeType: 'text/plain' }, undefined, []],
    [{ responseMimeType: 'text/x.enum' }, undefined, ['responseMimeType ignored']],
    [
      { responseSchema: { type: 'OBJECT' } },
      undefined,
      ['response schema ignored: responseMimeType is not application/json'],
    ],
  ])('translates the response format %j', (generationConfig, format, adjusted) => {
    const request = parse({ generationConfig });
    expect(request.samplingAsked.response_format).toEqual(format);
    expect(request.adjusted).toEqual(adjusted);
  });

  it('is labelled as a title call when it requests only a title', () => {
    const responseSchema = { type: 'OBJECT', properties: { title: { type: 'STRING' } } };
    const generationConfig = { responseMimeType: 'application/json', responseSchema };
    expect(parse({ generationConfig }, { callRules: 'qwen_code' })).toMatchObject({ callKind: 'title' });
    expect(parse({ generationConfig })).toMatchObject({ callKind: 'main' });
  });

  it('contains contents alone or a whole request when tokens are counted', () => {
    const whole = { model: 'models/other', contents: [hi], systemInstruction: { parts: [{ text: 'S' }] } };
    const at = context({ model: null });
    expect(gemini.parseCount({ generateContentRequest: whole }, at)).toMatchObject({
      model: 'other',
      messages: [{ role: 'system', content: 'S' }, { role: 'user' }],
    });
    expect(gemini.parseCount({ generate_content_request: whole }, context())).toMatchObject({ model: 'm' });
    expect(read([hi, model({ text: 'yes' })]).messages).toHaveLength(2);
    expect(() => gemini.parseCount({ generateContentRequest: { contents: 5 } }, at)).toThrow(
      'generateContentRequest.contents:',
    );
    expect(gemini.encodeCount(5)).toBe('{"totalTokens":5}');
  });

  it.each<[object, string]>([
    [{ contents: [] }, 'contents: '],
    [{ contents: 'hi' }, 'contents: '],
    [{ contents: [{ role: 'assistant', parts: [] }] }, 'contents.0.role'],
    [{ contents: [hi, user({ text: 5 })] }, 'contents.1.parts.0.text'],
    [{ contents: [hi, model({ functionCall: { args: {} } })] }, 'contents.1.parts.0.functionCall.name'],
    [{ contents: [hi, model({ functionCall: { name: 'f', args: '{}' } })] }, 'contents.1.parts.0.functionCall.args'],
    [{ contents: [hi, model({ text: 'x', thoughtSignature: 5 })] }, 'contents.1.parts.0.thoughtSignature'],
    [{ contents: [user({ inline_data: { data: 'x' } })] }, 'contents.0.parts.0.inlineData.mimeType'],
    [{ contents: [user({ functionResponse: { name: 'f', response: 'x' } })] }, 'contents.0.parts.0.functionResponse.'],
    [{ contents: [user({ text: 'x', inlineData: png.inlineData })] }, 'contents.0.parts.0: a part is one of'],
    [{ contents: [user(call('f'))] }, 'contents.0.parts.0.functionCall: only a content with the role model'],
    [{ contents: [model(result('f')), hi] }, 'contents.0.parts.0.functionResponse: a content with the role model'],
    [{ tools: [{ functionDeclarations: [{}] }] }, 'tools.0.functionDeclarations.0.name'],
    [{ tools: [{}, { function_declarations: [{ name: 'f', parameters: [] }] }] }, 'tools.1.functionDeclarations.0.par'],
    [{ systemInstruction: { parts: [{ text: {} }] } }, 'systemInstruction.parts.0.text'],
    [{ generationConfig: { maxOutputTokens: '5' } }, 'generationConfig.maxOutputTokens'],
    [{ toolConfig: { functionCallingConfig: { mode: 'ALL' } } }, 'toolConfig.functionCallingConfig.mode'],
    [{ generationConfig: { candidateCount: 2 } }, 'generationConfig.candidateCount'],
    [{ cachedContent: 'cachedContents/x' }, 'cachedContent'],
    [{ contents: [hi, model({ text: 'Sure, ' })] }, 'contents.1: a model content at the end'],
  ])('is refused with the path of an unsupported field: %j', (over, path) => {
    expect(() => parse(over)).toThrow(path);
    expect(() => parse(over)).toThrow(expect.objectContaining({ status: 422 }));
  });
});

describe("a schema in Google's format", () => {
  const schemaOf = (parameters: object, key = 'parameters') =>
    parse({ tools: [{ functionDeclarations: [{ name: 'f', [key]: parameters }] }] }).tools[0]?.function.parameters;

  it('is converted to JSON Schema', () => {
    expect(
      schemaOf({
        type: 'OBJECT',
        required: ['TYPE'],
        property_ordering: ['TYPE'],
        properties: {
          TYPE: { type: 'STRING', format: 'enum', enum: ['STRING', 'NUMBER'], nullable: true },
          list: { type: 'ARRAY', items: { type: 'INTEGER', format: 'int32' }, minItems: '1', max_items: '10' },
          either: { any_of: [{ type: 'BOOLEAN' }, { type: 'NULL' }], nullable: true },
          none: { type: 'TYPE_UNSPECIFIED', nullable: false },
          fixed: { type: 'NUMBER', default: { type: 'STRING' }, example: 'STRING' },
          nullable: { type: 'STRING' },
        },
      }),
    ).toEqual({
      type: 'object',
      required: ['TYPE'],
      propertyOrdering: ['TYPE'],
      properties: {
        TYPE: { type: ['string', 'null'], format: 'enum', enum: ['STRING', 'NUMBER', null] },
        list: { type: 'array', items: { type: 'integer', format: 'int32' }, minItems: 1, maxItems: 10 },
        either: { anyOf: [{ type: 'boolean' }, { type: 'null' }, { type: 'null' }] },
        none: {},
        fixed: { type: 'number', default: { type: 'STRING' }, example: 'STRING' },
        nullable: { type: 'string' },
      },
    });
  });

  it('is kept when it is JSON Schema, even with property names such as __proto__', () => {
    const schema = JSON.parse(
      '{"type":"object","properties":{"__proto__":{"type":["string","null"]},"constructor":{"$ref":"#/$defs/x"}},' +
        '"$defs":{"x":{"const":"OBJECT"}},"additionalProperties":false,"minProperties":1}',
    );
    expect(JSON.stringify(schemaOf(schema, 'parametersJsonSchema'))).toBe(JSON.stringify(schema));
  });
});

describe('an assistant turn', () => {
  it('contains text, thinking and calls, however many contents it was split into', () => {
    const turn = {
      role: 'assistant',
      content: ' Let me look.',
      reasoning_content: 'Hm. ',
      tool_calls: [
        { id: 'a', type: 'function', function: { name: 'f', arguments: '{"z":1,"a":"é"}' } },
        { id: 'b', type: 'function', function: { name: 'g', arguments: '{}' } },
      ],
    };
    const parts = [
      { text: 'H', thought: true },
      { text: 'm. ', thought: true },
      { text: ' Let me' },
      { text: ' look.' },
      call('f', { z: 1, a: 'é' }, 'a'),
      { functionCall: { name: 'g', id: 'b' } },
    ];
    expect(messagesOf([model(...parts)])).toEqual([turn]);
    expect(messagesOf([model(), ...parts.map((part) => model(part)), model({ text: '' })])).toEqual([turn]);
  });

  it('has no content when it has only calls, and an empty text when it is empty', () => {
    expect(messagesOf([model(call('f', {}, 'a'))])[0]).toMatchObject({ content: null });
    expect(messagesOf([{ role: 'model' }])).toEqual([{ role: 'assistant', content: '' }]);
  });

  it('drops and notes parts that only Google runs or reads', () => {
    const request = read([
      model(
        { executableCode: { language: 'PYTHON', code: 'x' } },
        { codeExecutionResult: { outcome: 'OUTCOME_OK' } },
        png,
      ),
      user({ inlineData: { mimeType: 'audio/wav', data: 'x' } }, { fileData: { fileUri: 'gs://b/x.png' } }, { new: 1 }),
      user({ text: 'note', thought: true }),
    ]);
    expect(request.messages).toEqual([
      { role: 'assistant', content: '' },
      { role: 'user', content: '' },
      { role: 'user', content: '' },
    ]);
    expect(request.adjusted).toEqual([
      'executableCode part dropped',
      'codeExecutionResult part dropped',
      'media outside a user content dropped',
      'media other than images dropped',
      'part of an unknown kind dropped',
      'thought outside a model content dropped',
    ]);
  });

  it('accepts images as data or by URL', () => {
    const file = (fileUri: string) => ({ fileData: { mimeType: 'image/jpeg', fileUri } });
    const request = read([user({ text: 'see' }, png, file('https://host/x.jpg'), file('gs://bucket/x.jpg'))]);
    expect(request.messages[0]?.content).toEqual([
      { type: 'text', text: 'see' },
      pngPart,
      { type: 'image_url', image_url: { url: 'https://host/x.jpg' } },
    ]);
    expect(request.adjusted).toEqual(['image that only Google can fetch dropped']);
  });

  it('keeps arguments with names such as __proto__', () => {
    const args = JSON.parse('{"__proto__":{"polluted":true},"constructor":1}');
    expect(messagesOf([model(call('f', args, 'a'))])[0]).toMatchObject({
      tool_calls: [{ function: { arguments: '{"__proto__":{"polluted":true},"constructor":1}' } }],
    });
    expect({}).not.toHaveProperty('polluted');
  });
});

describe('thinking in a signature', () => {
  const reasoningOf = (...parts: object[]) => {
    const [message] = messagesOf([model(...parts)]);
    return message?.role === 'assistant' ? message.reasoning_content : undefined;
  };

  it('is restored only when the thought part is missing', () => {
    const thought = { text: 'Hm', thought: true };
    const text = { text: 'x', thoughtSignature: signed('Hm') };
    expect(reasoningOf(thought, text)).toBe('Hm');
    expect(reasoningOf(text)).toBe('Hm');
    expect(reasoningOf({ text: 'Hm, edited', thought: true }, text)).toBe('Hm, edited');
    expect(reasoningOf({ ...call('f'), thought_signature: signed('Hm') })).toBe('Hm');
    expect(reasoningOf({ thoughtSignature: signed('Hm') })).toBe('Hm');
    expect(reasoningOf(text, { text: 'y', thoughtSignature: signed(', well') })).toBe('Hm, well');
    expect(reasoningOf(thought, text, { text: 'y', thoughtSignature: signed(', well') })).toBe('Hm, well');
    expect(reasoningOf(text, { text: ', well', thought: true }, { ...text, thoughtSignature: signed(', well') })).toBe(
      'Hm, well',
    );
  });

  it('is decoded from the URL-safe alphabet without padding, too', () => {
    const thinking = '>>>???ü\ud83d\ude00';
    const signature = signed(thinking).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
    expect(reasoningOf({ text: 'x', thoughtSignature: signature })).toBe(thinking);
  });

  it.each([
    ['the placeholder of Gemini CLI', 'skip_thought_signature_validator'],
    ["one of Google's", 'CiQBVKhc7n0DZ2Jl'],
    ['one of another version', base64('floe/th2:"x"')],
    ['a truncated one', base64('floe/th2:cpl_1:"x')],
    ['one that contains no string', base64('floe/th2:cpl_1:{"text":"x"}')],
    ['one with very long JSON', base64(`floe/th2:cpl_1:${'[[],'.repeat(10_000_000)}`)],
    ['an empty one', ''],
  ])('is not read from %s', (_, thoughtSignature) => {
    expect(messagesOf([model({ text: 'x', thoughtSignature })])).toEqual([{ role: 'assistant', content: 'x' }]);
    expect(reasoningOf({ text: 'T', thought: true, thoughtSignature }, { text: 'x', thoughtSignature })).toBe('T');
  });
});

describe('a tool result', () => {
  const answered = (response: object | undefined, over: object = {}) =>
    read([model(call('f', {}, 'a')), user({ functionResponse: { name: 'f', id: 'a', response, ...over } })]);

  it.each<[object | undefined, string, string[]]>([
    [{ output: 'text' }, 'text', []],
    [{ output: '' }, '', []],
    [{ output: { lines: [1, 2] } }, '{"lines":[1,2]}', []],
    [{ error: 'No such file' }, 'No such file', ['error of a tool result sent as its text']],
    [{ error: { code: 5 } }, '{"code":5}', ['error of a tool result sent as its text']],
    [{ result: 'text' }, '{"result":"text"}', []],
    [{ output: 'text', exit: 1 }, '{"output":"text","exit":1}', []],
    [{}, '{}', []],
    [undefined, '', []],
  ])('translates the response %j to %j', (response, content, adjusted) => {
    const request = answered(response);
    expect(request.messages[1]).toEqual({ role: 'tool', tool_call_id: 'a', content });
    expect(request.adjusted).toEqual(adjusted);
  });

  it('is followed by its images in a user message, whether they were nested or followed it', () => {
    const nested = answered({ output: 'see' }, { parts: [png] });
    const following = read([model(call('f', {}, 'a')), user(result('f', { output: 'see' }, 'a'), png)]);
    expect(nested.messages.slice(1)).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'see' },
      { role: 'user', content: [pngPart] },
    ]);
    expect(following).toEqual(nested);
  });

  it('is placed before the text of its content', () => {
    const request = read([
      model(call('f', {}, 'a'), call('g', {}, 'b')),
      user({ text: 'one' }, result('g', { output: 'B' }, 'b'), png, result('f', { output: 'A' }, 'a'), { text: 'two' }),
    ]);
    expect(request.messages.slice(1)).toEqual([
      { role: 'tool', tool_call_id: 'b', content: 'B' },
      { role: 'tool', tool_call_id: 'a', content: 'A' },
      { role: 'user', content: [pngPart, { type: 'text', text: 'one\ntwo' }] },
    ]);
    expect(request.adjusted).toEqual([
      'text before a tool result moved after it',
      'image of a tool result moved to a user message',
    ]);
  });

  const pairs = (calls: object[], results: object[]) => {
    const [turn, ...rest] = messagesOf([model(...calls), { role: 'function', parts: results }]);
    const ids = turn?.role === 'assistant' ? (turn.tool_calls ?? []).map(({ id }) => id) : [];
    return rest.map((message) => (message.role === 'tool' ? ids.indexOf(message.tool_call_id) : null));
  };

  it.each<[string, object[], object[], number[]]>([
    [
      'by id, in any order',
      [call('f', {}, 'a'), call('f', {}, 'b')],
      [result('f', {}, 'b'), result('g', {}, 'a')],
      [1, 0],
    ],
    ['by name when there are no ids', [call('f'), call('g')], [result('g'), result('f')], [1, 0]],
    [
      'by order among calls of one name',
      [call('f'), call('g'), call('f')],
      [result('f'), result('f'), result('g')],
      [0, 2, 1],
    ],
    ['by order when no name matches', [call('f'), call('g')], [result('x'), result('y')], [0, 1]],
    [
      'by name when only the calls have ids',
      [call('f', {}, 'a'), call('g', {}, 'b')],
      [result('g'), result('f')],
      [1, 0],
    ],
    [
      'by name when only the results have ids',
      [call('f'), call('g')],
      [result('g', {}, 'y'), result('f', {}, 'x')],
      [1, 0],
    ],
    [
      'after calls with an id were paired',
      [call('f'), call('f', {}, 'a')],
      [result('f', {}, 'a'), result('f')],
      [1, 0],
    ],
  ])('is paired with its call %s', (_, calls, results, expected) => {
    expect(pairs(calls, results)).toEqual(expected);
  });

  it.each<[string, object[], string]>([
    ['no call at all', [user(result('f'))], 'contents.0.parts.0.functionResponse'],
    ['an unknown call', [model(call('f', {}, 'a')), user(result('f', {}, 'b'))], 'contents.1.parts.0.functionResponse'],
    [
      'a call that already has a result',
      [model(call('f', {}, 'a')), user(result('f', {}, 'a'), result('f', {}, 'a'))],
      'contents.1.parts.1.functionResponse',
    ],
    [
      'a call of an earlier turn',
      [model(call('f')), user({ text: 'wait' }), model({ text: 'yes' }), user(result('f'))],
      'contents.3.parts.0.functionResponse',
    ],
  ])('is refused with its path when it answers %s', (_, contents, path) => {
    expect(() => read(contents)).toThrow(`${path}: it answers no open call`);
  });

  it('may be sent in several user contents', () => {
    const request = read([model(call('f'), call('f')), user(result('f')), user({ text: 'image:' }), user(result('f'))]);
    expect(request.messages.map((message) => (message.role === 'tool' ? message.tool_call_id : message.role))).toEqual([
      'assistant',
      'call_0_0',
      'user',
      'call_0_1',
    ]);
  });

  it('gets an id that the client did not use when its call has none', () => {
    const contents = [
      model(call('f', {}, 'call_1_1'), call('f', {}, 'call_1_1_')),
      user(result('f', {}, 'call_1_1'), result('f', {}, 'call_1_1_')),
      model(call('f', {}, 'x'), call('f'), call('f', {}, '')),
      user(result('f', {}, 'x'), result('f'), result('f')),
    ];
    const { messages, adjusted } = read(contents);
    expect(messages.flatMap((message) => (message.role === 'tool' ? [message.tool_call_id] : []))).toEqual([
      'call_1_1',
      'call_1_1_',
      'x',
      'call_1_1__',
      'call_1_2',
    ]);
    expect(adjusted).toEqual([]);
  });

  it('is paired in linear time', () => {
    const many = 20_000;
    const names = Array.from({ length: many }, (_, index) => `f${index % 7}`);
    const calls = names.map((name) => call(name));
    const results = names.toReversed().map((name) => result(name));
    const found = pairs(calls, results);
    expect(new Set(found).size).toBe(many);
    expect(found).not.toContain(-1);
  }, 5_000);
});

it('a conversation keeps the canonical form of earlier messages when it grows, with and without ids', () => {
  const turn = fc.record({
    thinking: fc.string(),
    text: fc.string(),
    calls: fc.array(fc.record({ name: fc.constantFrom('f', 'g'), id: fc.option(fc.constantFrom('a', 'call_0_0')) }), {
      maxLength: 3,
    }),
    note: fc.string(),
    image: fc.boolean(),
  });
  fc.assert(
    fc.property(fc.array(turn, { minLength: 1, maxLength: 4 }), (turns) => {
      // The random tool call ids are made unique, because clients never use an id twice.
      const contents = turns.flatMap(({ thinking, text, calls, note, image }, index) => {
        const ids = calls.map(({ id }, at) => (id === null ? undefined : `${id}_${index}${at}x`));
        return [
          model({ text, thoughtSignature: signed(thinking) }, ...calls.map(({ name }, at) => call(name, {}, ids[at]))),
          user(...calls.map(({ name }, at) => result(name, {}, ids[at])), ...(image ? [png] : []), { text: note }),
        ];
      });
      const whole = messagesOf(contents);
      // A request with only the first turns must give the same messages as the beginning of the whole conversation.
      for (let end = 2; end < contents.length; end += 2) {
        const part = messagesOf(contents.slice(0, end));
        expect(whole.slice(0, part.length)).toEqual(part);
      }
    }),
    { numRuns: 200 },
  );
});
