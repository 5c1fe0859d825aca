// Request bodies of a session with tool calls, one for each API dialect, in the form in which harnesses send them. A turn adds about 3 KB.
import type { DialectName } from '@floe-rl/core/schema';

const SYSTEM = 'You are an agent in a repository. Look before you edit, and run the tests.\n'.repeat(100);
const OUTPUT = 'def f(x):\n    return "a\\tb"  # some code with "quotes" and é\n'.repeat(34);
const TOOL_COUNT = 12;

const call = (i: number) => ({
  command: `cd src && sed -n '${i},${i + 40}p' module_${i}.py`,
  description: `Read part ${i}`,
});
const thinking = (i: number): string => `Turn ${i}. The function must be somewhere near here; `.repeat(4);
const text = (i: number): string => `Let me read module ${i}.`;
const output = (i: number): string => `${i}\n${OUTPUT}`;

function schema(i: number): object {
  const property = (name: string): object => ({
    type: 'string',
    description: `What ${name} of tool ${i} is for, at some length. `.repeat(5),
  });
  const names = ['command', 'description', 'path', 'limit'];
  return {
    type: 'object',
    properties: Object.fromEntries(names.map((name) => [name, property(name)])),
    required: ['command'],
    additionalProperties: false,
  };
}
const tools = Array.from({ length: TOOL_COUNT }, (_, i) => ({
  name: i === 0 ? 'Bash' : `Tool${i}`,
  description: `What tool ${i} does, and when to use it. `.repeat(20),
  schema: schema(i),
}));
/** Returns the items (messages or similar) of `turns` turns in order. `make` returns the items of one turn. */
function turnsOf(turns: number, make: (turn: number) => readonly object[]): object[] {
  return Array.from({ length: turns }, (_, i) => make(i)).flat();
}

function anthropic(turns: number): object {
  const mark = (i: number): object => (i === turns - 1 ? { cache_control: { type: 'ephemeral' } } : {});
  return {
    model: 'policy',
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'Fix the tests.' }] },
      ...turnsOf(turns, (i) => [
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: thinking(i), signature: `cpl_${i}` },
            { type: 'text', text: text(i) },
            { type: 'tool_use', id: `call_${i}`, name: 'Bash', input: call(i) },
          ],
        },
        {
          role: 'user',
          content: [{ tool_use_id: `call_${i}`, type: 'tool_result', content: output(i), is_error: false, ...mark(i) }],
        },
      ]),
    ],
    system: [
      { type: 'text', text: 'You are an agent.' },
      { type: 'text', text: SYSTEM, cache_control: { type: 'ephemeral' } },
    ],
    tools: tools.map(({ name, description, schema }) => ({ name, description, input_schema: schema })),
    metadata: { user_id: '{"device_id":"d","account_uuid":"","session_id":"s"}' },
    max_tokens: 32_000,
    thinking: { type: 'adaptive', display: 'omitted' },
    output_config: { effort: 'high' },
    stream: true,
  };
}

function openaiChat(turns: number): object {
  return {
    model: 'policy',
    messages: [
      { role: 'developer', content: SYSTEM },
      { role: 'user', content: [{ type: 'text', text: 'Fix the tests.' }] },
      ...turnsOf(turns, (i) => [
        {
          role: 'assistant',
          content: text(i),
          reasoning_content: thinking(i),
          tool_calls: [
            { id: `call_${i}`, type: 'function', function: { name: 'Bash', arguments: JSON.stringify(call(i)) } },
          ],
        },
        { role: 'tool', tool_call_id: `call_${i}`, content: [{ type: 'text', text: output(i) }] },
      ]),
    ],
    tools: tools.map(({ name, description, schema }) => ({
      type: 'function',
      function: { name, description, parameters: schema, strict: false },
    })),
    stream: true,
    stream_options: { include_usage: true },
    store: false,
    reasoning_effort: 'high',
    max_completion_tokens: 32_000,
  };
}

function openaiResponses(turns: number): object {
  return {
    model: 'policy',
    input: [
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: SYSTEM }] },
      { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Fix the tests.' }] },
      ...turnsOf(turns, (i) => [
        {
          type: 'reasoning',
          id: `rs_${i}`,
          summary: [],
          content: [{ type: 'reasoning_text', text: thinking(i) }],
          encrypted_content: null,
        },
        { type: 'message', id: `msg_${i}`, role: 'assistant', content: [{ type: 'output_text', text: text(i) }] },
        {
          type: 'function_call',
          id: `fc_${i}`,
          call_id: `call_${i}`,
          name: 'Bash',
          arguments: JSON.stringify(call(i)),
        },
        { type: 'function_call_output', id: `fco_${i}`, call_id: `call_${i}`, output: output(i) },
      ]),
    ],
    tools: tools.map(({ name, description, schema }) => ({
      type: 'function',
      name,
      description,
      strict: false,
      parameters: schema,
    })),
    tool_choice: 'auto',
    parallel_tool_calls: true,
    reasoning: { summary: 'auto' },
    include: ['reasoning.encrypted_content'],
    prompt_cache_key: 's',
    store: false,
    stream: true,
  };
}

function gemini(turns: number): object {
  return {
    contents: [
      { role: 'user', parts: [{ text: 'Fix the tests.' }] },
      ...turnsOf(turns, (i) => [
        {
          role: 'model',
          parts: [
            { text: thinking(i), thought: true },
            { text: text(i) },
            { functionCall: { id: `call_${i}`, name: 'Bash', args: call(i) }, thoughtSignature: `cpl_${i}` },
          ],
        },
        {
          role: 'user',
          parts: [{ functionResponse: { id: `call_${i}`, name: 'Bash', response: { output: output(i) } } }],
        },
      ]),
    ],
    systemInstruction: { role: 'user', parts: [{ text: SYSTEM }] },
    tools: [
      {
        functionDeclarations: tools.map(({ name, description, schema }) => ({
          name,
          description,
          parametersJsonSchema: schema,
        })),
      },
    ],
    generationConfig: { temperature: 1, topP: 0.95, thinkingConfig: { includeThoughts: true } },
  };
}

/** For each dialect, a function that returns the request body of a session with `turns` turns. */
export const HISTORIES: Readonly<Record<DialectName, (turns: number) => object>> = {
  anthropic,
  openai_chat: openaiChat,
  openai_responses: openaiResponses,
  gemini,
};
