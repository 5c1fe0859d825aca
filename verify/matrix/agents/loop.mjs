// The smallest agent: a loop around one model call in the dialect that its argument names, with two tools. It stands for
// the agents that people write themselves, and runs in the sandbox with nothing but Node.
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';

const { FLOE_BASE_URL: base, FLOE_API_KEY: key, FLOE_MODEL: model, FLOE_INSTRUCTION_FILE: file } = process.env;
const instruction = readFileSync(file, 'utf8');
const MAX_TURNS = 30;
const TRIES = 6;
const PAUSE_MS = 300;

const string = { type: 'string' };
const TOOLS = [
  { name: 'shell', description: 'Runs a command.', parameters: schema({ command: string }) },
  { name: 'view_image', description: 'Shows a PNG file.', parameters: schema({ path: string }) },
];

function schema(properties) {
  return { type: 'object', properties, required: Object.keys(properties) };
}

/**
 * A dialect: `path` and `body(history)` of a request, `take(reply)` gives `{ turn, calls: [{ id, name, args }] }`, and
 * `results(list)` what goes into the history for `{ call, text, image }`. `args` is an object or JSON text.
 */
const DIALECTS = {
  openai_chat: {
    path: '/v1/chat/completions',
    headers: { authorization: `Bearer ${key}` },
    first: [{ role: 'user', content: instruction }],
    body: (messages) => ({ model, messages, tools: TOOLS.map((tool) => ({ type: 'function', function: tool })) }),
    take({ choices: [{ message }] }) {
      const calls = (message.tool_calls ?? []).map(({ id, function: f }) => ({ id, name: f.name, args: f.arguments }));
      return { turn: [message], calls };
    },
    results: (list) => [
      ...list.map(({ call, text }) => ({ role: 'tool', tool_call_id: call.id, content: text })),
      ...list
        .filter(({ image }) => image)
        .map(({ image }) => ({ role: 'user', content: [{ type: 'image_url', image_url: { url: dataUrl(image) } }] })),
    ],
  },
  anthropic: {
    path: '/v1/messages',
    headers: { 'x-api-key': key, 'anthropic-version': '2023-06-01' },
    first: [{ role: 'user', content: instruction }],
    body: (messages) => ({
      model,
      max_tokens: 4096,
      messages,
      tools: TOOLS.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters })),
    }),
    take({ content }) {
      const calls = content.filter(({ type }) => type === 'tool_use');
      return {
        turn: [{ role: 'assistant', content }],
        calls: calls.map(({ id, name, input }) => ({ id, name, args: input })),
      };
    },
    results: (list) => [
      {
        role: 'user',
        content: list.map(({ call, text, image }) => ({
          type: 'tool_result',
          tool_use_id: call.id,
          content: [
            { type: 'text', text },
            ...(image ? [{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: image } }] : []),
          ],
        })),
      },
    ],
  },
  openai_responses: {
    path: '/v1/responses',
    headers: { authorization: `Bearer ${key}` },
    first: [{ role: 'user', content: instruction }],
    body: (input) => ({ model, input, store: false, tools: TOOLS.map((tool) => ({ type: 'function', ...tool })) }),
    take({ output }) {
      const calls = output.filter(({ type }) => type === 'function_call');
      return { turn: output, calls: calls.map(({ call_id, name, arguments: args }) => ({ id: call_id, name, args })) };
    },
    results: (list) =>
      list.map(({ call, text, image }) => ({
        type: 'function_call_output',
        call_id: call.id,
        output: image
          ? [
              { type: 'input_text', text },
              { type: 'input_image', image_url: dataUrl(image) },
            ]
          : text,
      })),
  },
  gemini: {
    path: `/v1beta/models/${model}:generateContent`,
    headers: { 'x-goog-api-key': key },
    first: [{ role: 'user', parts: [{ text: instruction }] }],
    body: (contents) => ({
      contents,
      tools: [
        {
          functionDeclarations: TOOLS.map(({ parameters, ...tool }) => ({ ...tool, parametersJsonSchema: parameters })),
        },
      ],
    }),
    take({ candidates: [{ content }] }) {
      const calls = content.parts.flatMap(({ functionCall }) => functionCall ?? []);
      return { turn: [content], calls: calls.map(({ id, name, args }) => ({ id, name, args })) };
    },
    results: (list) => [
      {
        role: 'user',
        parts: list.flatMap(({ call, text, image }) => [
          { functionResponse: { id: call.id, name: call.name, response: { output: text } } },
          ...(image ? [{ inlineData: { mimeType: 'image/png', data: image } }] : []),
        ]),
      },
    ],
  },
};

function dataUrl(image) {
  return `data:image/png;base64,${image}`;
}

async function ask(dialect, history) {
  for (let tries = 1; ; tries++) {
    const reply = await fetch(base + dialect.path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...dialect.headers },
      body: JSON.stringify(dialect.body(history)),
    });
    if (reply.ok) return reply.json();
    const text = await reply.text();
    const worthIt = reply.status === 429 || reply.status >= 500;
    if (!worthIt || tries === TRIES) throw new Error(`${reply.status}: ${text}`);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * tries));
  }
}

async function perform(call) {
  const image = () => readFileSync(args.path).toString('base64');
  let args;
  try {
    args = typeof call.args === 'string' ? JSON.parse(call.args) : call.args;
    if (call.name === 'shell' && typeof args.command === 'string') return { call, text: await output(args.command) };
    if (call.name === 'view_image') return { call, text: `the picture ${args.path}`, image: image() };
    return { call, text: `error: no tool ${call.name} with the arguments ${Object.keys(args)}` };
  } catch (error) {
    return { call, text: `error: ${error.message}` };
  }
}

function output(command) {
  return new Promise((resolve) => {
    execFile('/bin/sh', ['-c', command], (error, stdout, stderr) =>
      resolve(`${stdout}${stderr}${error === null ? '' : `exit code ${error.code}\n`}`),
    );
  });
}

const dialect = DIALECTS[process.argv[2]];
const history = [...dialect.first];
for (let turn = 0; ; turn++) {
  if (turn === MAX_TURNS) throw new Error(`still not done after ${MAX_TURNS} turns`);
  const { turn: said, calls } = dialect.take(await ask(dialect, history));
  history.push(...said);
  if (calls.length === 0) break;
  history.push(...dialect.results(await Promise.all(calls.map(perform))));
}
